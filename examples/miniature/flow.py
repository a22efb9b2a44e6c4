"""Stage `flow`: a small FLUX that draws what a caption says. Flow matching on the autoencoder's latents.

What binds an attribute to its figure is done by the frozen encoders (see `text`): each text token already holds the
whole figure it speaks of and its place, so an image token has only to find the tokens of its own place. The first third
of the steps is half images of one figure, so that shapes are learnt; then two figures stand in four of five.
"""

import torch
import torch.nn.functional as F
from diffusers import FluxTransformer2DModel

from examples.miniature import text
from examples.miniature.conditions import Pools, Words, sample_length, sample_sigmas
from examples.miniature.data import worded_scene
from examples.miniature.loop import Loss, Machine, Models, Stage, rng_of, save, train
from examples.miniature.vae import CHANNELS

STAGE = Stage("flow", seed=31, steps=4000, lr_muon=3e-3, lr_adam=2e-3, snapshots=(0.1,))
"""What is kept at the first snapshot is mini-flux-early."""
HEADS, HEAD_DIM = 4, 28
"""112 wide, so that two transformers of FLUX find room in what may be shipped."""
_BATCH = 48


def new() -> FluxTransformer2DModel:
    """With the stage's first weights; what it says first is nothing."""
    torch.manual_seed(STAGE.seed)
    model = FluxTransformer2DModel(
        patch_size=1,
        in_channels=4 * CHANNELS,
        num_layers=1,
        num_single_layers=5,
        attention_head_dim=HEAD_DIM,
        num_attention_heads=HEADS,
        joint_attention_dim=text.T5_WIDTH,
        pooled_projection_dim=text.CLIP_WIDTH,
        guidance_embeds=False,
        axes_dims_rope=(8, 10, 10),
    )
    torch.nn.init.zeros_(model.proj_out.weight)
    return model


def packed(latents: torch.Tensor) -> torch.Tensor:
    """[n, c, h, w] as FLUX has it: [n, h/2 * w/2, 4c], two by two."""
    n, c, h, w = latents.shape
    return latents.view(n, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 1, 3, 5).reshape(n, h * w // 4, 4 * c)


def image_ids(first: float, device: torch.device, side: int = 4) -> torch.Tensor:
    """Where each token of an image stands [side * side, 3]; `first` is 1 for a source of an edit."""
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    return torch.stack([torch.full_like(rows, int(first)), rows, columns], -1).reshape(-1, 3).float().to(device)


def velocity_loss(
    model: torch.nn.Module,
    wanted: torch.Tensor,
    conditions: tuple[torch.Tensor, torch.Tensor],
    source: torch.Tensor | None = None,
    weight: torch.Tensor | None = None,
) -> torch.Tensor:
    """Mean squared error of the velocity at random noise; latents are packed [n, 16, 64], a source's beside them.

    `weight` [n, 16, 1] is what each token counts."""
    device, dtype = wanted.device, next(model.parameters()).dtype
    sigmas = sample_sigmas(len(wanted), device)
    noise = torch.randn(wanted.shape).to(device)
    at = sigmas[:, None, None]
    given, ids = (1 - at) * wanted + at * noise, image_ids(0, device)
    if source is not None:
        given, ids = torch.cat([given, source], 1), torch.cat([ids, image_ids(1, device)])
    tokens, pooled = conditions
    told = model(
        hidden_states=given.to(dtype),
        timestep=sigmas.to(dtype),
        encoder_hidden_states=tokens.to(dtype),
        pooled_projections=pooled.to(dtype),
        txt_ids=torch.zeros(tokens.shape[1], 3, device=device),
        img_ids=ids,
        return_dict=False,
    )[0]
    squared = F.mse_loss(told[:, : wanted.shape[1]].float(), noise - wanted, reduction="none").mean(-1, keepdim=True)
    return squared.mean() if weight is None else (squared * weight).sum() / weight.sum()


def caption_loss(
    model: torch.nn.Module, pools: Pools, words: Words, step: int, steps: int, stage: Stage
) -> torch.Tensor:
    """The loss of one batch of captioned images."""
    rng, share = rng_of(stage, step), step / steps
    drawn = pools.drawn(step, 0.5 if share < 0.6 else 0.8)
    chosen = rng.integers(len(drawn.scenes), size=_BATCH)
    texts = [worded_scene(drawn.scenes[i], rng).text for i in chosen]
    conditions = words.flux(texts, sample_length(rng, share))
    return velocity_loss(model, packed(drawn.latents[torch.from_numpy(chosen)]), conditions)


def run(machine: Machine) -> bool:
    """Trains the stage; its outcome is `flow.trained.pt`."""
    pools, words = Pools(machine, STAGE.seed), Words(machine)
    models = Models(STAGE, machine, {"transformer": new()})

    def loss(step: int, steps: int) -> Loss:
        return caption_loss(models.run["transformer"], pools, words, step, steps, STAGE), {}

    done = train(models, loss)
    save({"transformer": models.averaged()["transformer"].state_dict()}, machine.work / "flow.trained.pt")
    return done
