"""Trains the miniature: small models of the real classes on the world of `local_bench.suites.printshop`.

    python -m examples.miniature all --work DIR [--device cpu|cuda] [--bf16] [--scale 1.0] [--limit N]

| stage | makes | from |
|---|---|---|
| text | T5 and CLIP that bind what belongs together | the world's words |
| vae | an autoencoder of FLUX's geometry | its images |
| flow, edits | mini-flux-early, mini-flux, mini-kontext | text, vae |
| sd3 | mini-sd3 | text, vae |
| gallery | images by all four, for the judge to learn from | edits, sd3 |
| eye | the judge's vision tower, that tells what stands where | vae |
| judge, drill, compare, fine | mini-judge, better after each | eye, gallery |
| clip, musiq | mini-clip, mini-musiq | images, words, damage |
| export | `weights/` and cards, to be put into the repository as they are | all |
| score | how good what is shipped is, on what was held out | the repository's `weights/` |

Every stage has a fixed seed and a fixed number of steps, keeps a checkpoint in DIR once a minute and goes on from it:
the same command again finishes what was interrupted. What a step sees depends on the seed and its number only. Trained
bits differ between machines all the same; what is shipped is data. On a CPU each process takes one thread: stages that
do not wait for each other (text and vae; sd3 beside flow; clip, musiq) may run side by side.
"""
