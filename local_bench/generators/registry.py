"""Families by name; their modules (and torch) are imported when one is asked for."""

import importlib
from typing import TYPE_CHECKING

from local_bench.core.errors import ConfigError

if TYPE_CHECKING:
    from local_bench.generators.staged import Staged

FAMILIES = {
    "flux": "flux:Flux",
    "flux_kontext": "flux_kontext:FluxKontext",
    "flux_control": "flux_control:FluxControl",
    "flux_ip_adapter": "flux_ip_adapter:FluxIpAdapter",
    "sd3": "sd3:StableDiffusion3",
    "qwen_image": "qwen_image:QwenImage",
    "qwen_image_edit": "qwen_image_edit:QwenImageEdit",
    "qwen_image_edit_plus": "qwen_image_edit_plus:QwenImageEditPlus",
    "flux2": "flux2:Flux2",
    "flux2_klein": "flux2:Flux2Klein",
    "pixart_sigma": "pixart_sigma:PixArtSigma",
    "instruct_pix2pix": "instruct_pix2pix:InstructPix2Pix",
    "omnigen": "omnigen:OmniGen",
}


def family(name: str) -> "type[Staged]":
    """The class that runs a family. ConfigError where a card names one that is not there."""
    if name not in FAMILIES:
        raise ConfigError(f"there is no family of generators {name!r}: there are {', '.join(FAMILIES)}")
    module, _, attribute = FAMILIES[name].partition(":")
    found: type[Staged] = getattr(importlib.import_module(f"local_bench.generators.{module}"), attribute)
    return found
