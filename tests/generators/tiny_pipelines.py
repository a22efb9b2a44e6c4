"""Small random checkpoints of diffusers' pipelines, from the components of `tiny_pipelines.yaml`."""

import atexit
import inspect
import json
import shutil
import string
import tempfile
from pathlib import Path
from typing import Any

import diffusers
import sentencepiece
import torch
import transformers
from diffusers.pipelines.deprecated.wuerstchen.modeling_paella_vq_model import PaellaVQModel
from diffusers.pipelines.kandinsky.text_encoder import MultilingualCLIP
from diffusers.pipelines.kolors.text_encoder import ChatGLMModel
from diffusers.pipelines.kolors.tokenizer import ChatGLMTokenizer
from pydantic import Field
from tokenizers.processors import TemplateProcessing

from local_bench.core.yamlfile import Strict, load_yaml
from local_bench.generators import tokenizers
from local_bench.generators.architecture import Pieces, build, pieces
from local_bench.models.cards import card

FILE = Path(__file__).with_name("tiny_pipelines.yaml")


class Table(Strict):
    pieces: dict[str, Any]
    pipelines: dict[str, dict[str, Any]] = Field(min_length=1)


def table() -> dict[str, dict[str, Any]]:
    """Pipeline class -> its components; the pieces of the file can be built afterwards."""
    found = load_yaml(FILE, Table)
    pieces().update(Pieces.model_validate({"pieces": found.pieces}).pieces)
    for cls in (PaellaVQModel,):  # exported only by the pipeline's module
        setattr(diffusers, cls.__name__, cls)
    for cls in (MultilingualCLIP, ChatGLMModel):  # they are made from a config object, as those of transformers
        setattr(transformers, cls.__name__, cls)
    for function in TOKENIZERS:
        setattr(tokenizers, function.__name__, function)
    return found.pipelines


def save(name: str, components: dict[str, Any], folder: Path) -> Path:
    """Write the checkpoint of the pipeline class `name`."""
    if "card" in components:
        components = dict(card(components["card"], "generator").architecture)
    cls = getattr(diffusers, name)
    parts = {k: build(v, "cpu", torch.float32) if isinstance(v, str) else v for k, v in components.items()}
    for part in parts.values():
        if isinstance(part, diffusers.PriorTransformer):  # zero as initialised, so that each embedding would be zero
            part.clip_std.data.fill_(1.0)
        if isinstance(part, ChatGLMModel):  # its layers are made without initialisation
            generator = torch.Generator().manual_seed(0)
            for weight in part.parameters():
                weight.data.normal_(0, 0.2, generator=generator)
    required = [k for k, p in inspect.signature(cls.__init__).parameters.items() if p.default is p.empty]
    absent = {k: None for k in required if k not in parts and k not in ("self", "args", "kwargs")}
    cls(**absent, **parts).save_pretrained(folder)
    if name == "PRXPipeline":  # diffusers puts this class into transformers, from where published indexes load it
        index = json.loads((folder / "model_index.json").read_text())
        index["text_encoder"] = ["transformers", "T5GemmaEncoder"]
        (folder / "model_index.json").write_text(json.dumps(index))
    return folder


def gemma_tokenizer() -> transformers.PreTrainedTokenizerBase:
    """With a first token, so that an empty prompt is not empty."""
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.llama_tokenizer().backend_tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        model_max_length=512,
    )
    first = TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)])
    tokenizer.backend_tokenizer.post_processor = first
    tokenizer.pad_token = "</s>"
    tokenizer.padding_side = "right"
    return tokenizer


def byt5_tokenizer() -> transformers.ByT5Tokenizer:
    return transformers.ByT5Tokenizer()


def qwen3_vl_processor() -> transformers.Qwen3VLProcessor:
    pixels: dict[str, Any] = {"patch_size": 16, "merge_size": 2, "temporal_patch_size": 2}
    pixels |= {"size": {"shortest_edge": 32 * 32, "longest_edge": 128 * 128}}
    tokenizer = tokenizers.qwen_tokenizer()
    tokenizer.chat_template = _TURNS
    return transformers.Qwen3VLProcessor(
        image_processor=transformers.Qwen2VLImageProcessor(**pixels),
        tokenizer=tokenizer,
        video_processor=transformers.Qwen3VLVideoProcessor(**pixels),
        chat_template=_TURNS,
    )


_TURNS = """\
{%- for message in messages -%}<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content -%}
{%- if part.type == 'text' %}{{ part.text }}{% else %}<|vision_start|><|image_pad|><|vision_end|>{% endif -%}
{%- endfor %}{% endif %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}"""


def bert_tokenizer() -> transformers.BertTokenizer:
    letters = [*string.printable.strip(), *(f"##{c}" for c in string.printable.strip())]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters]
    return transformers.BertTokenizer(vocab={piece: i for i, piece in enumerate(pieces)}, model_max_length=77)


def xlm_tokenizer() -> transformers.XLMRobertaTokenizer:
    special = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    letters = [(c, -float(i + 1)) for i, c in enumerate(("▁", *string.printable.strip()))]
    return transformers.XLMRobertaTokenizer(vocab=[*special, *letters, ("<mask>", 0.0)], model_max_length=77)


def chatglm_tokenizer() -> ChatGLMTokenizer:
    """Of characters; its class reads a file of SentencePiece."""
    folder = tempfile.mkdtemp(prefix="chatglm-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([string.printable]),
        model_prefix=f"{folder}/tokenizer",
        model_type="char",
        vocab_size=80,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return ChatGLMTokenizer(f"{folder}/tokenizer.model")


def dpt_processor() -> Any:
    return transformers.DPTImageProcessor(size={"height": 64, "width": 64})


def siglip2_processor() -> Any:
    return transformers.Siglip2ImageProcessor(max_num_patches=16, patch_size=16)


TOKENIZERS = (
    *(gemma_tokenizer, byt5_tokenizer, qwen3_vl_processor, bert_tokenizer, xlm_tokenizer),
    *(chatglm_tokenizer, dpt_processor, siglip2_processor),
)
