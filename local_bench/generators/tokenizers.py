"""Tokenizers that need no files: one token per byte or character, without learned merges.

They are used in small models, and in full-size models with random weights whose files have not been downloaded.
"""

import string

from transformers import (
    CLIPImageProcessor,
    CLIPTokenizer,
    LlamaTokenizer,
    PixtralImageProcessor,
    PixtralProcessor,
    PreTrainedTokenizerFast,
    Qwen2Tokenizer,
    Qwen2VLImageProcessor,
    Qwen2VLProcessor,
    Qwen2VLVideoProcessor,
    T5Tokenizer,
)
from transformers.processing_utils import ProcessorMixin

from local_bench.models.shipped import byte_characters

QWEN_SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>"),
    *("<|image_pad|>", "<|video_pad|>"),
)
_TURNS = """\
{%- for message in messages -%}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}"""
_PARTS = """\
{%- for message in messages -%}[{{ message.role }}]
{%- for part in message.content -%}{%- if part.type == 'text' -%}{{ part.text }}{%- endif -%}{%- endfor -%}
{%- endfor -%}"""


def clip_tokenizer() -> CLIPTokenizer:
    """A CLIP tokenizer with one token per byte and a maximum of 77 tokens."""
    characters = byte_characters()
    pieces = [*characters, *(f"{c}</w>" for c in characters), "<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[], model_max_length=77)


def t5_tokenizer() -> T5Tokenizer:
    """A T5 tokenizer with one token per character (rare characters are unknown)."""
    characters = ["▁", *string.printable.strip(), *(chr(c) for c in range(0xA1, 0x17F))]
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *((c, -float(i + 1)) for i, c in enumerate(characters))]
    return T5Tokenizer(vocab=pieces, extra_ids=0, model_max_length=512)


def qwen_tokenizer() -> Qwen2Tokenizer:
    """A Qwen tokenizer with one token per byte, the special tokens and a chat template."""
    tokenizer = Qwen2Tokenizer(
        vocab={c: i for i, c in enumerate((*byte_characters(), *QWEN_SPECIAL))},
        merges=[],
        additional_special_tokens=list(QWEN_SPECIAL),
        model_max_length=2048,
    )
    tokenizer.chat_template = _TURNS
    return tokenizer


def qwen_vl_processor(tokenizer: Qwen2Tokenizer | None = None, chat_template: str = _TURNS) -> Qwen2VLProcessor:
    """The processor of Qwen2-VL and Qwen2.5-VL: patches of 14 pixels, merged 2 x 2."""
    pixels = {"patch_size": 14, "merge_size": 2, "temporal_patch_size": 2, "min_pixels": 28 * 28, "max_pixels": 1003520}
    return Qwen2VLProcessor(
        image_processor=Qwen2VLImageProcessor(**pixels),
        tokenizer=tokenizer or qwen_tokenizer(),
        video_processor=Qwen2VLVideoProcessor(**pixels),
        chat_template=chat_template,
    )


def pixtral_processor() -> ProcessorMixin:
    """The Mistral 3 processor of FLUX.2."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    special = ("<unk>", "<s>", "</s>", "<pad>", "[IMG]", "[IMG_BREAK]", "[IMG_END]")
    model = models.BPE(vocab={c: i for i, c in enumerate((*special, *byte_characters()))}, merges=[])
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        additional_special_tokens=list(special[4:]),
        model_max_length=2048,
    )
    return PixtralProcessor(
        image_processor=PixtralImageProcessor(patch_size=14), tokenizer=tokenizer, patch_size=14, chat_template=_PARTS
    )


def llama_tokenizer() -> LlamaTokenizer:
    """OmniGen's tokenizer (Phi-3's format) with one token per byte and the chat tags."""
    tags = ("<|user|>", "<|assistant|>", "<|end|>", "<|diffusion|>")
    pieces = ("<unk>", "<s>", "</s>", *tags, *(f"<0x{b:02X}>" for b in range(256)), "▁")
    return LlamaTokenizer(
        vocab={piece: i for i, piece in enumerate(pieces)},
        merges=[],
        additional_special_tokens=list(tags),
        model_max_length=4096,
    )


def clip_image_processor(size: int = 224) -> CLIPImageProcessor:
    """The image processor of a CLIP image encoder, at `size` x `size`."""
    return CLIPImageProcessor(size={"shortest_edge": size}, crop_size={"height": size, "width": size})
