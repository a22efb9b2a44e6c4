"""The cards of what is exported, as a run reads them: `models/cards/NAME.yaml`.

`source` names the function that copies the shipped files to where cards' models lie; sizes are read off the files.
"""

from pathlib import Path
from typing import Any

import yaml
from safetensors import safe_open

from examples.miniature.drawing import NUM_INFERENCE_STEPS, SD3_GUIDANCE_SCALE
from examples.miniature.judge_model import _CONTEXT, MERGE, PATCH
from examples.miniature.text import TOKENS
from local_bench.generators.memory import plan_memory
from local_bench.generators.operations import usual_input_images
from local_bench.generators.registry import Sampler
from local_bench.models.cards import SHIPPED, ModelCard
from local_bench.suites.printshop.scene import SIDE

_SAMPLER = {
    "height": SIDE,
    "width": SIDE,
    "num_inference_steps": NUM_INFERENCE_STEPS,
    "guidance_scale": 1.0,
    "max_sequence_length": TOKENS,
}
_PARTS = {"vae": "mini-vae", "scheduler": "flow-schnell"}
_FLUX = {
    "transformer": "mini-flux-transformer",
    "text_encoder": "mini-clip-text",
    "text_encoder_2": "mini-t5",
    **_PARTS,
}
_SD3_PARTS = {
    "transformer": "mini-sd3-transformer",
    "text_encoder": "mini-clip-text-projected",
    "text_encoder_2": "mini-clip-text-projected",
    "text_encoder_3": "mini-t5",
    **_PARTS,
}
_SD3 = {"guidance_scale": SD3_GUIDANCE_SCALE, "negative_prompt": ""}
CARDS: dict[str, dict[str, Any]] = {
    "mini-flux": {
        "family": "flux",
        "title": "A small FLUX that knows one small world",
        "architecture": _FLUX,
        "sampler": _SAMPLER,
    },
    "mini-flux-early": {
        "family": "flux",
        "title": "mini-flux, stopped early",
        "architecture": _FLUX,
        "sampler": _SAMPLER,
    },
    "mini-kontext": {
        "family": "flux_kontext",
        "title": "A small FLUX Kontext for edits in one small world",
        "takes": {"pictures": 1, "size_from_picture": True},
        "architecture": _FLUX,
        "sampler": _SAMPLER,
    },
    "mini-sd3": {
        "family": "sd3",
        "title": "A small Stable Diffusion 3 that knows one small world",
        "architecture": _SD3_PARTS,
        "sampler": _SAMPLER | _SD3,
    },
    "mini-judge": {
        "role": "judge",
        "family": "qwen2-vl",
        "title": "A small Qwen2-VL that judges one small world by our rubrics",
        "judge_max_pixels": SIDE * SIDE,
        "patch": PATCH * MERGE,
        "context": _CONTEXT,
        "rubrics": "miniature",
    },
    "mini-clip": {"role": "metric", "family": "open_clip", "title": "A small CLIP that knows one small world"},
    "mini-musiq": {"role": "metric", "family": "pyiqa", "title": "A small MUSIQ that knows one small world's damage"},
}


def write(models: Path) -> None:
    """Writes a card for each model that lies in the folder `models`."""
    (models / "cards").mkdir(parents=True, exist_ok=True)
    for name, said in CARDS.items():
        if not (models / name).is_dir():
            continue
        parameters = _parameters(models / name)
        card = {
            "name": name,
            "role": "generator",
            "source": {"build": SHIPPED, "version": 1},
            "licence": "Apache-2.0",
            "parameters_b": round(parameters / 1e9, 6),
            "vram_gb": round(4 * parameters / 1e9 + 0.02, 3),
            "dtype": "float32",
            **said,
        }
        if card["role"] == "generator":
            card |= _counted(ModelCard(**card))
        (models / "cards" / f"{name}.yaml").write_text(yaml.safe_dump(card, sort_keys=False, width=120))


def _counted(card: ModelCard) -> dict[str, Any]:
    """What a generator takes, as `scripts/count_flops.py` counts it."""
    memory = plan_memory(
        card, Sampler(**card.sampler.model_dump()), batch_size=1, input_images=usual_input_images(card)
    )
    counted = memory.operations
    total = counted.encoder_parameters + counted.transformer_parameters + counted.vae_parameters
    phases = {name: _round(phase.total_gb) for name, phase in memory.phases.items()}
    return {
        "parameters_b": _round(total / 1e9),
        "vram_gb": max(phases.values()),
        "vram_by_phase_gb": phases,
        "pflop_per_image": _round(counted.pflop),
    }


def _round(figure: float) -> float:
    return float(f"{figure:.3g}")


def _parameters(folder: Path) -> int:
    count = 0
    for path in folder.rglob("*.safetensors"):
        with safe_open(path, "numpy") as file:
            for key in file.keys():  # noqa: SIM118
                size = 1
                for side in file.get_slice(key).get_shape():
                    size *= side
                count += size
    return count
