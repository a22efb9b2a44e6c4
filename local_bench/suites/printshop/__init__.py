"""A synthetic benchmark with known ground truth: scenes of coloured shapes, captions of them, and a pixel checker.

`scene`: contents of an image and its rendering · `phrases`: generation and parsing of captions and edits · `checker`:
attributes from pixels · `matching`: correct answers · `shop`: the tasks and their ground truth · in
`examples/miniature/printshop`, `sampling`: random scenes and the held-out split · `wording`: generation of texts and
their words · `damage`: image degradations · `sets`: image sets with a common style · `writing`: text drawn into images
· `orderbook`: generation of the task file.
"""
