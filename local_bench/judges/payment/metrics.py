"""Metrics of a payment model on one split, as stored in its card."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from local_bench.judges.payment.examples import CONCEPTS


def payment_metrics(logits: Sequence[float], labels: Sequence[float]) -> dict[str, Any]:
    """Of probabilities of payment: accuracy at one half, majority's accuracy, AUC (None with one class), Brier score
    and log loss."""
    from sklearn.metrics import roc_auc_score

    z, y = np.asarray(logits), np.asarray(labels)
    p = 1 / (1 + np.exp(-np.clip(z, -700, 700)))
    return {
        "n": len(y),
        "accuracy": float(((z >= 0) == (y == 1)).mean()),
        "majority": float(max(y.mean(), 1 - y.mean())),
        "auc": float(roc_auc_score(y, z)) if len(set(labels)) == 2 else None,
        "brier": float(((p - y) ** 2).mean()),
        "log_loss": float((np.logaddexp(0, z) - y * z).mean()),
    }


def concept_metrics(predicted: Sequence[Sequence[float]], targets: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Concept -> number of images it applies to, and R²; None if the scores do not vary."""
    found: dict[str, Any] = {}
    for name, of, true in zip(CONCEPTS, np.asarray(predicted).T, np.asarray(targets).T, strict=True):
        known = ~np.isnan(true)
        spread = float(((true[known] - true[known].mean()) ** 2).sum()) if known.any() else 0.0
        r2 = 1 - float(((of[known] - true[known]) ** 2).sum()) / spread if spread > 0 else None
        found[name] = {"n": int(known.sum()), "r2": r2}
    return found
