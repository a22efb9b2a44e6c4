"""A world small enough to be known: figures on a ground, words for them, and a checker that reads them off the pixels.

`scene` what is in a picture · `sampling` scenes drawn from a generator, and which are never trained on · `drawing`
pixels · `phrases`, `wording`, `edits`, `points` words, both ways · `damage` · `sets` · `writing` words in the picture ·
`checker` pixels to attributes · `truth` what holds · `shop` a print shop's orders and their truth · `orderbook` how
they were made.
"""
