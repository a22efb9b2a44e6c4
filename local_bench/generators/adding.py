"""`models add`: the card of a diffusers pipeline, from its repository or folder, by its configs and headers of weights.

What the repository does not say is left at the pipeline's own defaults, and named in the notes.
"""

import inspect
import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from local_bench.core.errors import ConfigError, WeightsError
from local_bench.core.files import is_safe_id, write_new
from local_bench.core.yamlfile import yaml_text, yaml_value
from local_bench.generators.any_pipeline import IMAGES, arguments_of, pipeline_class
from local_bench.models.cards import ModelCard, cards
from local_bench.models.hub import Purpose, hub_errors, repository_info
from local_bench.models.tensors import open_tensors
from local_bench.models.vet import PIPELINE, Listing, listing_of, vet

Tensors = dict[str, int]
"""dtype of safetensors -> number of parameters."""
Single = Callable[[Listing, int], tuple[dict[str, Any], list[str]]]
"""The fields of a card, without source and licence, from the files of one model and its number of parameters; and what
the files do not say."""
_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
_SMALL = 10**9
"""Parameters below which a model that is stored in float32 also runs in it."""
_SETTINGS = ("num_inference_steps", "guidance_scale", "true_cfg_scale", "image_guidance_scale", "max_sequence_length")
_NEEDS_IMAGE = re.compile("Edit|Img2Img|Pix2Pix|Control|Inpaint|Fill")
_NEEDS_MASK = re.compile("Inpaint|Fill")
"""In the names of pipelines: their signatures have no required image or mask."""
_REPOSITORY = re.compile(r"\w[\w.-]*/[\w.-]+")


@dataclass(frozen=True)
class Added:
    """A card that was written."""

    path: Path
    card: dict[str, Any]
    notes: list[str]
    """What the repository does not say, one sentence each."""


@dataclass(frozen=True)
class _Place:
    listing: Listing
    source: dict[str, str]
    gated: bool
    tensors: Callable[[str], Tensors]


def add_card(target: str, name: str | None, folder: Path, single: Single | None = None) -> Added:
    """Write `folder`/NAME.yaml for a Hub repository `OWNER/NAME` or a local folder; `single` describes a model that
    is no pipeline. ConfigError for a name that exists or a pipeline that cannot be called; WeightsError for one that
    needs code from its repository, or has pickles only."""
    local = Path(target)
    name = name or re.sub(r"[^a-z0-9._-]+", "-", local.resolve().name.lower()).strip("-._")
    if not is_safe_id(name):
        raise ConfigError(f"{name!r} cannot be a model's name: give another one with --name")
    if name in cards():
        raise ConfigError(f"there is already a card {name!r}: give another name with --name")
    if not os.path.isdir(local) and not _REPOSITORY.fullmatch(target):
        raise ConfigError(f"{target} is neither a folder nor a Hub repository OWNER/NAME: correct it")
    place = _local(local) if os.path.isdir(local) else _hub(target, name)
    if place.listing.index is None and single is None:
        raise WeightsError(
            f"{target} has no {PIPELINE}: only diffusers pipelines can be added, as `vae/`, `transformer/` …"
        )
    vet(place.listing)
    if place.listing.index is None and single is not None:
        pipeline = None
        fields, notes = single(place.listing, _of_component(place, "").total())
    else:
        assert place.listing.index is not None
        pipeline = pipeline_class(place.listing.index.get("_class_name"), place.listing.where)
        fields, notes = _pipeline_fields(place, pipeline)
    licence = _licence(place.listing)
    notes += [] if licence else ["The licence is not stated."]
    data = {
        "name": name,
        "source": place.source,
        "licence": licence or "not stated",
        "gated": place.gated,
        **fields,
    }
    if pipeline:
        arguments_of(pipeline, ModelCard.model_validate(data))
    text = f"# {target}, by `local-bench models add`. {' '.join(notes)}\n{yaml_text(data, sort_keys=False)}"
    write_new(folder / f"{name}.yaml", text.encode(), "card")
    return Added(folder / f"{name}.yaml", data, notes)


def _pipeline_fields(place: _Place, pipeline: type) -> tuple[dict[str, Any], list[str]]:
    signature = inspect.signature(pipeline.__call__).parameters
    sizes = [_of_component(place, part) for part in place.listing.components or ()]
    stored = sum(sizes, Counter[str]())
    n = stored.total()
    dtype = _DTYPES[max(_DTYPES, key=stored.__getitem__)]
    dtype = "bfloat16" if dtype == "float32" and n >= _SMALL else dtype
    gb = (4 if dtype == "float32" else 2) / 1e9
    total, largest = (max(0.01, round(count * gb, 2)) for count in (n, max((s.total() for s in sizes), default=0)))
    settings = {key: signature[key].default for key in _SETTINGS if key in signature}
    side = _side(place.listing)
    edits, pictures = bool(_NEEDS_IMAGE.search(pipeline.__name__)), int(any(name in signature for name in IMAGES))
    pictures += int({"image", "control_image"} <= signature.keys())
    notes = [
        "The settings are the defaults of the pipeline's class: compare them with the authors' model card.",
        *([] if side else ["The image size is not known: 1024 x 1024 is assumed."]),
        *([f"takes.pictures is {pictures}: raise it if the model takes several input images."] if pictures else []),
    ]
    fields = {
        "role": "generator",
        "family": "diffusers",
        "title": Path(place.listing.where).resolve().name,
        "pipeline": pipeline.__name__,
        "parameters_b": round(n / 1e9, 3),
        "vram_gb": total,
        "vram_by_phase_gb": {"encode": 0.0, "denoise": total, "decode": total, "component": largest},
        "takes": {
            "text_alone": not edits,
            "pictures": pictures,
            "size_from_picture": edits,
            "mask": bool(_NEEDS_MASK.search(pipeline.__name__)),
        },
        "dtype": dtype,
        "sampler": {
            "height": side or 1024,
            "width": side or 1024,
            **{key: value for key, value in settings.items() if type(value) in (int, float)},
        },
    }
    return fields, notes


def _of_component(place: _Place, component: str) -> Counter[str]:
    prefix = f"{component}/" if component else ""
    files = [name for name in place.listing.loaded if name.startswith(prefix) and name.endswith(".safetensors")]
    return sum((Counter(place.tensors(name)) for name in files), Counter())


def _side(listing: Listing) -> int | None:
    """The side of the model's square images, from `sample_size` of the denoiser and the VAE's factor."""
    for part in ("transformer", "unet"):
        names = (f"{part}/config.json", "vae/config.json")
        if not all(name in listing.names for name in names):
            continue
        config, vae = (listing.json(name) for name in names)
        latent, blocks = config.get("sample_size"), vae.get("block_out_channels") or vae.get("dim_mult")
        side = latent * 2 ** (len(blocks) - 1) if isinstance(latent, int) and isinstance(blocks, list) else 0
        if 16 <= side <= 4096 and side % 16 == 0:
            return int(side)
    return None


def _licence(listing: Listing) -> str | None:
    """The licence in the front matter of README.md."""
    if "README.md" not in listing.names:
        return None
    parts = listing.read("README.md").decode(errors="replace").split("---", 2)
    try:
        data = yaml_value(parts[1]) if len(parts) == 3 and not parts[0].strip() else None
    except ValueError:
        return None
    licence = isinstance(data, dict) and (data.get("license_name") or data.get("license"))
    return licence[:200] if isinstance(licence, str) else None


def _local(folder: Path) -> _Place:
    def tensors(name: str) -> Tensors:
        counts: Counter[str] = Counter()
        with open_tensors(folder / name) as file:
            for key in file.keys():  # noqa: SIM118 - it is no mapping
                tensor = file.get_slice(key)
                counts[tensor.get_dtype()] += prod(tensor.get_shape())
        return counts

    return _Place(listing_of(folder), {"folder": str(folder.resolve())}, False, tensors)


def _hub(repo: str, name: str) -> _Place:
    from huggingface_hub import HfApi

    purpose = Purpose(name, f"local-bench models add {repo}", "the command line")
    try:
        info = repository_info(purpose, repo, "main")
    except WeightsError as e:
        raise WeightsError(f"there is no folder {repo}, and {e}") from e

    def tensors(file: str) -> Tensors:
        with hub_errors(purpose, repo, info.revision):
            metadata = HfApi().parse_safetensors_file_metadata(repo, file, revision=info.revision)
        return {str(dtype): n for dtype, n in metadata.parameter_count.items()}

    return _Place(info.listing, {"repo": repo, "revision": info.revision}, info.gated, tensors)
