"""A metric's network, a DINOv2: alone and in a batch."""

import numpy as np

from local_bench.judges.metrics.dino_ref import DinoNetwork
from local_bench.judges.metrics.registry import Weights
from local_bench.models.cards import card
from local_bench.models.weights import resolve
from local_bench.runs.gpu_check.checks import CheckFailed, Found, Session
from local_bench.runs.gpu_check.models import noise

NETWORK = "tiny-dinov2"
_TOLERANCE = 1e-4
"""Of a network's normalised output, whose batches round in another order."""
_BATCH = 8


def check_network(session: Session) -> Found:
    """Whether a metric's network gives the same for a picture alone and in a batch."""
    described = card(NETWORK, "metric")
    network = DinoNetwork(Weights(described, resolve(described), {}))
    pictures = [network.prepare([noise(i, 96)], None) for i in range(_BATCH)]
    network.open(str(session.device))
    try:
        together = np.stack(network.run(pictures))
        alone = np.stack([network.run([picture])[0] for picture in pictures])
    finally:
        network.close()
    difference = float(np.abs(together - alone).max())
    spread = float(np.abs(together[0] - together[1:]).max())
    figures = {"card": NETWORK, "batch_size": _BATCH, "max_difference": difference}
    words = f"{NETWORK}: alone and in a batch of {_BATCH} differ by {difference:.1e}"
    if not np.isfinite(together).all() or difference > _TOLERANCE or spread <= _TOLERANCE:
        raise CheckFailed(f"{words}; at most {_TOLERANCE:g} is allowed, pictures differ by {spread:.1e}", figures)
    return Found(words, figures)
