"""Fit predictors to annotations with scikit-learn; the fitted parameters are stored as plain numbers (`models`).

Splits are by task, so no task has images on both sides. The calibration is fitted to out-of-fold log-odds, and the
reported quality is out-of-fold as well: for each fold, model and calibration are fitted on the other folds.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from local_bench.core.errors import UserError
from local_bench.settle.discrimination import Bools, Quality, quality
from local_bench.settle.features import Features
from local_bench.settle.intervals import Floats
from local_bench.settle.predictors.models import Calibrated, ConceptModel, Layout, Linear, Platt, Rule

FOLDS = 5
_STEPS = 42
"""Maximum number of thresholds that are tried for each score."""
_COMBINATIONS = 200_000
"""Maximum number of combinations of thresholds."""
LEAST_VALIDATION = 40
"""Validation images of the rarer class from which on they calibrate a model. With fewer, calibration out of fold on the
training images has a smaller error (scripts/learning_curve.py, 200 annotations: 0.055 against 0.088 for logistic)."""
LEAST_OF_A_MODEL = 10
"""The same for another model's log-odds, which cannot be computed out of fold."""


Fit = Callable[[Features, Bools, int], Rule | ConceptModel]
"""Fits a predictor to images with all scores, their decisions and a number of folds."""


@dataclass(frozen=True)
class Fitted:
    """A predictor and its quality on held-out tasks."""

    predictor: Rule | ConceptModel
    quality: Quality
    n_unscored: int
    """Annotated images excluded because a score is missing."""
    n_unlabelled: int


def fit_concepts(features: Features, labels: ArrayLike) -> Fitted:
    """Fit a calibrated model of the annotations `labels` (images,): 1 for accepted, 0 for rejected, NaN for none.

    Logistic regression on standardised columns (L2, C = 1) with Platt's calibration. UserError for fewer than two
    tasks with, or without, an accepted image.
    """
    return _with_quality(features, labels, partial(_fit, seed=0))


def fit_rule(features: Features, labels: ArrayLike, thresholds: Mapping[str, float]) -> Fitted:
    """The threshold rule with the annotated acceptance rates of what it accepts and rejects; `labels` as above."""
    return _with_quality(features, labels, lambda used, accepted, _: _rule(used, accepted, thresholds))


def out_of_fold(features: Features, labels: ArrayLike, *, seed: int = 0) -> Floats:
    """(images,) probabilities, with or without a label, each by a model that was fitted to the labels of other tasks;
    NaN for images without a score. UserError as `fit_concepts`."""
    return _cross_fitted(features, labels, seed, partial(_fit, seed=seed))[1]


def _with_quality(features: Features, labels: ArrayLike, fit: Fit) -> Fitted:
    predictor, probabilities = _cross_fitted(features, labels, 0, fit)
    decisions = np.asarray(labels, dtype=np.float64)
    labelled = ~np.isnan(decisions)
    used = labelled & features.known
    return Fitted(
        predictor,
        quality(probabilities[used], decisions[used] >= 0.5, features.tasks[used]),
        n_unscored=int((labelled & ~features.known).sum()),
        n_unlabelled=int((~labelled).sum()),
    )


def _cross_fitted(features: Features, labels: ArrayLike, seed: int, fit: Fit) -> tuple[Rule | ConceptModel, Floats]:
    """The predictor that is fitted to all labels, and probabilities as `out_of_fold`."""
    used, accepted = _annotated(features, labels)
    folds = _folds(used, accepted)
    predictor = fit(used, accepted, folds)
    probabilities = predictor.probabilities(features)
    for train, test in _splits(used.tasks, accepted, folds, seed):
        here = np.isin(features.tasks, used.tasks[test])
        of_others = fit(used.rows(train), accepted[train], folds)
        probabilities[here] = of_others.probabilities(features.rows(here))
    return predictor, probabilities


def fit_held_out(
    train: Features, train_labels: ArrayLike, validation: Features, validation_labels: ArrayLike, *, seed: int = 0
) -> ConceptModel:
    """Fit a model to the training tasks and its calibration to the validation tasks; with fewer than LEAST_VALIDATION
    accepted or rejected validation images the calibration is fitted out of fold on the training tasks. UserError as
    `fit_concepts`."""
    used, accepted = _annotated(train, train_labels)
    fitted = _fit(used, accepted, _folds(used, accepted), seed)
    held, decided = _annotated(validation, validation_labels)
    if n_of_rarer_class(decided) < LEAST_VALIDATION:
        return fitted
    return replace(fitted, calibration=_platt(fitted.model.log_odds(fitted.layout.table(held)), decided))


def fit_calibration(log_odds: Floats, labels: ArrayLike) -> Calibrated:
    """Calibrate another model's log-odds (images,) on validation images; images without one, or without a label, are
    left out. UserError with fewer than LEAST_OF_A_MODEL accepted or rejected images."""
    decisions = np.asarray(labels, dtype=np.float64)
    used = ~np.isnan(decisions) & ~np.isnan(log_odds)
    accepted = decisions[used] >= 0.5
    if n_of_rarer_class(accepted) < LEAST_OF_A_MODEL:
        raise UserError(
            f"the validation tasks have {int(accepted.sum())} accepted and {int((~accepted).sum())} rejected images "
            f"with a prediction, and a calibration needs {LEAST_OF_A_MODEL} of each: annotate more images"
        )
    return Calibrated(_platt(log_odds[used], accepted))


def n_of_rarer_class(accepted: Bools) -> int:
    """Which decides whether a calibration can be fitted to these validation images (LEAST_VALIDATION)."""
    return min(int(accepted.sum()), int((~accepted).sum()))


def tune_rule(features: Features, labels: ArrayLike, names: Sequence[str]) -> Rule:
    """The threshold rule on the scores `names` with the highest accuracy on these images, exactly: of all combinations
    of thresholds among each score's values (at most 41 of its quantiles, fewer with more than three scores) and one
    above its maximum. Of equal rules the first has the lowest thresholds. UserError as `fit_concepts`."""
    used, accepted = _annotated(features, labels)
    _folds(used, accepted)
    columns = [used.names.index(name) for name in names]
    steps = max(2, min(_STEPS, int(_COMBINATIONS ** (1 / len(columns)))) - 1)
    choices = [_thresholds(used.scores[:, column], steps) for column in columns]
    applies = used.applies[:, columns]
    reached = np.column_stack(
        [np.searchsorted(values, used.scores[:, c], "right") for values, c in zip(choices, columns, strict=True)]
    )  # the number of thresholds that the image reaches; all of them where the score does not apply
    reached = np.where(applies, reached, [len(values) for values in choices])[applies.any(axis=1)]
    gain = np.zeros([len(values) + 1 for values in choices], dtype=np.int64)
    np.add.at(gain, tuple(reached.T), np.where(accepted[applies.any(axis=1)], 1, -1))
    for axis in range(gain.ndim):  # at an index: what accepting all images that reach more than it would gain
        gain = np.flip(np.cumsum(np.flip(gain, axis), axis=axis), axis)
    gain = gain[tuple(slice(1, None) for _ in choices)]
    best = np.unravel_index(int(gain.argmax()), gain.shape)
    return _rule(
        used, accepted, {name: float(thresholds[i]) for name, thresholds, i in zip(names, choices, best, strict=True)}
    )


def _thresholds(values: Floats, steps: int) -> Floats:
    distinct = np.unique(values[~np.isnan(values)])
    if not len(distinct):
        return np.zeros(1)
    chosen = np.unique(np.quantile(distinct, np.linspace(0, 1, min(len(distinct), steps)), method="nearest"))
    return np.append(chosen, np.nextafter(distinct[-1], np.inf))


def _rule(features: Features, accepted: Bools, thresholds: Mapping[str, float]) -> Rule:
    passed = Rule(dict(thresholds)).decisions(features).accepted
    paid = [(float(accepted[here].sum()) + 0.5) / (float(here.sum()) + 1) for here in (~passed, passed)]
    return Rule(dict(thresholds), paid[0], paid[1])


def _annotated(features: Features, labels: ArrayLike) -> tuple[Features, Bools]:
    """The images with an annotation and all scores, and whether each is accepted."""
    decisions = np.asarray(labels, dtype=np.float64)
    used = ~np.isnan(decisions) & features.known
    return features.rows(used), decisions[used] >= 0.5


def _folds(features: Features, accepted: Bools) -> int:
    """Number of tasks of the rarer class, at most FOLDS. UserError for fewer than two."""
    fewest = min(len(np.unique(features.tasks[accepted])), len(np.unique(features.tasks[~accepted])))
    if fewest < 2:
        raise UserError(
            f"the labels have {int(accepted.sum())} accepted and {int((~accepted).sum())} rejected images with all "
            "scores to train on, and a predictor needs both in two tasks or more: annotate more images"
        )
    return min(FOLDS, fewest)


def _splits(
    tasks: NDArray[np.intp], accepted: Bools, folds: int, seed: int
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Train and test indices of each fold, grouped by task and stratified by acceptance; none for a single task."""
    from sklearn.model_selection import StratifiedGroupKFold

    folds = min(folds, len(np.unique(tasks)))
    if folds < 2:
        return
    cut = StratifiedGroupKFold(folds, shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a fold may lack one class, which `_log_odds` handles
        parts = list(cut.split(np.zeros(len(tasks)), accepted, tasks))
    for train, test in parts:
        if len(train) and len(test):
            yield train, test


def _fit(features: Features, accepted: Bools, folds: int, seed: int) -> ConceptModel:
    columns = zip(features.scores.T, features.applies.T, strict=True)
    means = tuple(float(scores[applies].mean()) if applies.any() else 0.0 for scores, applies in columns)
    layout = Layout(features.names, means, tuple(sorted(set(features.categories))))
    table = layout.table(features)
    odds = np.full(len(accepted), np.nan)
    for train, test in _splits(features.tasks, accepted, folds, seed):
        odds[test] = _log_odds(table[train], accepted[train]).log_odds(table[test])
    seen = ~np.isnan(odds)
    return ConceptModel(layout, _log_odds(table, accepted), _platt(odds[seen], accepted[seen]))


def _log_odds(table: Floats, accepted: Bools) -> Linear:
    if accepted.all() or not accepted.any():  # one class only: use the smoothed rate
        rate = (accepted.sum() + 0.5) / (len(accepted) + 1)
        return Linear(float(np.log(rate / (1 - rate))), (0.0,) * table.shape[1])
    from sklearn.linear_model import LogisticRegression

    middle, spread = table.mean(axis=0), table.std(axis=0)
    spread = np.where(np.ptp(table, axis=0) > 0, spread, 1.0)
    regression = LogisticRegression(C=1.0, max_iter=1000).fit((table - middle) / spread, accepted)
    coefficients = regression.coef_[0] / spread
    return Linear(_digits(regression.intercept_[0] - coefficients @ middle), tuple(map(_digits, coefficients)))


def _digits(parameter: float) -> float:
    """8 significant digits, more than the optimizers' tolerances give: the last ones depend on the processor."""
    return float(f"{parameter:.8g}")


def _platt(odds: Floats, accepted: Bools) -> Platt:
    """Platt scaling of log-odds (images,) with smoothed targets, which avoids probabilities of 0 and 1 for separable
    folds. The slope is not negative: log-odds with the wrong order get the mean target as their probability."""
    from scipy.optimize import minimize

    if not len(odds):
        return Platt(1.0, 0.0)  # a single task cannot be split

    n_paid, n_not = int(accepted.sum()), int((~accepted).sum())
    target = np.where(accepted, (n_paid + 1) / (n_paid + 2), 1 / (n_not + 2))

    def loss(line: Floats) -> tuple[float, Floats]:
        z = np.clip(line[0] * odds + line[1], -1e9, 1e9)
        residual = 1 / (1 + np.exp(-np.clip(z, -700, 700))) - target
        return float(np.sum(np.logaddexp(0, z) - target * z)), np.array([residual @ odds, residual.sum()])

    # no bounds: with one on the slope L-BFGS-B stops far from the minimum
    slope, intercept = minimize(loss, np.array([1.0, 0.0]), jac=True, method="L-BFGS-B").x
    if slope < 0:  # the loss is convex: its minimum for slopes >= 0 is at 0
        slope, intercept = 0.0, np.log(target.mean() / (1 - target.mean()))
    return Platt(_digits(slope), _digits(intercept))
