"""Check of a metric's network (DINOv2): batch invariance."""

import numpy as np

from local_bench.judges.metrics.dino_ref import DinoNetwork
from local_bench.judges.metrics.registry import Weights
from local_bench.models.cards import card
from local_bench.models.weights import resolve
from local_bench.runs.gpu_check.checks import CheckFailed, CheckPassed, Session
from local_bench.runs.gpu_check.models import noise

NETWORK = "tiny-dinov2"
_TOLERANCE = 1e-4
"""Tolerance of the network's normalised output; batches round in a different order."""
_BATCH = 8


def check_network(session: Session) -> CheckPassed:
    """Check that the network's output for an image is equal alone and in a batch."""
    described = card(NETWORK, "metric")
    network = DinoNetwork(Weights(described, resolve(described), {}))
    images = [network.prepare([noise(i, 96)], None) for i in range(_BATCH)]
    network.open(str(session.device))
    try:
        together = np.stack(network.run(images))
        alone = np.stack([network.run([image])[0] for image in images])
    finally:
        network.close()
    difference = float(np.abs(together - alone).max())
    spread = float(np.abs(together[0] - together[1:]).max())
    figures = {"card": NETWORK, "batch_size": _BATCH, "max_difference": difference}
    text = f"{NETWORK}: alone and in a batch of {_BATCH} differ by {difference:.1e}"
    if not np.isfinite(together).all() or difference > _TOLERANCE or spread <= _TOLERANCE:
        raise CheckFailed(f"{text}; at most {_TOLERANCE:g} is allowed, images differ by {spread:.1e}", figures)
    return CheckPassed(text, figures)
