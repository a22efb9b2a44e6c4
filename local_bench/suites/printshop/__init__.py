"""A synthetic benchmark with known ground truth: scenes of coloured shapes, captions of them, and a pixel checker.

`scene`: contents of an image · `sampling`: random scenes and the held-out split · `drawing`: rendering · `phrases`,
`wording`, `edits`, `points`: generation and parsing of text · `damage`: image degradations · `sets`: image sets with a
common style · `writing`: text drawn into images · `checker`: attributes from pixels · `matching`, `ground_truth`:
correct answers · `shop`: the tasks and their ground truth · `orderbook`: generation of the task file.
"""
