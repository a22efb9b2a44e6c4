"""The family `diffusers`: any pipeline that `DiffusionPipeline` loads by its model_index.json, one call per image.

Nothing is staged: encoders, denoiser and VAE are loaded together, and each image is one call of the pipeline with its
own CPU generator. torch's, numpy's and Python's global generators are seeded too, for pipelines that ignore theirs.
Which arguments the pipeline takes is read from the signature of its `__call__`.
"""

import inspect
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import diffusers
import numpy as np
import torch
from diffusers import DiffusionPipeline
from PIL import Image

from local_bench.core.errors import ConfigError, WeightsError
from local_bench.core.images import ALPHA_ON
from local_bench.generators.base import EncodedPrompt, GenerationRequest, Item
from local_bench.generators.device import attend, place_denoiser
from local_bench.generators.lora import fuse_adapters
from local_bench.generators.registry import Sampler
from local_bench.generators.staged import Staged
from local_bench.models.cards import ModelCard
from local_bench.models.vet import UNUSED, listing_of

IMAGES = ("image", "images", "input_images", "input_image", "control_image")
SECOND_IMAGES = ("control_image", "image_reference")
"""Parameters for the second input image; the first is in one of IMAGES."""
MASKS = ("mask_image", "mask")
IMAGE_GUIDANCE = ("image_guidance_scale", "img_guidance_scale")
OWN_SIZE = ("LongCatImageEditPipeline", "QwenImageLayeredPipeline")
"""Pipelines without `height` that compute a size of about 1 megapixel; the images of others are as large as the first
input image, which is therefore resized to the planned size."""
SIZE_OF_SOURCE = ("KolorsImg2ImgPipeline", "ZImageImg2ImgPipeline", "ZImageInpaintPipeline")
"""Pipelines with `height` that fail, or make images of the input image's size, if that is another one."""
_REQUIRED = ("prompt", "generator", "output_type")
_OWN = {*_REQUIRED, *IMAGES, *SECOND_IMAGES, *MASKS, "return_dict", "height", "width", "num_images_per_prompt"}
"""Arguments that are not the card's to set."""


@dataclass(frozen=True)
class Arguments:
    """How a pipeline is called, from the parameters of its `__call__`."""

    names: frozenset[str]
    image: str | None
    """The parameter for input images; None: it takes none."""
    second_image: str | None
    """The parameter for the second input image; None: `image` has all."""
    mask: str | None
    image_guidance: str | None

    @property
    def inputs(self) -> dict[str, str | None]:
        """The parameter of each kind of input; None: the pipeline takes none."""
        negative = "negative_prompt" if "negative_prompt" in self.names else None
        return {"image": self.image, "mask": self.mask, "negative_prompt": negative}


def pipeline_class(name: object, where: str) -> type:
    """diffusers' pipeline of this name. WeightsError, naming `where`, if it has none."""
    pipeline = getattr(diffusers, str(name), None)
    if not (isinstance(pipeline, type) and issubclass(pipeline, DiffusionPipeline)):
        raise WeightsError(f"{where}: diffusers {diffusers.__version__} has no pipeline {name!r}: update local-bench")
    return pipeline


def arguments_of(pipeline: type, card: ModelCard) -> Arguments:
    """ConfigError if the pipeline cannot be called as the card says: a setting, an input or an argument of `call` is
    not a parameter, or a parameter without a default is not given."""
    parameters = inspect.signature(pipeline.__call__).parameters
    names = frozenset(parameters)
    image = _first(IMAGES, names)
    others = (_first(parameter, names - {image}) for parameter in (SECOND_IMAGES, MASKS, IMAGE_GUIDANCE))
    arguments = Arguments(names, image, *others)
    absent = [name for name in _REQUIRED if name not in names]
    if absent:
        raise ConfigError(f"{card.name}: {pipeline.__name__} has no {', '.join(absent)}: it cannot be run")
    passed = {"self", "prompt", arguments.image, arguments.mask, *card.call}
    needed = sorted(
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty and name not in passed and parameter.kind != parameter.VAR_KEYWORD
    )
    if needed:
        raise ConfigError(
            f"{card.name}: {pipeline.__name__} needs {', '.join(needed)}, which other pipelines compute: use the "
            "pipeline that combines them, if there is one"
        )
    settings = {name for name, value in card.sampler.model_dump().items() if value is not None} - {"height", "width"}
    called = {"image_guidance_scale": arguments.image_guidance}
    unknown = sorted(name for name in settings | card.call.keys() if called.get(name, name) not in names)
    if unknown:
        taken = ", ".join(sorted(names - _OWN - {"self"}))
        raise ConfigError(f"{card.name}: {pipeline.__name__} has no {', '.join(unknown)}; its arguments are {taken}")
    reserved = sorted(card.call.keys() & {*_OWN, *(called.get(name, name) for name in settings)})
    if reserved:  # those of `sampler` would be overridden, in a config too
        raise ConfigError(f"{card.name}: call: {', '.join(reserved)} is set for each image: remove it")
    if card.takes.pictures and arguments.image is None:
        raise ConfigError(f"{card.name}: {pipeline.__name__} takes no input image: set takes.pictures to 0")
    if card.takes.mask and arguments.mask is None:
        raise ConfigError(f"{card.name}: {pipeline.__name__} takes no mask: set takes.mask to false")
    return arguments


def _first(names: Sequence[str], available: frozenset[str]) -> str | None:
    return next((name for name in names if name in available), None)


class AnyPipeline(Staged):
    pipeline = DiffusionPipeline
    encoders = ()
    attention = "native"
    _takes: Arguments

    def load_encoder(self) -> None:
        """Do nothing: the pipeline encodes the prompt itself."""

    def encode_text(self, request: GenerationRequest) -> EncodedPrompt:
        return EncodedPrompt({})

    def load_denoiser(self) -> None:
        """ConfigError if the pipeline cannot be called as the card says."""
        if self.weights is None:
            raise ConfigError(f"{self.card.name}: the family `diffusers` has no random weights: remove `load: random`")
        index = listing_of(self.weights).index or {}
        self.pipe = self._load([name for name in UNUSED if name in index])
        kind = type(self.pipe).__name__
        if self.card.pipeline not in (None, kind):
            raise ConfigError(f"{self.card.name}: the card has pipeline: {self.card.pipeline}, the model is a {kind}")
        self._takes = arguments_of(type(self.pipe), self.card)
        fuse_adapters(self.pipe, self._denoiser, self.card.lora, self.parts, self.card.name)
        if "denoise" in self.machine.offload and self.machine.device.type == "cuda":
            if self.pipe.model_cpu_offload_seq is None:
                raise ConfigError(
                    f"{self.card.name}: its components do not fit {self.machine.device} together, and "
                    f"{type(self.pipe).__name__} cannot move them one by one: use a GPU with more memory"
                )
            self.pipe.enable_model_cpu_offload(device=self.machine.device)
        else:
            place_denoiser(self.pipe, self._denoiser, self.machine)

    @property
    def _denoiser(self) -> str:
        """The component with most parameters of those that pipelines name so, else of all."""
        modules = {n: part for n, part in self.pipe.components.items() if isinstance(part, torch.nn.Module)}
        usual = {name: part for name, part in modules.items() if name in ("transformer", "unet", "prior")} or modules
        sizes: dict[str, int] = {name: sum(w.numel() for w in part.parameters()) for name, part in usual.items()}
        return max(sizes, key=sizes.__getitem__)

    def denoise(self, items: Sequence[Item]) -> torch.Tensor:
        """One image in [0, 1], (1, height, width, 1, 3 or 4), on the host. ConfigError if there are several."""
        (item,) = items
        denoiser = getattr(self.pipe, self._denoiser)
        with torch.inference_mode(), _seeded(item.seed, self.machine.device), attend(denoiser, self.machine):
            output = self.pipe(
                **self._arguments(item.request),
                generator=torch.Generator("cpu").manual_seed(item.seed),
                output_type="np",
                return_dict=False,
            )
        output = output[0] if isinstance(output, tuple) else output  # Stable Cascade returns the images alone
        image = torch.as_tensor(np.asarray(output[0], dtype=np.float32))
        if len(output) > 1 or image.shape[:-3].numel() > 1:
            raise ConfigError(f"{self.card.name}: {type(self.pipe).__name__} returns several images (layers or frames)")
        return image.reshape(1, *image.shape[-3:])

    def _arguments(self, request: GenerationRequest) -> Mapping[str, Any]:
        takes, sampler = self._takes, request.sampler
        named = {name: value for name, value in asdict(sampler).items() if value is not None and name in takes.names}
        named |= {"prompt": request.prompt, **self.card.call}
        if takes.image_guidance and sampler.image_guidance_scale is not None:
            named[takes.image_guidance] = sampler.image_guidance_scale
        images = [image.pixels for image in request.input_images]
        kind = type(self.pipe).__name__
        if images and (kind in SIZE_OF_SOURCE or ("height" not in takes.names and kind not in OWN_SIZE)):
            images[0] = images[0].resize((sampler.width, sampler.height), Image.Resampling.LANCZOS)
        if takes.second_image and len(images) > 1:
            named[takes.second_image] = images.pop(1)
        if images and takes.image:
            named[takes.image] = images if takes.image.endswith("s") or len(images) > 1 else images[0]
        if request.mask and takes.mask:
            named[takes.mask] = request.mask.pixels.convert("L")
        return named

    def pixels(self, latents: torch.Tensor, sampler: Sampler) -> torch.Tensor:
        self.finite = latents.isfinite().flatten(1).all(1)
        rgb8 = (latents.nan_to_num(0).clamp(0, 1) * 255).round().to(torch.uint8)
        if rgb8.shape[-1] != 4:
            return rgb8.expand(*rgb8.shape[:3], 3)
        opaque = []  # an image with an alpha channel (Qwen-Image-2.1) as `core.images` reads it
        for image in map(Image.fromarray, rgb8.numpy()):
            ground = Image.new("RGB", image.size, ALPHA_ON)
            ground.paste(image, mask=image.getchannel("A"))
            opaque.append(torch.from_numpy(np.array(ground)))
        return torch.stack(opaque)


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the global generators, and restore them afterwards."""
    numpys, pythons = np.random.get_state(), random.getstate()
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(numpys)
            random.setstate(pythons)
