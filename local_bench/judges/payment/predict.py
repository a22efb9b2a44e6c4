"""Predictions of a trained payment model: batch size 1, adapters not merged, so that a prediction depends on nothing
but its example."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from local_bench.core.errors import ImageError, UserError, WeightsError
from local_bench.core.tensors import load_tensors
from local_bench.judges.payment.artefact import ADAPTERS, HEADS, Card, base_of, check, load_card
from local_bench.judges.payment.backbone import device_of, load_processor
from local_bench.judges.payment.examples import CONCEPTS, Example, Load
from local_bench.judges.payment.inputs import Encoder, TooLong
from local_bench.judges.payment.network import PaymentNetwork, load_network
from local_bench.models.weights import resolve

NOT_JUDGED = "no judge has scored it, and the payment model reads a judge's scores"


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
    torch_device = device_of(device)
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
