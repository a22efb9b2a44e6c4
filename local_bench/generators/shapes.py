"""What a family's modules are given for one image, in shapes alone: its arithmetic and its memory follow from them.

Every VAE here shrinks eightfold; a transformer's token is 16 x 16 pixels. A prompt counts as `TYPICAL_TOKENS` where
nothing pads it. An input picture counts as large as the result, and not larger than its pipeline lets it be.
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
"""Tokens of the pipeline's own words before a prompt, read by the encoder and cut off after it."""
_SEEN_BY_QWEN = {"qwen_image_edit": 1024, "qwen_image_edit_inpaint": 1024, "qwen_image_edit_plus": 384}
"""The side of the square whose area a picture has when the language model looks at it, in pixels."""
_PATCH = 28
_IN_SEQUENCE = ("flux_kontext", "flux2", "flux2_klein", "omnigen", "qwen_image_edit", "qwen_image_edit_plus")
"""Families whose transformer reads every input picture as further tokens."""


@dataclass(frozen=True)
class Sizes:
    """One image's sizes. Pictures and results are (height, width) in pixels."""

    family: str
    result: tuple[int, int]
    text: int
    """Tokens of text that the transformer reads."""
    encoded: dict[str, int]
    """Tokens that each text encoder reads, by the pipeline's name for it."""
    encodings: int
    """How often text is encoded: once, and once more for a negative prompt."""
    pictures: tuple[tuple[int, int], ...]
    """As the VAE reads them; a picture with a mask is read twice, as it is and without its masked part."""
    clip_pictures: int
    """How many a CLIP image encoder looks at."""
    grids: tuple[tuple[int, int], ...]
    """Patches (rows, columns) of the pictures that the language model looks at."""
    passes: int
    """Forward passes a step."""
    together: bool
    """Whether an image's passes are one batch."""

    @property
    def in_sequence(self) -> tuple[tuple[int, int], ...]:
        """Those of `pictures` whose tokens follow the result's in the transformer's sequence. Other families add the
        picture's channels to the noise, or read it outside the transformer."""
        if self.family == "qwen_image_edit_inpaint":
            return self.pictures[: len(self.pictures) // 2]  # without its masked part it is only for the VAE
        return self.pictures if self.family in _IN_SEQUENCE else ()


def sizes(card: ModelCard, sampler: Sampler, pictures: int = 0, text_tokens: int | None = None) -> Sizes:
    """The sizes of one image. `text_tokens` are a prompt's own, where nothing pads it.

    ConfigError for a family that does not exist.
    """
    traits(card.family)
    own = text_tokens or TYPICAL_TOKENS
    passes, together = _passes(card, sampler, pictures)
    grids = _grids(card.family, pictures)
    result = (sampler.height, sampler.width)
    encoded = _encoded(card.family, sampler, own, grids)
    by_clip = card.family == "flux_ip_adapter"
    return Sizes(
        family=card.family,
        result=result,
        text=_text(card.family, sampler, own, encoded),
        encoded=encoded,
        encodings=1 if passes == 1 and card.family != "instruct_pix2pix" else 2,
        pictures=() if by_clip else (_seen_by_vae(card.family, result),) * (pictures * (2 if card.takes.mask else 1)),
        clip_pictures=pictures if by_clip else 0,
        grids=grids,
        passes=passes,
        together=together,
    )


def _passes(card: ModelCard, sampler: Sampler, pictures: int) -> tuple[int, bool]:
    guided = (sampler.guidance_scale or 0) > 1
    match card.family:
        case "sd3" | "sd3_inpaint" | "pixart_sigma":
            return (2, True) if guided else (1, False)
        case "instruct_pix2pix":
            return (3, True) if guided and (sampler.image_guidance_scale or 0) >= 1 else (1, False)
        case "omnigen":
            return (3 if pictures else 2, True)
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
        case "flux2" | "flux2_klein":
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
        case "omnigen":
            return own
        case _ if family in QWEN_TEMPLATE:
            return encoded["text_encoder"] - QWEN_TEMPLATE[family]
        case _:
            return encoded.get("text_encoder_2", encoded["text_encoder"])


def _grids(family: str, pictures: int) -> tuple[tuple[int, int], ...]:
    if family not in _SEEN_BY_QWEN:
        return ()
    side = 2 * round(_SEEN_BY_QWEN[family] / _PATCH)
    return ((side, side),) * pictures


def _seen_by_vae(family: str, result: tuple[int, int]) -> tuple[int, int]:
    if family in ("qwen_image_edit", "qwen_image_edit_plus"):
        return MEGAPIXEL  # always brought to that area
    if family in ("flux2", "flux2_klein", "omnigen") and result[0] * result[1] > MEGAPIXEL[0] * MEGAPIXEL[1]:
        return MEGAPIXEL
    return result
