"""Networks that predict how people judge an image: HPSv2.1, PickScore and ImageReward with its prompt, two aesthetic
predictors without."""

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from PIL import Image

from local_bench.core.errors import WeightsError
from local_bench.core.files import read_text
from local_bench.core.images import MAX_PIXELS
from local_bench.judges.metrics.base import Array, Weights, WeightsNetwork
from local_bench.judges.metrics.embeddings import (
    ClipNetwork,
    EmbeddingNetwork,
    as_clip_reads,
    clip_transform,
    fitting,
    load_transformer,
    normalised,
    read_processor,
    refuse_slender,
    remedy,
    rows,
    too_slender,
)
from local_bench.models.tensors import load_tensors

HPS_FILE = "HPS_v2.1_compressed.safetensors"
HPS_STATE = "state_dict."
"""Prefix of the weights in the published checkpoint."""
HPS_SIDE_PX = 224
HPS_TEXT_HEAD_WIDTH = 64
"""Width of each attention head of ViT-H/14's text tower."""
V2_5_HEAD = "aesthetic_predictor_v2_5.safetensors"
LAION_HEAD = "sac+logos+ava1-l14-linearMSE.safetensors"
HEIGHT_PX = 1024
_HEAD_LAYERS = 5
REWARD_FILE = "ImageReward.safetensors"
REWARD_SIDE_PX = 224
REWARD_TOKENS = 35
REWARD_MEAN, REWARD_STD = 0.16717362830052426, 1.0333394966054072
REWARD_VISION, REWARD_TEXT, REWARD_HEAD = "blip.visual_encoder.", "blip.text_encoder.", "mlp."
BLIP_HEAD_WIDTH = 64
"""Width of each attention head of BLIP's encoders."""
BLIP_NAMES = (
    (r"^cls_token$", "embeddings.class_embedding"),
    (r"^pos_embed$", "embeddings.position_embedding"),
    (r"^patch_embed\.proj\.", "embeddings.patch_embedding."),
    (r"^blocks\.(\d+)\.norm", r"encoder.layers.\1.layer_norm"),
    (r"^blocks\.(\d+)\.attn\.proj\.", r"encoder.layers.\1.self_attn.projection."),
    (r"^blocks\.(\d+)\.attn\.", r"encoder.layers.\1.self_attn."),
    (r"^blocks\.", "encoder.layers."),
    (r"^norm\.", "post_layernorm."),
)
"""Names in the image encoder of the checkpoint and in transformers; those of the text encoder are equal."""


class HpsNetwork(ClipNetwork):
    """HPSv2.1: predicted human preference for an image and its prompt, from a fine-tuned CLIP ViT-H/14.

    Wu et al. 2023, "Human Preference Score v2" (arXiv 2306.09341); github.com/tgxs002/HPSv2, hpsv2/img_score.py
    (`score`) and hpsv2/src/open_clip/transform.py (`ResizeMaxSize`): the cosine of the embeddings, of which papers
    print 100 times the mean. In [-1, 1], higher is better; typical values are 0.2 to 0.35. As there, images are resized
    as float tensors, here with the antialiasing of torchvision 0.17 and later; earlier versions, and so the authors'
    tables, have none. The authors' code runs in float16 on a GPU and fails for images that are 224 px long and not
    square.
    """

    def __init__(self, weights: Weights) -> None:
        from open_clip import OPENAI_DATASET_MEAN, OPENAI_DATASET_STD

        self._weights, self._side_px, self._tokens = weights, HPS_SIDE_PX, 77
        self.details = {"quick_gelu": False, "tokens": 77, "text": "as open_clip's SimpleTokenizer"}
        self.transform = padded
        self.description = (
            f"/255, longest side to {HPS_SIDE_PX} px (float tensor, bicubic, antialiased), padded to "
            f"{HPS_SIDE_PX}x{HPS_SIDE_PX} with black on both sides, "
            f"{normalised(OPENAI_DATASET_MEAN, OPENAI_DATASET_STD)}"
        )

    def load(self, device: str) -> Any:
        """open_clip's CLIP with the published checkpoint, in the sizes of its tensors."""
        from open_clip import CLIP, get_model_config

        path, prefix = self._weights.folder / HPS_FILE, HPS_STATE
        with fitting(path, "HPS v2.1's checkpoint", self._weights):
            state = _below(load_tensors(path), prefix)
            vision, text = (get_model_config("ViT-H-14")[tower] for tower in ("vision_cfg", "text_cfg"))
            blocks = [n for n in state if n.endswith(".attn.in_proj_weight")]
            vision["layers"] = sum(n.startswith("visual.") for n in blocks)
            vision["width"], _, vision["patch_size"], _ = state["visual.conv1.weight"].shape
            text["layers"] = len(blocks) - vision["layers"]
            text["width"], embed_dim = state["text_projection"].shape
            text["heads"] = text["width"] // HPS_TEXT_HEAD_WIDTH
            model = CLIP(embed_dim, vision, text)
            model.load_state_dict(state, strict=True)
        return model.eval().to(device)

    @cached_property
    def _tokenizer(self) -> Any:
        from open_clip import SimpleTokenizer

        return SimpleTokenizer()


def padded(image: Image.Image) -> torch.Tensor:
    """HPS's preprocessed image, (3, 224, 224) float32. Unscorable if its shorter side would have no pixel."""
    from open_clip import OPENAI_DATASET_MEAN, OPENAI_DATASET_STD
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms import functional as F

    scale = HPS_SIDE_PX / max(image.size)
    height, width = round(image.height * scale), round(image.width * scale)
    if not height or not width:
        raise too_slender(image)
    tensor = F.resize(F.to_tensor(image), [height, width], InterpolationMode.BICUBIC, antialias=True)
    left, top = (HPS_SIDE_PX - width) // 2, (HPS_SIDE_PX - height) // 2
    tensor = F.pad(tensor, [left, top, HPS_SIDE_PX - width - left, HPS_SIDE_PX - height - top])
    normalized: torch.Tensor = F.normalize(tensor, OPENAI_DATASET_MEAN, OPENAI_DATASET_STD)
    return normalized


class PickNetwork(ClipNetwork):
    """PickScore: predicted human preference for an image and its prompt, from a fine-tuned CLIP ViT-H/14. Embeddings of
    images have norm 1, those of texts norm exp(logit_scale).

    Kirstain et al. 2023, "Pick-a-Pic" (arXiv 2305.01569); github.com/yuvalkirstain/PickScore, README.md, "Inference
    with PickScore": exp(logit_scale) times the cosine of the embeddings by transformers' CLIPModel, inputs by the
    processor of laion/CLIP-ViT-H-14-laion2B-s32B-b79K, whose settings are CLIP's defaults. Higher is better; typical
    values are 17 to 25. The softmax over several images in that code is not applied.
    """

    model = "transformers CLIPModel"
    output = "image: normalised embedding; text: normalised embedding times exp(logit_scale)"

    def __init__(self, weights: Weights) -> None:
        from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

        self._weights, self._side_px, self._tokens = weights, 224, 77
        self.details = {"quick_gelu": False, "tokens": 77}
        processor = CLIPImageProcessorPil()
        self.transform = lambda image: processor(images=image, return_tensors="pt").pixel_values[0]
        self.description = (
            "shortest side to 224 px (PIL bicubic, antialiased), centre crop 224x224, "
            f"{normalised(processor.image_mean, processor.image_std)}"
        )

    def load(self, device: str) -> Any:
        from transformers import CLIPModel

        return load_transformer(self._weights, CLIPModel).to(device)

    @cached_property
    def _tokenizer(self) -> Any:
        from open_clip import SimpleTokenizer

        tokenizer = SimpleTokenizer()  # with this normalisation, the tokens are those of transformers' CLIPTokenizer
        tokenizer.clean_fn = as_clip_reads
        return tokenizer

    def embed(self, batch: torch.Tensor) -> torch.Tensor:
        if batch.is_floating_point():
            embedding = self._model.get_image_features(pixel_values=batch).pooler_output  # (batch, width)
            return torch.nn.functional.normalize(embedding, dim=-1)
        embedding = self._model.get_text_features(input_ids=batch).pooler_output
        scaled: torch.Tensor = self._model.logit_scale.exp() * torch.nn.functional.normalize(embedding, dim=-1)
        return scaled


class RewardNetwork(WeightsNetwork):
    """ImageReward: predicted human preference for an image and its prompt, from a fine-tuned BLIP ViT-L; each feature
    input is one image with one text. Arrays are (1,), the reward.

    Xu et al. 2023 (arXiv 2304.05977); github.com/THUDM/ImageReward, ImageReward/ImageReward.py (`score`, `_transform`,
    `MLP`) and models/BLIP: the prompt's text encoder attends to the image's tokens, five linear layers without
    activation functions map its first token to a number, and that is standardised by the training set's mean and
    deviation. Higher is better; most values are between -2.5 and 2. The encoders are transformers' BLIP with the
    checkpoint's names translated.
    """

    batch_size: ClassVar[dict[str, int]] = {"cpu": 8, "cuda": 64}
    tokens: ClassVar[int] = REWARD_TOKENS
    model = "transformers BlipVisionModel and BlipTextModel with cross attention, five linear layers"
    output = f"(reward - {REWARD_MEAN}) / {REWARD_STD}"
    details = MappingProxyType({"tokens": REWARD_TOKENS})

    def __init__(self, weights: Weights) -> None:
        super().__init__(weights)
        self._transform, self.description = clip_transform({"size": REWARD_SIDE_PX})

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import BertWordPieceTokenizer

        path = self._weights.parts["tokenizer"] / "vocab.txt"
        words = read_text(path, WeightsError, missing=remedy(self._weights)).removesuffix("\n").split("\n")
        try:
            return BertWordPieceTokenizer({word: i for i, word in enumerate(words)}, lowercase=True)
        except TypeError as e:
            raise WeightsError(f"{path} is not BERT's vocabulary ({e}): {remedy(self._weights)}") from e

    def tokens_if_cut(self, text: str) -> int | None:
        return REWARD_TOKENS if len(self._tokenizer.encode(text).ids) > REWARD_TOKENS else None

    def load(self, device: str) -> torch.nn.ModuleDict:
        """Image encoder, text encoder and linear layers, in float32 and the sizes of the checkpoint's tensors."""
        from transformers import BlipTextConfig, BlipTextModel, BlipVisionConfig, BlipVisionModel

        path = self._weights.folder / REWARD_FILE
        with fitting(path, "ImageReward's checkpoint", self._weights):
            state = load_tensors(path)
            vision, text, head = (_below(state, prefix) for prefix in (REWARD_VISION, REWARD_TEXT, REWARD_HEAD))
            text.pop("embeddings.position_ids", None)  # a constant
            width, _, patch, _ = vision["patch_embed.proj.weight"].shape
            of_vision = BlipVisionConfig(
                hidden_size=width,
                intermediate_size=vision["blocks.0.mlp.fc1.weight"].shape[0],
                num_hidden_layers=sum(name.endswith("attn.qkv.weight") for name in vision),
                num_attention_heads=width // BLIP_HEAD_WIDTH,
                image_size=REWARD_SIDE_PX,
                patch_size=patch,
                layer_norm_eps=1e-6,  # that of the authors' code; transformers' default is another
            )
            vocabulary, text_width = text["embeddings.word_embeddings.weight"].shape
            of_text = BlipTextConfig(
                vocab_size=vocabulary,
                hidden_size=text_width,
                encoder_hidden_size=width,
                intermediate_size=text["encoder.layer.0.intermediate.dense.weight"].shape[0],
                num_hidden_layers=sum(name.endswith("attention.self.query.weight") for name in text) // 2,
                num_attention_heads=text_width // BLIP_HEAD_WIDTH,
                max_position_embeddings=text["embeddings.position_embeddings.weight"].shape[0],
            )
            renamed = {
                next((re.sub(old, new, name) for old, new in BLIP_NAMES if re.search(old, name)), name): tensor
                for name, tensor in vision.items()
            }
            models = {"vision": BlipVisionModel(of_vision), "text": BlipTextModel(of_text, add_pooling_layer=False)}
            models["vision"].load_state_dict(renamed, strict=True)
            models["text"].load_state_dict(text, strict=True)
            return torch.nn.ModuleDict(models | {"head": linear_layers(head, "layers")}).eval().to(device)

    def prepare(self, images: Sequence[Image.Image], text: str | None) -> Any:
        refuse_slender(images[0], REWARD_SIDE_PX)
        ids = self._tokenizer.encode(text or "").ids
        ids = [*ids[: REWARD_TOKENS - 1], ids[-1]] if len(ids) > REWARD_TOKENS else ids  # the last one is [SEP]
        tokens, mask = torch.zeros(2, REWARD_TOKENS, dtype=torch.int64)
        tokens[: len(ids)], mask[: len(ids)] = torch.tensor(ids), 1
        return self._transform(images[0]), tokens, mask  # (3, 224, 224) float32, (35,) int64, (35,) int64

    @torch.inference_mode()
    def run(self, prepared: Sequence[Any]) -> list[Array]:
        pixels, tokens, mask = (torch.stack(part).to(self._device) for part in zip(*prepared, strict=True))
        image = self._model["vision"](pixel_values=pixels).last_hidden_state  # (batch, patches + 1, width)
        text = self._model["text"](input_ids=tokens, attention_mask=mask, encoder_hidden_states=image).last_hidden_state
        return rows((self._model["head"](text[:, 0]) - REWARD_MEAN) / REWARD_STD)


class AestheticNetwork(EmbeddingNetwork):
    """Aesthetic predictor v2.5: predicted human rating of an image's appearance, from a linear head on SigLIP's
    embedding; arrays are (1,), the score.

    The predictor of discus0434/aesthetic-predictor-v2-5, as used by ICE-Bench (arXiv 2503.14482, section B.1): the
    image is resized to a height of 1024 px, SigLIP so400m/14 at 384 px (Zhai et al. 2023) computes its pooled
    embedding, which is normalised and passed through five linear layers. The intended scale is 1 to 10, which a linear
    head may slightly exceed; higher is better. ICE-Bench divides the score by 10 afterwards. The official code runs in
    bfloat16; here everything is float32, so scores differ by the rounding of bfloat16.
    """

    batch_size: ClassVar[dict[str, int]] = {"cpu": 4, "cuda": 32}
    model = "transformers SiglipVisionModel"
    output = "score of the head on the normalised pooled embedding"

    def __init__(self, weights: Weights) -> None:
        """WeightsError if the folder's preprocessor_config.json is not that of SigLIP."""
        from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

        super().__init__(weights)
        self._processor = read_processor(weights, SiglipImageProcessorPil, ("height", "width"))
        size = self._processor.size
        self.description = (
            f"height to {HEIGHT_PX} px, width in proportion and rounded down, unless it has that height (PIL bicubic, "
            f"antialiased), then {size.width}x{size.height} px whatever the aspect (PIL bicubic, antialiased), "
            f"{normalised(self._processor.image_mean, self._processor.image_std)}"
        )

    def load(self, device: str) -> torch.nn.ModuleDict:
        from transformers import SiglipVisionModel

        tower = load_transformer(self._weights, SiglipVisionModel)
        head = linear_head(self._weights, V2_5_HEAD, "scoring_head")
        return torch.nn.ModuleDict({"tower": tower, "head": head}).to(device)

    def prepare(self, images: Sequence[Image.Image], text: str | None) -> torch.Tensor:
        pixels: torch.Tensor = self._processor(images=to_height(images[0]), return_tensors="pt").pixel_values[0]
        return pixels  # (3, height, width) float32

    def embed(self, batch: torch.Tensor) -> torch.Tensor:
        pooled = self._model["tower"](pixel_values=batch).pooler_output  # (batch, width)
        score: torch.Tensor = self._model["head"](pooled / pooled.norm(dim=-1, keepdim=True))
        return score


class LaionNetwork(ClipNetwork):
    """CLIP and the head; arrays are (1,), the score. Each feature input is one image.

    Schuhmann et al. 2022 (LAION-5B), the "improved aesthetic predictor" sac+logos+ava1-l14-linearMSE: CLIP ViT-L/14 at
    224 px, normalised embedding, five linear layers without activation functions. The authors' script runs CLIP in
    float16 on a GPU; here everything is float32.
    """

    reads_text: ClassVar[bool] = False
    output = "score of the head on the normalised embedding"

    def load(self, device: str) -> Any:
        self._head = linear_head(self._weights, LAION_HEAD, "layers")
        return super().load(device)

    @torch.inference_mode()
    def run(self, prepared: Sequence[Any]) -> list[Array]:
        embeddings = super().run(prepared)
        # on the host: the head is small, and its result is the same on every device
        return rows(torch.stack([self._head(torch.from_numpy(embedding)) for embedding in embeddings]))


def to_height(image: Image.Image) -> Image.Image:
    """The image resized to a height of 1024 px, as ICE-Bench compares images. Unscorable if the result would be empty
    or too large."""
    if image.height == HEIGHT_PX:
        return image
    width = int(image.width * HEIGHT_PX / image.height)
    if not 0 < width * HEIGHT_PX <= MAX_PIXELS:
        raise too_slender(image)
    return image.resize((width, HEIGHT_PX), Image.Resampling.BICUBIC)


def linear_head(weights: Weights, file: str, prefix: str) -> torch.nn.Sequential:
    """The linear layers `prefix.N` of a `file` in the part `head`. WeightsError unless they are as `linear_layers`
    requires."""
    path = weights.parts.get("head", weights.folder) / file
    with fitting(path, "the expected head", weights):
        return linear_layers(_below(load_tensors(path)), prefix)


def linear_layers(state: Mapping[str, torch.Tensor], prefix: str) -> torch.nn.Sequential:
    """The linear layers `prefix.N` in the order of N; dropout between them has no effect in evaluation. LookupError,
    ValueError or RuntimeError unless `state` has exactly five layers, of which the last has one output."""
    tensors = {name.removeprefix(f"{prefix}."): tensor for name, tensor in state.items()}
    indices = sorted(int(name.partition(".")[0]) for name in tensors if name.endswith(".weight"))
    shapes = {index: tensors[f"{index}.weight"].shape for index in indices}  # (after, before)
    layers = ((str(n), torch.nn.Linear(before, after)) for n, (after, before) in shapes.items())
    head = torch.nn.Sequential(OrderedDict(layers))
    head.load_state_dict(tensors)
    if len(indices) != _HEAD_LAYERS or shapes[indices[-1]][0] != 1:
        raise ValueError(f"{len(indices)} layers that end in {shapes[indices[-1]][0]} numbers")
    return head.eval()


def _below(state: Mapping[str, torch.Tensor], prefix: str = "") -> dict[str, torch.Tensor]:
    """The tensors under a prefix, without it, in float32."""
    return {name.removeprefix(prefix): tensor.float() for name, tensor in state.items() if name.startswith(prefix)}
