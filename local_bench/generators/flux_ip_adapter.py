"""IP-Adapter on FLUX.1 [dev]: conditions on a reference image through CLIP, in addition to the prompt.

The adapter's weights are added to the transformer. Its image encoder is used before the transformer is loaded and then
released, like the other encoders. Both are loaded from the model's folder or from `parts` of the card.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import CLIPImageProcessor, CLIPVisionModelWithProjection

from local_bench.core.identity import seed_of
from local_bench.generators.base import EncodedPrompt, InputImage, Item
from local_bench.generators.flux import Flux
from local_bench.generators.sampler import Sampler

ADAPTER = "ip_adapter.safetensors"


class FluxIpAdapter(Flux):
    def load_encoder(self) -> None:
        super().load_encoder()
        folder = self.parts.get("image_encoder")
        if folder is not None:
            encoder = CLIPVisionModelWithProjection.from_pretrained(
                folder, dtype=self.machine.dtype, local_files_only=True, use_safetensors=True
            )
            processor = CLIPImageProcessor.from_pretrained(folder, local_files_only=True)
            self.pipe.register_modules(image_encoder=encoder.to(self.machine.device), feature_extractor=processor)

    def encode_image(self, input_image: InputImage, sampler: Sampler) -> EncodedPrompt:
        with torch.inference_mode():
            embeds = self.pipe.encode_image(input_image.pixels, self.machine.device, 1)
        return EncodedPrompt({"image_embeds": embeds[:, None].cpu()})  # (1, 1 image, projection)

    def call(self, items: Sequence[Item], generators: list[torch.Generator]) -> dict[str, Any]:
        arguments = super().call(items, generators)
        self.pipe.set_ip_adapter_scale(items[0].request.sampler.adapter_scale)
        if items[0].input_images:
            embeds = torch.cat([item.input_images[0].tensors["image_embeds"] for item in items])
            embeds = embeds.to(self.machine.device, self.machine.dtype)
            # directly to the transformer: the pipeline's own argument would repeat a batch of images for every prompt
            arguments["joint_attention_kwargs"] = {"ip_adapter_image_embeds": [embeds]}
        return arguments

    def _load(self, without: Sequence[str]) -> Any:
        pipe = super()._load(without)
        if pipe.transformer is not None:
            if self.weights is None:
                state = _random_adapter(pipe.transformer)
                pipe.transformer._load_ip_adapter_weights([_by_part(state)])
            else:
                folder = self.parts.get("adapter", self.weights / "ip_adapter")
                pipe.load_ip_adapter(
                    str(folder),
                    weight_name=ADAPTER,
                    image_encoder_pretrained_model_name_or_path=None,
                    local_files_only=True,
                )
            pipe.transformer.to(self.machine.dtype)
        return pipe

    @classmethod
    def save(cls, folder: Path, parts: dict[str, Any]) -> None:
        super().save(folder, parts)
        (folder / "ip_adapter").mkdir()
        save_file(_random_adapter(parts["transformer"]), folder / "ip_adapter" / ADAPTER)


def adapter_tokens(transformer: Any) -> int:
    """Number of text tokens per image: 16 in the published adapter, 4 in a small one."""
    return 16 if transformer.config.joint_attention_dim == 4096 else 4


def adapter_layers(transformer: Any) -> dict[str, tuple[int, int]]:
    """The adapter's linear layers under their published names, with (rows, columns): the projection of an image's
    embedding onto text tokens, then keys and values for each double block. For a transformer whose pooled text has the
    image encoder's width."""
    config = transformer.config
    width, text = transformer.inner_dim, config.joint_attention_dim
    layers = {"ip_adapter_proj_model.proj": (adapter_tokens(transformer) * text, config.pooled_projection_dim)}
    for i in range(config.num_layers):
        for part in "kv":
            layers[f"double_blocks.{i}.processor.ip_adapter_double_stream_{part}_proj"] = (width, text)
    return layers


def _random_adapter(transformer: Any) -> dict[str, torch.Tensor]:
    """Seeded random weights with the published names."""
    text = transformer.config.joint_attention_dim
    generator = torch.Generator("cpu").manual_seed(seed_of("ip-adapter"))
    state = {
        "ip_adapter_proj_model.norm.weight": torch.ones(text),
        "ip_adapter_proj_model.norm.bias": torch.zeros(text),
    }
    for name, (rows, columns) in adapter_layers(transformer).items():
        state[f"{name}.weight"] = 8 * torch.randn((rows, columns), generator=generator) / columns**0.5
        state[f"{name}.bias"] = torch.zeros(rows)
    return state


def _by_part(state: dict[str, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    """Convert the published names to those that the transformer's loader expects."""
    split: dict[str, dict[str, torch.Tensor]] = {"image_proj": {}, "ip_adapter": {}}
    for name, tensor in state.items():
        part = "image_proj" if name.startswith("ip_adapter_proj_model") else "ip_adapter"
        short = name.partition(".")[2].replace("processor.", "")
        short = short.replace("ip_adapter_double_stream_k_proj", "to_k_ip")
        split[part][short.replace("ip_adapter_double_stream_v_proj", "to_v_ip")] = tensor
    return split
