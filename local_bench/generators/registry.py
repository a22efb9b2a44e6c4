"""The generator families by name, with the properties that planning needs. Imports no torch; `families` imports a
family's class."""

from dataclasses import dataclass
from importlib.metadata import entry_points

from local_bench.core.errors import ConfigError

PLUGINS = "local_bench.families"
"""Group of entry points `name = "package.module:TRAITS"`, each a `Traits`; they cannot replace ours."""


@dataclass(frozen=True)
class Traits:
    """What differs between families outside of their own code."""

    implementation: str
    """`module:class` in `local_bench.generators`; a plug-in gives its whole `package.module:class`."""
    encodes_pictures: bool = False
    """Whether the VAE turns pictures into latents once, before denoising, and not in the pipeline's own call."""
    sees_pictures: bool = False
    """Whether the text encoder also reads the pictures."""
    exact_length: bool = False
    """Whether prompts of different lengths need batches of their own."""
    max_batch: int | None = None
    """The largest batch that the pipeline makes right; None for any."""
    alone_with_pictures: bool = False
    """Whether an image with input pictures must be made alone."""
    lossy_ways: tuple[str, ...] = ("weights",)
    """The settings of `generators.lossy` that its pipeline can take."""

    def largest_batch(self, pictures: bool) -> int | None:
        """How many images, with input pictures or without, the pipeline makes right in one call; None for any."""
        return 1 if pictures and self.alone_with_pictures else self.max_batch


FAMILIES = {
    "flux": Traits("flux:Flux", lossy_ways=("weights", "first_block_cache")),
    "flux_kontext": Traits("flux_kontext:FluxKontext", encodes_pictures=True),
    "flux_control": Traits("flux_control:FluxControl", encodes_pictures=True),
    "flux_ip_adapter": Traits(  # its projection asks for the dtype in which weights are kept, so no float8
        "flux_ip_adapter:FluxIpAdapter", encodes_pictures=True, lossy_ways=("first_block_cache",)
    ),
    "flux_fill": Traits("flux_fill:FluxFill"),
    "sd3": Traits("sd3:StableDiffusion3"),
    "sd3_inpaint": Traits("sd3_inpaint:StableDiffusion3Inpaint"),
    "qwen_image": Traits("qwen_image:QwenImage", exact_length=True),
    "qwen_image_inpaint": Traits("qwen_image_inpaint:QwenImageInpaint", exact_length=True),
    "qwen_image_edit": Traits("qwen_image_edit:QwenImageEdit", exact_length=True, sees_pictures=True),
    "qwen_image_edit_inpaint": Traits(
        "qwen_image_edit_inpaint:QwenImageEditInpaint", exact_length=True, sees_pictures=True
    ),
    "qwen_image_edit_plus": Traits(
        "qwen_image_edit_plus:QwenImageEditPlus", exact_length=True, sees_pictures=True, max_batch=1
    ),
    "flux2": Traits("flux2:Flux2", alone_with_pictures=True),
    "flux2_klein": Traits("flux2:Flux2Klein", alone_with_pictures=True),
    "pixart_sigma": Traits("pixart_sigma:PixArtSigma"),
    "instruct_pix2pix": Traits("instruct_pix2pix:InstructPix2Pix", encodes_pictures=True),
    "omnigen": Traits("omnigen:OmniGen", max_batch=1),
}


def traits(name: str) -> Traits:
    """A family's traits, without importing torch. ConfigError where a card names a family that does not exist."""
    if name in FAMILIES:
        return FAMILIES[name]
    point = next((point for point in entry_points(group=PLUGINS) if point.name == name), None)
    if point is None:
        plugins = sorted({point.name for point in entry_points(group=PLUGINS)})
        raise ConfigError(f"there is no family of generators {name!r}: there are {', '.join((*FAMILIES, *plugins))}")
    try:
        found = point.load()
    except (ImportError, AttributeError) as e:
        raise ConfigError(
            f"the family {name!r} cannot be loaded from {point.value} ({e}): mend or remove that package"
        ) from e
    if not isinstance(found, Traits):
        raise ConfigError(f"the family {name!r}: {point.value} is no local_bench.Traits: mend that package")
    return found
