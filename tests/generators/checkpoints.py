"""What tests/data/checkpoints/ records of the published checkpoints, and our own models in the same terms.

`NAME: SHAPE` tables are compared as md5 fingerprints and as sizes of safetensors files, to the byte: a header's length
depends on the names, shapes and dtypes of all tensors (the format: 8 bytes, JSON padded to a multiple of 8, data).
"""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
import yaml
from huggingface_hub import split_torch_state_dict_into_shards
from huggingface_hub.serialization import _torch as sharding
from transformers.core_model_loading import revert_weight_conversion

from local_bench.generators.architecture import build, piece, with_config
from local_bench.models.cards import ModelCard
from local_bench.models.cards import cards as all_cards

DATA = Path(__file__).resolve().parents[1] / "data" / "checkpoints"
CODES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64"}

NAMES: dict[str | None, list[tuple[str, str]]] = {
    None: [],
    "clip": [("^", "text_model.")],
    "qwen2-vl": [(r"^model\.language_model\.", "model."), (r"^model\.visual\.", "visual.")],
    "mistral3": [
        (r"^lm_head\.", "language_model.lm_head."),
        (r"^model\.language_model\.", "language_model.model."),
        (r"^model\.", ""),
    ],
}
"""Published names where they differ from those of the installed class: what to replace in ours, in this order."""
INSTALLED = "installed"
"""In place of such a list: what the installed transformers renames when it loads, backwards."""


def published() -> list[str]:
    """The cards with weights that somebody publishes: from the Hub or by address; without those of the family
    `diffusers`, which test_generic_cards.py has."""
    found = {name: card for name, card in all_cards().items() if card.family != "diffusers"}
    return sorted(name for name, card in found.items() if card.source.repo or card.source.base_url)


def facts(name: str) -> dict[str, Any]:
    """The card's data file; {} if there is none."""
    path = DATA / f"{name}.yaml"
    loaded = yaml.safe_load(path.read_text()) if path.exists() else {}
    assert isinstance(loaded, dict)
    return loaded


def components(name: str) -> dict[str, dict[str, Any]]:
    """What is recorded of each component; {} where nothing is."""
    return facts(name).get("components", {})


def fingerprints() -> dict[str, dict[str, str]]:
    return yaml.safe_load((DATA / "fingerprints.yaml").read_text())


def expanded(table: Mapping[str, list[int]]) -> dict[str, tuple[int, ...]]:
    """Writes {a..b} in the names out."""
    found = {}
    for name, shape in table.items():
        match = re.search(r"\{(\d+)\.\.(\d+)\}", name)
        numbers = range(int(match[1]), int(match[2]) + 1) if match else [None]
        for number in numbers:
            found[name if match is None else name.replace(match[0], str(number))] = tuple(shape)
    return found


def original(name: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of an authors' single file."""
    return expanded(yaml.safe_load((DATA / "original" / f"{name}.yaml").read_text()))


def fingerprint(shapes: Mapping[str, tuple[int, ...]]) -> str:
    keys = sorted(key for name, shape in shapes.items() for key in (f"{name}:{'_'.join(map(str, shape))}", name))
    return hashlib.md5(",".join(keys).encode(), usedforsecurity=False).hexdigest()


def module(card: ModelCard, component: str, fact: Mapping[str, Any]) -> torch.nn.Module:
    """Our own model on "meta" in bfloat16, from the card's architecture or from the recorded class and config."""
    if "open_clip" in fact:
        import open_clip  # here, as it takes a second

        return open_clip.create_model(fact["open_clip"], pretrained=None, device="meta")
    if "class" not in fact:
        if "with" in fact:
            card = with_config(card, {component: fact["with"]})
        return build(str(card.architecture[component]), "meta", torch.bfloat16)
    kind = getattr(transformers, fact["class"])
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            return kind(kind.config_class(**fact["config"]))
    finally:
        torch.set_default_dtype(usual)


def saved(model: torch.nn.Module, names: str | None, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint of this model, under the published names and in that dtype; tied weights once."""
    tied = getattr(model, "all_tied_weights_keys", {})
    found, state = {}, model.state_dict()
    if names == INSTALLED:
        state, names = revert_weight_conversion(model, state), None
    for name, tensor in state.items():
        if name not in tied:
            stored = name
            for pattern, replacement in NAMES[names]:
                stored = re.sub(pattern, replacement, stored)
            stored_dtype = tensor.dtype if not tensor.is_floating_point() else dtype
            found[stored] = torch.empty(tensor.shape, dtype=stored_dtype, device="meta")
    return found


def file_bytes(tensors: Mapping[str, torch.Tensor], metadata: bool = True) -> int:
    """The size of a safetensors file with these tensors and, by default, the usual metadata."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}} if metadata else {}
    at = 0
    for name, tensor in sorted(tensors.items(), key=lambda entry: (-entry[1].element_size(), entry[0])):
        end = at + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": CODES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    length = len(json.dumps(header, separators=(",", ":")))
    return 8 + length + -length % 8 + at


def shard_bytes(tensors: dict[str, torch.Tensor], shard_gb: int) -> list[int]:
    """The sizes of the files that `save_pretrained` writes for shards of that size."""
    usual = sharding.get_torch_storage_id
    sharding.get_torch_storage_id = lambda tensor: None  # on "meta" all tensors would count as one
    try:
        split = split_torch_state_dict_into_shards(tensors, max_shard_size=f"{shard_gb}GB")
    finally:
        sharding.get_torch_storage_id = usual
    return [
        file_bytes({name: tensors[name] for name in split.filename_to_tensors[file]})
        for file in sorted(split.filename_to_tensors)
    ]


def our_config(card: ModelCard, component: str) -> dict[str, Any]:
    """The component's config, class defaults included."""
    made = build(str(card.architecture[component]), "meta", torch.bfloat16)
    return dict(made.config) if not isinstance(made, transformers.PreTrainedModel) else made.config.to_dict()


def class_name(card: ModelCard, component: str) -> str | None:
    made = piece(str(card.architecture[component]))
    return made.model
