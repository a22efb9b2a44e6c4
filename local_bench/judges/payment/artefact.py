"""The artefact of a training: `adapters.safetensors`, `heads.safetensors` and `card.json` in one folder; and its
predictions, with batch size 1 and adapters not merged, so that one depends on nothing but its example.

The card has the digests of everything that a prediction depends on; `load_card` and `check` refuse what differs.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
import torch
from pydantic import Field

from local_bench.core import __version__
from local_bench.core.errors import ImageError, UserError, WeightsError
from local_bench.core.files import write_atomic
from local_bench.core.types import digest
from local_bench.core.yamlfile import Strict
from local_bench.judges.payment.data import CONCEPTS, CheckedCard, Example, Load, PaymentConfig
from local_bench.judges.payment.inputs import CAPTIONS, Encoder, TooLong
from local_bench.judges.payment.network import PaymentNetwork, load_network, load_processor, set_up_device
from local_bench.models.manifest import file_digests, file_sha256
from local_bench.models.tensors import load_tensors
from local_bench.models.weights import resolve, weights_digest

ADAPTERS, HEADS = "adapters.safetensors", "heads.safetensors"
NOT_JUDGED = "no judge has scored it, and the payment model reads a judge's scores"
State = dict[str, torch.Tensor]


def save_tensors(path: Path, tensors: State, metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file atomically. Raises StorageError."""
    on_cpu = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    write_atomic(path, safetensors.torch.save(on_cpu, metadata))


class Base(Strict):
    """The backbone."""

    card: str
    weights: str
    """Digest of all files that it is loaded from."""
    processor: str
    """Digest of the files of its tokenizer, chat template and image processor."""


class TrainedOn(Strict):
    """The training data."""

    manifest_sha256: str
    n_images: dict[str, int]
    """By split."""
    n_labelled: dict[str, int]
    tasks: dict[str, list[str]]
    """Tasks by split."""


class Card(CheckedCard):
    """The contents of `card.json`."""

    FILE = "card.json"
    WHAT = "payment model"

    kind: Literal["servimage"] = "servimage"
    base: Base
    config: PaymentConfig
    """All settings, with the prompt and the seed."""
    prompt_sha256: str = ""
    """Digest of the prompt and the images' captions."""
    measured_names: list[str]
    """The measured scores that are inputs, in order."""
    precision: str
    trained_on: TrainedOn
    n_processes: int
    libraries: dict[str, str]
    metrics: dict[str, Any]
    files: dict[str, str] = Field(default={})
    """File -> sha256."""


def base_of(card: str, folder: Path) -> Base:
    """The backbone `card` with its files in `folder`: the digests of the weights with all files that the model is
    loaded from, and of the processor's files alone."""
    names = sorted(p.name for p in folder.iterdir() if p.suffix in (".json", ".jinja", ".txt") and p.is_file())
    processor = [name for name in names if not name.endswith(".index.json") and name != "config.json"]
    return Base(card=card, weights=weights_digest(folder), processor=digest(file_digests(folder, processor)))


def prompt_digest(config: PaymentConfig) -> str:
    return digest([config.prompt.model_dump(), CAPTIONS])


def libraries() -> dict[str, str]:
    """Versions of what computes a prediction."""
    names = ("torch", "transformers", "peft", "accelerate", "pillow", "tokenizers")
    return {"local-bench": __version__} | {name: version(name) for name in names}


def save_artefact(folder: Path, card: Card, state: State) -> Card:
    """Write the artefact, `card.json` last; returns the card with its digests."""
    adapters = {name: value for name, value in state.items() if ".lora_" in name}
    parts = {ADAPTERS: adapters, HEADS: {name: value for name, value in state.items() if name not in adapters}}
    files = {}
    for name, tensors in parts.items():
        save_tensors(folder / name, tensors)
        files[name] = file_sha256(folder / name)
    card = card.model_copy(update={"files": files, "prompt_sha256": prompt_digest(card.config)}).with_digest()
    card.write(folder)
    return card


def load_card(folder: Path) -> Card:
    """Read and check the card and the files' digests. UserError if the artefact is missing, damaged or altered."""
    card = Card.read(folder)
    for name in (ADAPTERS, HEADS):
        path = folder / name
        if not path.is_file() or file_sha256(path) != card.files.get(name):
            state = "was altered after training" if path.is_file() else "is missing"
            raise UserError(f"{path} {state}: restore it, or train the model again")
    return card


def check(card: Card, base: Base) -> None:
    """UserError with the first difference between what the model was trained with and what is here."""
    for name, value in base.model_dump().items():
        if getattr(card.base, name) != value:
            raise UserError(
                f"the {name} of {base.card} differs from that of the payment model's training: use the same weights"
            )
    if card.prompt_sha256 != prompt_digest(card.config):
        raise UserError("the prompt of this release differs from that of the training: train the payment model again")
    here = libraries()
    other = next((name for name, version in card.libraries.items() if here.get(name) != version), None)
    if other is not None:
        raise UserError(
            f"the payment model was trained with {other} {card.libraries[other]}, and this is {here.get(other)}: "
            "install that version, or train it again"
        )


@dataclass(frozen=True)
class Prediction:
    """The model's prediction for one image."""

    work_id: str
    log_odds: float | None
    """Of payment, not calibrated."""
    concepts: dict[str, float]
    """Predicted scores, 0 to 5; empty for a model without concepts."""
    unscored: str | None
    """Why there is no prediction."""


@dataclass(frozen=True)
class PaymentModel:
    """A trained model on a device."""

    card: Card
    network: PaymentNetwork
    processor: Any
    device: torch.device

    def predict(self, examples: Iterable[Example], images: Load) -> Iterator[Prediction]:
        """Yield a prediction per example, in order; labels are not used. `images` loads by pixel digest."""
        encoder = Encoder(self.processor, self.card.config, images)
        for example in examples:
            try:
                yield self._predicted(example, encoder)
            except (ImageError, TooLong) as e:
                yield Prediction(example.work_id, None, {}, str(e))

    @torch.no_grad()
    def _predicted(self, example: Example, encoder: Encoder) -> Prediction:
        network = self.network
        if network.config.measured and len(example.measured) != len(self.card.measured_names):
            raise UserError("the examples lack the measured scores that the payment model needs: judge the run first")
        if network.config.measured and all(map(math.isnan, example.measured)):
            return Prediction(example.work_id, None, {}, NOT_JUDGED)
        batch = encoder.batch([example], self.device)
        mixed = self.card.precision == "bfloat16" and self.device.type == "cuda"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=mixed):
            constants = network.constants(batch).float()
            inputs = torch.tensor([network.given_inputs(example)], device=self.device)
            logit = float(network.payment_logits(batch, constants, inputs)[0])
        scores = constants[0, -len(CONCEPTS) :].tolist() if network.has_concepts else []
        return Prediction(example.work_id, logit, dict(zip(CONCEPTS, scores, strict=False)), None)


def load(artefact: Path, *, device: str = "auto") -> PaymentModel:
    """Load a trained model. UserError if a byte of it was altered, or if the backbone, its processor, the prompt or a
    library differs from the training's."""
    card = load_card(artefact)
    folder = resolve(card.config.judge)
    check(card, base_of(card.config.card, folder))
    torch_device = set_up_device(device)
    network = load_network(folder, card.config, len(card.measured_names), torch_device, card.precision)
    try:
        network.load_trained(load_tensors(artefact / ADAPTERS) | load_tensors(artefact / HEADS))
    except (WeightsError, RuntimeError) as e:
        raise UserError(
            f"the tensors in {artefact} do not fit {card.config.card} ({e}): train the model again"
        ) from None
    network.begin(2)
    network.eval()
    return PaymentModel(card, network, load_processor(folder), torch_device)
