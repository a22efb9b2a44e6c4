"""The trained parts put together as the pipelines that our cards load."""

from typing import Any

import torch
from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    FluxKontextPipeline,
    FluxPipeline,
    StableDiffusion3Pipeline,
)
from transformers import CLIPTextModel

from examples.miniature import flow, sd3, text, vae
from examples.miniature.loop import Machine

EARLY = f"flow@{flow.STAGE.snapshots[0]:g}.pt"
CALLS: dict[str, tuple[type[Any], str]] = {
    "mini-flux": (FluxPipeline, "edits.trained.pt"),
    "mini-flux-early": (FluxPipeline, EARLY),
    "mini-kontext": (FluxKontextPipeline, "edits.trained.pt"),
    "mini-sd3": (StableDiffusion3Pipeline, "sd3.trained.pt"),
}
"""Of each model: its pipeline, and the file that its transformer is in."""


def built(name: str, machine: Machine) -> Any:
    """The pipeline of that name, float32."""
    kind, file = CALLS[name]
    clip_words, t5_words, clip, t5 = text.trained(machine)
    transformer: torch.nn.Module = sd3.new() if name == "mini-sd3" else flow.new()
    kept = torch.load(machine.work / file, map_location="cpu", weights_only=True)
    transformer.load_state_dict(kept["transformer"])
    shared = {
        "vae": vae.trained(machine),
        "transformer": transformer.to(machine.device).eval(),
        "scheduler": FlowMatchEulerDiscreteScheduler(shift=1.0),
    }
    if name == "mini-sd3":
        return kind(
            **shared,
            text_encoder=clip,
            text_encoder_2=clip,
            text_encoder_3=t5,
            tokenizer=clip_words,
            tokenizer_2=clip_words,
            tokenizer_3=t5_words,
        )
    return kind(
        **shared, text_encoder=_unprojected(clip), text_encoder_2=t5, tokenizer=clip_words, tokenizer_2=t5_words
    )


def _unprojected(clip: Any) -> CLIPTextModel:
    """The same text model in the class that FLUX has."""
    model = CLIPTextModel(clip.config)
    wanted = set(model.state_dict())
    state = {}
    for known, tensor in clip.state_dict().items():
        name = known if known in wanted else known.removeprefix("text_model.")
        if name in wanted:
            state[name] = tensor
    model.load_state_dict(state)
    return model.to(clip.device).eval().requires_grad_(False)
