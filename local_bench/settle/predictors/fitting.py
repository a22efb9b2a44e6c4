"""Predictors are learned here, from people's labels, by scikit-learn; what is kept is `models`' plain numbers.

Splits are by order, so that no order's images fall on both sides. The calibration is learned on log-odds from folds
that the model had not seen, and so is what is told of the predictor's quality: for each fold, model and calibration
are learned anew on the others.
"""

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from local_bench.core.errors import UserError
from local_bench.settle.bootstrap import Floats
from local_bench.settle.discrimination import Bools, Quality, quality
from local_bench.settle.predictors.features import Features
from local_bench.settle.predictors.models import ConceptModel, Isotonic, Layout, Linear, Platt, Rule, Tree, Trees

Kind = Literal["logistic", "boosted"]
Calibration = Literal["platt", "isotonic"]
FOLDS = 5
_TREES = {"max_iter": 100, "learning_rate": 0.1, "max_leaf_nodes": 15, "early_stopping": False}


def _min_samples_leaf(n: int) -> int:
    """scikit-learn's 20 from 400 images on; a hundred labels would make no tree with it."""
    return max(5, min(20, n // 20))


@dataclass(frozen=True)
class Fitted:
    """A predictor, and how good it is on orders that it has not seen."""

    predictor: Rule | ConceptModel
    quality: Quality
    n_unscored: int
    """Labelled images that taught nothing, because a score is missing."""
    n_unlabelled: int


def fit_concepts(
    cells: Features,
    labels: ArrayLike,
    kind: Kind = "boosted",
    calibration: Calibration = "platt",
    *,
    folds: int = FOLDS,
    seed: int = 0,
) -> Fitted:
    """A calibrated model of people's `labels` (images,): 1 or 0 for paid for or not, NaN for not labelled.

    `logistic` is regression on standardised columns (L2, C = 1). `boosted` is histogram gradient boosting, held to
    never fall as a score rises. UserError where there are fewer than two orders with, or without, an accepted image.
    """
    taught, accepted, n_unscored, n_unlabelled = _taught(cells, labels)
    folds = _folds(taught, accepted, folds)
    guesses = np.full(len(accepted), np.nan)
    for learn, see in _splits(taught.tasks, accepted, folds, seed):
        part = _fit(taught.rows(learn), accepted[learn], kind, calibration, folds, seed)
        guesses[see] = part.probabilities(taught.rows(see)).values
    model = _fit(taught, accepted, kind, calibration, folds, seed)
    return Fitted(model, quality(guesses, accepted, taught.tasks), n_unscored, n_unlabelled)


def fit_rule(
    cells: Features, labels: ArrayLike, thresholds: Mapping[str, float], *, folds: int = FOLDS, seed: int = 0
) -> Fitted:
    """The rule with the parts that people paid for of what it accepts and of what it rejects; labels as above."""
    taught, accepted, n_unscored, n_unlabelled = _taught(cells, labels)
    folds = _folds(taught, accepted, folds)
    guesses = np.full(len(accepted), np.nan)
    for learn, see in _splits(taught.tasks, accepted, folds, seed):
        part = _rule(taught.rows(learn), accepted[learn], thresholds)
        guesses[see] = part.probabilities(taught.rows(see)).values
    rule = _rule(taught, accepted, thresholds)
    return Fitted(rule, quality(guesses, accepted, taught.tasks), n_unscored, n_unlabelled)


def _rule(cells: Features, accepted: Bools, thresholds: Mapping[str, float]) -> Rule:
    passed = Rule(dict(thresholds)).decisions(cells).accepted
    paid = [(float(accepted[here].sum()) + 0.5) / (float(here.sum()) + 1) for here in (~passed, passed)]
    return Rule(dict(thresholds), paid[0], paid[1])


def _taught(cells: Features, labels: ArrayLike) -> tuple[Features, Bools, int, int]:
    given = np.asarray(labels, dtype=np.float64)
    labelled = ~np.isnan(given)
    used = labelled & cells.known
    return cells.rows(used), given[used] >= 0.5, int((labelled & ~used).sum()), int((~labelled).sum())


def _folds(cells: Features, accepted: Bools, folds: int) -> int:
    """As many as there are orders of the rarer kind, at most `folds`. UserError for fewer than two."""
    fewest = min(len(np.unique(cells.tasks[accepted])), len(np.unique(cells.tasks[~accepted])))
    if fewest < 2:
        raise UserError(
            f"the labels have {int(accepted.sum())} accepted and {int((~accepted).sum())} rejected images whose scores "
            "are there, and a predictor takes both in two orders or more: label more images"
        )
    return min(folds, fewest)


def _splits(
    tasks: NDArray[np.intp], accepted: Bools, folds: int, seed: int
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Places to learn from and to look at, in each fold whole orders, with as even a part of accepted images as orders
    allow (else a fold that has many would be told few, and the reverse); none where there is only one order."""
    from sklearn.model_selection import StratifiedGroupKFold

    folds = min(folds, len(np.unique(tasks)))
    if folds < 2:
        return
    cut = StratifiedGroupKFold(folds, shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that a fold may lack one kind, which `_log_odds` knows
        parts = list(cut.split(np.zeros(len(tasks)), accepted, tasks))
    for learn, see in parts:
        if len(learn) and len(see):
            yield learn, see


def _fit(cells: Features, accepted: Bools, kind: Kind, calibration: Calibration, folds: int, seed: int) -> ConceptModel:
    layout = _layout(cells)
    table = layout.table(cells)
    odds = np.full(len(accepted), np.nan)
    for learn, see in _splits(cells.tasks, accepted, folds, seed):
        odds[see] = _log_odds(table[learn], accepted[learn], kind, layout, seed).log_odds(table[see])
    seen = ~np.isnan(odds)
    return ConceptModel(
        layout, _log_odds(table, accepted, kind, layout, seed), _calibrate(odds[seen], accepted[seen], calibration)
    )


def _layout(cells: Features) -> Layout:
    held = [
        float(column[applies].mean()) if applies.any() else 0.0
        for column, applies in zip(cells.scores.T, cells.applies.T, strict=True)
    ]
    return Layout(cells.names, tuple(held), tuple(sorted(set(cells.categories))))


def _log_odds(table: Floats, accepted: Bools, kind: Kind, layout: Layout, seed: int) -> Linear | Trees:
    if accepted.all() or not accepted.any():  # a fold may lack one kind: what is known is the rate, a little softened
        rate = (accepted.sum() + 0.5) / (len(accepted) + 1)
        return Linear(float(np.log(rate / (1 - rate))), (0.0,) * table.shape[1])
    return _linear(table, accepted) if kind == "logistic" else _trees(table, accepted, layout, seed)


def _linear(table: Floats, accepted: Bools) -> Linear:
    from sklearn.linear_model import LogisticRegression

    middle, spread = table.mean(axis=0), table.std(axis=0)
    spread = np.where(spread > 0, spread, 1.0)
    found = LogisticRegression(C=1.0, max_iter=1000).fit((table - middle) / spread, accepted)
    coefficients = found.coef_[0] / spread
    return Linear(float(found.intercept_[0] - coefficients @ middle), tuple(map(float, coefficients)))


def _trees(table: Floats, accepted: Bools, layout: Layout, seed: int) -> Trees:
    from sklearn.ensemble import HistGradientBoostingClassifier

    rising = [1] * len(layout.names) + [0] * (table.shape[1] - len(layout.names))
    leaf = _min_samples_leaf(len(table))
    forest = HistGradientBoostingClassifier(
        monotonic_cst=rising, random_state=seed, min_samples_leaf=leaf, **_TREES
    ).fit(table, accepted)
    return Trees(float(forest._baseline_prediction.ravel()[0]), tuple(_tree(of[0].nodes) for of in forest._predictors))


def _tree(nodes: Any) -> Tree:
    leaf = nodes["is_leaf"].astype(bool)
    own = np.arange(len(nodes))
    return Tree(
        feature=tuple(int(x) for x in np.where(leaf, 0, nodes["feature_idx"])),
        threshold=tuple(float(x) for x in np.where(leaf, 0.0, nodes["num_threshold"])),
        left=tuple(int(x) for x in np.where(leaf, own, nodes["left"])),
        right=tuple(int(x) for x in np.where(leaf, own, nodes["right"])),
        value=tuple(float(x) for x in nodes["value"]),
    )


def _calibrate(odds: Floats, accepted: Bools, calibration: Calibration) -> Platt | Isotonic:
    if not len(odds):
        return Platt(1.0, 0.0)  # a single order says nothing of others
    if calibration == "isotonic":
        from sklearn.isotonic import IsotonicRegression

        found = IsotonicRegression(y_min=0, y_max=1).fit(odds, accepted.astype(np.float64))
        return Isotonic(
            tuple(map(float, found.X_thresholds_)), tuple(map(float, found.y_thresholds_))
        )  # fmt: skip
    return _platt(odds, accepted)


def _platt(odds: Floats, accepted: Bools) -> Platt:
    """With Platt's softened targets, so that folds which are told apart without a fault give no certainty."""
    from scipy.optimize import minimize

    n_paid, n_not = int(accepted.sum()), int((~accepted).sum())
    target = np.where(accepted, (n_paid + 1) / (n_paid + 2), 1 / (n_not + 2))

    def loss(line: Floats) -> tuple[float, Floats]:
        z = line[0] * odds + line[1]
        apart = 1 / (1 + np.exp(-np.clip(z, -700, 700))) - target
        return float(np.sum(np.logaddexp(0, z) - target * z)), np.array([apart @ odds, apart.sum()])

    start = np.array([1.0, 0.0])
    line = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=[(0.0, None), (None, None)]).x
    return Platt(float(line[0]), float(line[1]))
