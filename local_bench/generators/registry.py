"""Sampler settings, and the generator families by name with the properties that planning needs. Imports no torch;
`staged.family` imports a family's class.

Lossy settings are faster or smaller, but change the generated images, so that each combination is a separate system.
`weights: float8_e4m3fn` stores the transformer's weights in 8 bits and computes in the model's own precision.
`first_block_cache: 0.08` skips blocks while the relative change of the first block's output is below that threshold.
It decides for the whole batch, so such a system runs with batch size 1.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from local_bench.core.environment import entry_points
from local_bench.core.errors import ConfigError, WeightsError
from local_bench.core.hardrules import size_like
from local_bench.generators.architecture import piece
from local_bench.models.cards import ModelCard
from local_bench.models.vet import PIPELINE, listing_of


@dataclass(frozen=True)
class Sampler:
    """Sampler settings of an image; all are part of its work id. None: the model has no such setting."""

    height: int
    width: int
    num_inference_steps: int
    guidance_scale: float | None = None
    true_cfg_scale: float | None = None
    negative_prompt: str | None = None
    image_guidance_scale: float | None = None
    adapter_scale: float | None = None
    max_sequence_length: int | None = None
    paste_back: bool | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that the model has, as in a work id."""
        return {name: value for name, value in vars(self).items() if value is not None}


NEIGHBOURS_MATTER = ("first_block_cache",)
"""Lossy settings with which a system runs with batch size 1."""
PLUGINS = "local_bench.families"
"""Entry-point group, `name = "package.module:TRAITS"`, each a `Traits`. Built-in families cannot be replaced."""

Passes = tuple[int, bool]
"""Forward passes per step, and whether they run as one batch."""
SINGLE: Passes = 1, False


def _guided(card: ModelCard, sampler: Sampler, input_images: int) -> Passes:
    return (2, True) if (sampler.guidance_scale or 0) > 1 else SINGLE


@dataclass(frozen=True)
class Traits:
    """Properties of a family that planning needs."""

    implementation: str
    """`module:class` in `local_bench.generators`; for a plug-in, the full `package.module:class`."""
    encodes_images: bool = False
    """Whether the VAE encodes input images once, before denoising, and not in the pipeline's call."""
    images_in_prompt: bool = False
    """Whether the text encoder also reads the input images."""
    exact_length: bool = False
    """Whether prompts of different lengths need separate batches."""
    max_batch: int | None = None
    """The largest batch size that the pipeline supports correctly; None: no limit."""
    images_add_passes: bool = False
    """Whether a step's batch has another forward pass with input images, so that its blocks are compiled again."""
    unbatched_with_images: bool = False
    """Whether requests with input images need batch size 1."""
    compiles: bool = True
    """Whether its blocks can be compiled."""
    passes: Callable[[ModelCard, Sampler, int], Passes] = lambda card, sampler, input_images: SINGLE
    """The passes of an image with these settings and this number of input images."""
    lossy_settings: tuple[str, ...] = ("weights",)
    """The lossy settings that its pipeline supports."""
    settings: tuple[str, ...] = ("guidance_scale", "max_sequence_length")
    """The settings of a card's sampler that it reads, besides size and steps; a plug-in's may be any."""
    optional: tuple[str, ...] = ("negative_prompt",)
    """Those that a card may leave out; without another one the pipeline fails, or uses a default that no run names."""
    pictures: int = 0
    """The most input images that it reads, as `takes.pictures` of a card; a plug-in's may be any."""
    mask: bool = False
    """Whether it fills the masked part of an input image (`takes.mask`)."""
    parts: tuple[str, ...] = ()
    """The parts of a card that it reads, besides LoRA adapters; a plug-in's may be any."""
    told_by: tuple[str, ...] = ("transformer", "unet")
    """The components whose class tells its weights from those of other families; not read of a plug-in."""
    input_size: Callable[[int, int], tuple[int, int]] | None = None
    """Maps (width, height) of an input image to the (height, width) at which it is read; None: at the result's size."""


_MEGAPIXEL = 1024 * 1024


def _max_one_megapixel(width: int, height: int) -> tuple[int, int]:
    share = min(1.0, (_MEGAPIXEL / (width * height)) ** 0.5)
    return int(height * share), int(width * share)


def _max_1024_per_side(width: int, height: int) -> tuple[int, int]:
    share = min(1.0, 1024 / max(width, height))
    return int(height * share), int(width * share)


_ANY = 1000
_NEGATIVE = (*Traits.settings, "negative_prompt")
_LENGTH = ("negative_prompt", "max_sequence_length")
_QWEN = partial(
    Traits,
    exact_length=True,
    passes=lambda card, s, n: (2 if (s.true_cfg_scale or 0) > 1 and s.negative_prompt is not None else 1, False),
    settings=(*_NEGATIVE, "true_cfg_scale"),
    optional=(*_LENGTH, "guidance_scale"),
)
_QWEN_EDIT = partial(
    _QWEN, images_in_prompt=True, settings=("guidance_scale", "negative_prompt", "true_cfg_scale"), pictures=1
)
_ONE_MEGAPIXEL = partial(size_like, area=_MEGAPIXEL, multiple=32)
_FLUX2 = partial(
    Traits,
    pictures=_ANY,
    unbatched_with_images=True,
    optional=_LENGTH,
    told_by=(*Traits.told_by, "text_encoder"),
    input_size=_max_one_megapixel,
)
FAMILIES = {
    "flux": Traits("flux:Flux", lossy_settings=("weights", "first_block_cache")),
    "flux_kontext": Traits("flux:FluxKontext", encodes_images=True, pictures=1),
    "flux_control": Traits("flux:FluxControl", encodes_images=True, pictures=1),
    "flux_ip_adapter": Traits(  # its projection reads the dtype of the stored weights, so no float8
        "flux:FluxIpAdapter",
        encodes_images=True,
        pictures=1,
        lossy_settings=("first_block_cache",),
        settings=(*Traits.settings, "adapter_scale"),
        parts=("adapter", "image_encoder"),
    ),
    "flux_fill": Traits("flux:FluxFill", pictures=1, mask=True),
    "sd3": Traits("sd3:StableDiffusion3", passes=_guided, settings=_NEGATIVE),
    "sd3_inpaint": Traits("sd3:StableDiffusion3Inpaint", passes=_guided, settings=_NEGATIVE, pictures=1, mask=True),
    "qwen_image": _QWEN("qwen_image:QwenImage"),
    "qwen_image_inpaint": _QWEN("qwen_image:QwenImageInpaint", pictures=1, mask=True),
    "qwen_image_edit": _QWEN_EDIT("qwen_image:QwenImageEdit", input_size=_ONE_MEGAPIXEL),
    "qwen_image_edit_inpaint": _QWEN_EDIT("qwen_image:QwenImageEditInpaint", mask=True),
    "qwen_image_edit_plus": _QWEN_EDIT(
        "qwen_image:QwenImageEditPlus", pictures=_ANY, max_batch=1, input_size=_ONE_MEGAPIXEL
    ),
    "flux2": _FLUX2("flux2:Flux2"),
    "flux2_klein": _FLUX2(
        "flux2:Flux2Klein",
        passes=lambda card, s, n: (
            SINGLE if card.architecture.get("is_distilled") or (s.guidance_scale or 0) <= 1 else (2, False)
        ),
    ),
    "z_image": Traits(
        "z_image:ZImage",
        exact_length=True,
        passes=lambda card, s, n: SINGLE if s.guidance_scale == 0 else (2, True),
        settings=_NEGATIVE,
        optional=_LENGTH,
    ),
    "pixart_sigma": Traits("pixart_sigma:PixArtSigma", passes=_guided, settings=_NEGATIVE, optional=_LENGTH),
    "instruct_pix2pix": Traits(
        "instruct_pix2pix:InstructPix2Pix",
        encodes_images=True,
        pictures=1,
        passes=lambda card, s, n: (
            (3, True) if (s.guidance_scale or 0) > 1 and (s.image_guidance_scale or 0) >= 1 else SINGLE
        ),
        settings=("guidance_scale", "image_guidance_scale", "negative_prompt"),
    ),
    "omnigen": Traits(
        "omnigen:OmniGen",
        pictures=_ANY,
        max_batch=1,
        images_add_passes=True,
        passes=lambda card, s, n: (3 if n else 2, True),
        settings=("guidance_scale", "image_guidance_scale"),
        input_size=_max_1024_per_side,
    ),
}
"""The families with stages of their own."""
GENERIC = {"diffusers": Traits("any_pipeline:AnyPipeline", max_batch=1, compiles=False, lossy_settings=())}
BUILT_IN = FAMILIES | GENERIC


def traits(name: str) -> Traits:
    """A family's traits, without importing torch. Raises ConfigError if the family does not exist."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    point = next((point for point in entry_points(PLUGINS) if point.name == name), None)
    if point is None:
        plugins = sorted({point.name for point in entry_points(PLUGINS)})
        raise ConfigError(f"unknown generator family {name!r}: use one of {', '.join((*BUILT_IN, *plugins))}")
    try:
        loaded = point.load()
    except (Exception, SystemExit) as e:
        raise ConfigError(
            f"the family {name!r} cannot be loaded from {point.value} ({e}): fix or uninstall that package"
        ) from e
    if not isinstance(loaded, Traits):
        raise ConfigError(f"the family {name!r}: {point.value} is not a local_bench.Traits: fix that package")
    return loaded


def without_effect(card: ModelCard, sampler: Sampler) -> str | None:
    """Why guidance or a negative prompt changes no image of a built-in family, in one sentence; None if it does."""
    if card.family not in FAMILIES or traits(card.family).passes(card, sampler, 1)[0] > 1:
        return None
    transformer = card.architecture.get("transformer")
    denoiser = piece(transformer) if isinstance(transformer, str) else None
    embeds = denoiser is None or denoiser.config.get("guidance_embeds", denoiser.model == "Flux2Transformer2DModel")
    if not embeds and sampler.guidance_scale not in (None, 0, 1):
        return f"guidance_scale {sampler.guidance_scale:g} has no effect: the model has no guidance embedding."
    if sampler.negative_prompt:
        return "negative_prompt has no effect without guidance."
    return None


def check_lossy(lossy: Iterable[str], family: str) -> None:
    """Raise ConfigError for a lossy setting that the family does not support."""
    supported = traits(family).lossy_settings
    other = next((way for way in lossy if way not in supported), None)
    if other is not None:
        only = f"only {', '.join(supported)}" if supported else "no lossy setting"
        raise ConfigError(f"lossy.{other}: the family {family} supports {only}: remove it")


def check_folder(card: ModelCard, folder: Path) -> None:
    """Raise WeightsError if a user's folder has another pipeline than the card: of another class, or, as several
    pipelines share weights, with a component of another class (`Traits.told_by`)."""
    listing = listing_of(folder)
    actual = {name: entry[-1] for name, entry in (listing.components or {}).items()}
    actual["pipeline"] = (listing.index or {}).get("_class_name")
    names = FAMILIES[card.family].told_by if card.family in FAMILIES else Traits.told_by
    expected = {n: piece(str(card.architecture[n])).model for n in names if n in card.architecture}
    for name, kind in (expected | ({"pipeline": card.pipeline} if card.pipeline else {})).items():
        if actual.get(name) != kind:
            found = f"a {actual['pipeline']}" if listing.index else f"no pipeline (it has no {PIPELINE})"
            needs = f"{card.name} needs a {kind} as its {name}"
            raise WeightsError(f"{folder} is {found}, and {needs}: give another folder")


def check_card(card: ModelCard) -> None:
    """Raise ConfigError for a part, an input or a setting that the family does not read (the images would be those
    without it), and for a setting that it needs and the card leaves out."""
    read = BUILT_IN[card.family].parts if card.family in BUILT_IN else card.parts
    for part in sorted(card.parts.keys() - card.lora.keys() - {*read}):
        what = f"{card.name}: the family {card.family} does not read the part {part!r}"
        raise ConfigError(f"{what}: give a LoRA adapter its scale in `lora`, or remove the part")
    if card.family in FAMILIES:
        reads, takes = FAMILIES[card.family], card.takes
        wrong = {"pictures": takes.pictures > reads.pictures, "mask": takes.mask != reads.mask}
        for name in (name for name, is_wrong in wrong.items() if is_wrong):
            what = f"{card.name}: takes.{name} is {getattr(takes, name)}, and the family {card.family} reads "
            most = str(reads.pictures or "no input image") if name == "pictures" else "one" if reads.mask else "no mask"
            raise ConfigError(f"{what}{most}: correct it, or choose another family")
    given = {name for name, value in card.sampler.model_dump().items() if value is not None}
    own = FAMILIES[card.family].settings if card.family in FAMILIES else given - {"paste_back"}
    known = {"height", "width", "num_inference_steps", *own, *(("paste_back",) if card.takes.mask else ())}
    for name in sorted(given - known):
        what = f"{card.name}: the family {card.family} does not read sampler.{name}"
        raise ConfigError(f"{what}: remove it (it reads {', '.join(sorted(known))})")
    if card.family in FAMILIES and (lacking := sorted({*own} - {*FAMILIES[card.family].optional} - given)):
        what = f"{card.name}: the family {card.family} needs sampler.{lacking[0]}"
        raise ConfigError(f"{what}, which the card leaves out or sets to null: give it a number")
