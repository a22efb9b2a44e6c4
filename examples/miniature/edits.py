"""Stage `edits`: the same transformer goes on with edits, a source's latents beside the noise, as Kontext has them.

It starts from what `flow` made; two batches of five stay captions, so that drawing is not forgotten. One file of
weights then serves FluxPipeline and FluxKontextPipeline. Where a figure is to change, most of the image is a copy,
and an even loss is small though the edit is missed: what differs between source and target counts five times.
"""

import torch

from examples.miniature import flow
from examples.miniature.conditions import Pools, Words, sample_length
from examples.miniature.data import worded_edit
from examples.miniature.loop import Loss, Machine, Models, Stage, rng_of, save, train

STAGE = Stage("edits", seed=41, steps=9300, lr_muon=2e-3, lr_adam=1.5e-3)
_CAPTIONS = 0.4
_CHANGED = 4.0
_DIFFERS = 0.2
"""Of latents, whose deviation is 1."""
_BATCH = 40


def run(machine: Machine) -> bool:
    """Trains the stage; its outcome is `edits.trained.pt`."""
    pools, words = Pools(machine, STAGE.seed), Words(machine)
    transformer = flow.new()
    kept = torch.load(machine.work / "flow.trained.pt", map_location="cpu", weights_only=True)
    transformer.load_state_dict(kept["transformer"])
    models = Models(STAGE, machine, {"transformer": transformer})
    model = models.run["transformer"]

    def loss(step: int, steps: int) -> Loss:
        rng = rng_of(STAGE, step)
        if rng.random() < _CAPTIONS:
            found = flow.caption_loss(model, pools, words, step, steps, STAGE)
            return found, {"captions": float(found.detach())}
        pool = pools.edited(step)
        chosen = rng.integers(len(pool.edits), size=_BATCH)
        texts = [worded_edit(pool.edits[i], rng).text for i in chosen]
        at = torch.from_numpy(chosen)
        source, target = flow.packed(pool.sources[at]), flow.packed(pool.targets[at])
        weight = 1 + _CHANGED * ((target - source).abs().mean(-1, keepdim=True) > _DIFFERS)
        conditions = words.flux(texts, sample_length(rng, step / steps))
        found = flow.velocity_loss(model, target, conditions, source, weight)
        return found, {"edits": float(found.detach())}

    done = train(models, loss)
    save({"transformer": models.averaged()["transformer"].state_dict()}, machine.work / "edits.trained.pt")
    return done
