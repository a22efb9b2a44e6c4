"""Stage `sd3`: a small Stable Diffusion 3 on the same autoencoder and encoders, the second family.

One prompt of ten is empty, so that guidance has something to lead away from.
"""

import torch
import torch.nn.functional as F
from diffusers import SD3Transformer2DModel

from examples.miniature import text
from examples.miniature.conditions import Pools, Words, sample_sigmas
from examples.miniature.data import worded_scene
from examples.miniature.loop import Loss, Machine, Models, Stage, rng_of, save, train
from examples.miniature.vae import CHANNELS

STAGE = Stage("sd3", seed=51, steps=2400, lr_muon=3e-3, lr_adam=2e-3)
_BATCH = 48
_EMPTY = 0.1


def new() -> SD3Transformer2DModel:
    """With the stage's first weights."""
    torch.manual_seed(STAGE.seed)
    model = SD3Transformer2DModel(
        sample_size=8,
        patch_size=2,
        in_channels=CHANNELS,
        out_channels=CHANNELS,
        num_layers=3,
        attention_head_dim=32,
        num_attention_heads=3,
        joint_attention_dim=text.T5_WIDTH,
        caption_projection_dim=96,
        pooled_projection_dim=2 * text.CLIP_WIDTH,
        pos_embed_max_size=8,
        qk_norm="rms_norm",
    )
    torch.nn.init.zeros_(model.proj_out.weight)
    return model


def run(machine: Machine) -> bool:
    """Trains the stage; its outcome is `sd3.trained.pt`."""
    pools, words = Pools(machine, STAGE.seed), Words(machine)
    models = Models(STAGE, machine, {"transformer": new()})
    model = models.run["transformer"]

    def loss(step: int, steps: int) -> Loss:
        rng, share = rng_of(STAGE, step), step / steps
        drawn = pools.drawn(step, 0.5 if share < 0.6 else 0.8)
        chosen = rng.integers(len(drawn.scenes), size=_BATCH)
        texts = ["" if rng.random() < _EMPTY else worded_scene(drawn.scenes[i], rng).text for i in chosen]
        tokens, pooled = words.sd3(texts, text.TOKENS)
        wanted, dtype = drawn.latents[torch.from_numpy(chosen)], next(model.parameters()).dtype
        sigmas, noise = sample_sigmas(_BATCH, machine.device), torch.randn(wanted.shape).to(machine.device)
        at = sigmas[:, None, None, None]
        told = model(
            hidden_states=((1 - at) * wanted + at * noise).to(dtype),
            timestep=(1000 * sigmas).to(dtype),
            encoder_hidden_states=tokens.to(dtype),
            pooled_projections=pooled.to(dtype),
            return_dict=False,
        )[0]
        return F.mse_loss(told.float(), noise - wanted), {}

    done = train(models, loss)
    save({"transformer": models.averaged()["transformer"].state_dict()}, machine.work / "sd3.trained.pt")
    return done
