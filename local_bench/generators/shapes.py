"""Input sizes of a family's modules for one image, from which operations and memory are counted.

Every VAE here downsamples by 8; one token of a transformer is 16 x 16 pixels. An unpadded prompt counts as
`TYPICAL_TOKENS`. An input image is assumed to have the result's size, limited by the pipeline's maximum.
"""

from dataclasses import dataclass

from local_bench.generators.registry import traits
from local_bench.generators.sampler import Sampler
from local_bench.models.cards import ModelCard

TYPICAL_TOKENS = 64
MEGAPIXEL = (1024, 1024)
_CLIP_TOKENS = 77
QWEN_TEMPLATE = {
    **dict.fromkeys(("qwen_image", "qwen_image_inpaint"), 34),
    **dict.fromkeys(("qwen_image_edit", "qwen_image_edit_inpaint", "qwen_image_edit_plus"), 64),
}
"""Number of tokens of the pipeline's template before a prompt: encoded, then removed from the embeddings."""
_SEEN_BY_QWEN = {"qwen_image_edit": 1024, "qwen_image_edit_inpaint": 1024, "qwen_image_edit_plus": 384}
"""Square root of the area to which images are resized for the language model, in pixels."""
_PATCH = 28
_IN_SEQUENCE = ("flux_kontext", "flux2", "flux2_klein", "omnigen", "qwen_image_edit", "qwen_image_edit_plus")
"""Families whose transformer receives the input images as additional tokens."""


@dataclass(frozen=True)
class Sizes:
    """Sizes for one generated image. Image sizes are (height, width) in pixels. The names of the fields are part of
    `counts_key`."""

    family: str
    result: tuple[int, int]
    text: int
    """Number of text tokens of the transformer."""
    encoded: dict[str, int]
    """Number of tokens of each text encoder, by the pipeline's component name."""
    encodings: int
    """Number of encoded prompts: 1, or 2 with a negative prompt."""
    pictures: tuple[tuple[int, int], ...]
    """Sizes of the VAE's inputs; an image with a mask is encoded twice, unchanged and without its masked part."""
    clip_pictures: int
    """Number of images for the CLIP image encoder."""
    grids: tuple[tuple[int, int], ...]
    """Patches (rows, columns) of the language model's input images."""
    passes: int
    """Forward passes per step."""
    together: bool
    """Whether an image's passes run as one batch."""

    @property
    def in_sequence(self) -> tuple[tuple[int, int], ...]:
        """Those of `pictures` whose tokens follow the result's in the transformer's sequence. Other families
        concatenate the image's channels with the noise, or use it outside the transformer."""
        if self.family == "qwen_image_edit_inpaint":
            return self.pictures[: len(self.pictures) // 2]  # the masked copies are inputs of the VAE only
        return self.pictures if self.family in _IN_SEQUENCE else ()


def sizes(card: ModelCard, sampler: Sampler, input_images: int = 0, text_tokens: int | None = None) -> Sizes:
    """Return the sizes for one image. `text_tokens` is the prompt's length for families that do not pad it.

    Raises ConfigError if the family does not exist.
    """
    traits(card.family)
    own = text_tokens or TYPICAL_TOKENS
    passes, together = _passes(card, sampler, input_images)
    grids = _grids(card.family, input_images)
    result = (sampler.height, sampler.width)
    encoded = _encoded(card.family, sampler, own, grids)
    by_clip = card.family == "flux_ip_adapter"
    return Sizes(
        family=card.family,
        result=result,
        text=_text(card.family, sampler, own, encoded),
        encoded=encoded,
        encodings=1 if passes == 1 and card.family != "instruct_pix2pix" else 2,
        pictures=()
        if by_clip
        else (_seen_by_vae(card.family, result),) * (input_images * (2 if card.takes.mask else 1)),
        clip_pictures=input_images if by_clip else 0,
        grids=grids,
        passes=passes,
        together=together,
    )


def _passes(card: ModelCard, sampler: Sampler, input_images: int) -> tuple[int, bool]:
    guided = (sampler.guidance_scale or 0) > 1
    match card.family:
        case "z_image":
            return (2, True) if sampler.guidance_scale != 0 else (1, False)
        case "sd3" | "sd3_inpaint" | "pixart_sigma":
            return (2, True) if guided else (1, False)
        case "instruct_pix2pix":
            return (3, True) if guided and (sampler.image_guidance_scale or 0) >= 1 else (1, False)
        case "omnigen":
            return (3 if input_images else 2, True)
        case _ if card.family in QWEN_TEMPLATE:
            twice = (sampler.true_cfg_scale or 0) > 1 and sampler.negative_prompt is not None
            return (2 if twice else 1, False)
        case "flux2_klein":
            return (2 if guided and not card.architecture.get("is_distilled") else 1, False)
        case _:
            return (1, False)


def _encoded(family: str, sampler: Sampler, own: int, grids: tuple[tuple[int, int], ...]) -> dict[str, int]:
    match family:
        case "sd3" | "sd3_inpaint":
            clips = dict.fromkeys(("text_encoder", "text_encoder_2"), _CLIP_TOKENS)
            return clips | {"text_encoder_3": sampler.max_sequence_length or 256}
        case "pixart_sigma":
            return {"text_encoder": sampler.max_sequence_length or 300}
        case "instruct_pix2pix":
            return {"text_encoder": _CLIP_TOKENS}
        case "flux2" | "flux2_klein" | "z_image":
            return {"text_encoder": sampler.max_sequence_length or 512}
        case "omnigen":
            return {}
        case _ if family in QWEN_TEMPLATE:
            return {"text_encoder": QWEN_TEMPLATE[family] + own + sum(rows * columns // 4 for rows, columns in grids)}
        case _:
            return {"text_encoder": _CLIP_TOKENS, "text_encoder_2": sampler.max_sequence_length or 512}


def _text(family: str, sampler: Sampler, own: int, encoded: dict[str, int]) -> int:
    match family:
        case "sd3" | "sd3_inpaint":
            return _CLIP_TOKENS + encoded["text_encoder_3"]
        case "omnigen" | "z_image":
            return own
        case _ if family in QWEN_TEMPLATE:
            return encoded["text_encoder"] - QWEN_TEMPLATE[family]
        case _:
            return encoded.get("text_encoder_2", encoded["text_encoder"])


def _grids(family: str, input_images: int) -> tuple[tuple[int, int], ...]:
    if family not in _SEEN_BY_QWEN:
        return ()
    side = 2 * round(_SEEN_BY_QWEN[family] / _PATCH)
    return ((side, side),) * input_images


def _seen_by_vae(family: str, result: tuple[int, int]) -> tuple[int, int]:
    if family in ("qwen_image_edit", "qwen_image_edit_plus"):
        return MEGAPIXEL  # always resized to that area
    if family in ("flux2", "flux2_klein", "omnigen") and result[0] * result[1] > MEGAPIXEL[0] * MEGAPIXEL[1]:
        return MEGAPIXEL
    return result
