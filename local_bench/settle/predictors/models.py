"""Fitted predictors as plain numbers, stored as JSON.

A fitted model is linear log-odds over the columns of its layout, and a calibration. It makes
no prediction for an image with a missing score (invariant 5); a score that does not apply is replaced by the mean, with
an indicator column.

Expected revenue is of probabilities, realised revenue of decisions. The two have different types, so they are not added
or compared by mistake. ServImage's table 9 (sec. G.2) shows why: thresholded probabilities give another sum than the
annotations.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import fsum
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, FiniteFloat, TypeAdapter, ValidationError
from scipy.special import expit, log1p  # numpy's depend on the processor

from local_bench.core.errors import UserError
from local_bench.core.types import canonical_json
from local_bench.settle.features import NOT_THERE, Features, Micros
from local_bench.settle.intervals import Floats, amounts, share_interval


@dataclass(frozen=True)
class ExpectedRevenue:
    """Sum of probability x price."""

    expected_micro_usd: int
    """To the nearest micro-USD, over the images with a probability; the others add nothing."""
    at_most_expected_micro_usd: int
    """With every image without a probability accepted."""
    n: int
    """Images with a probability."""
    n_unscored: int
    interval_micro_usd: tuple[int, int] | None = None
    """95 % interval over tasks like these, of the images with a probability: of the choice of tasks, not of the
    predictor's fit. None for fewer than two tasks, and where the tasks are not known."""


@dataclass(frozen=True)
class RealisedRevenue:
    """Sum of the prices of the accepted images; exact."""

    realised_micro_usd: int
    at_most_realised_micro_usd: int
    """With every open image accepted."""
    n: int
    """Decided images."""
    n_unscored: int


def expected_revenue(
    probabilities: Floats, price_micro_usd: Micros, tasks: NDArray[np.intp] | None = None
) -> ExpectedRevenue:
    """`probabilities` (images,): of acceptance, NaN if missing; `price_micro_usd` (images,): revenue of each image if
    accepted; `tasks` (images,): its task, from 0."""
    predicted = ~np.isnan(probabilities)
    prices = price_micro_usd[predicted]
    earned = probabilities[predicted] * prices
    expected = round(fsum(earned.tolist()))
    open_ = int(price_micro_usd[~predicted].sum())
    interval = None
    if tasks is not None:
        predicted_tasks = tasks[predicted]
        earned_whole = np.bincount(predicted_tasks, np.rint(earned))  # whole: in any order
        ends = share_interval(earned_whole, np.bincount(predicted_tasks, prices))
        interval = amounts(ends, int(prices.sum()))
    return ExpectedRevenue(expected, expected + open_, int(predicted.sum()), int((~predicted).sum()), interval)


@dataclass(frozen=True)
class Decisions:
    """Acceptance of each image."""

    accepted: NDArray[np.bool_]
    """(images,); False also if undecided."""
    known: NDArray[np.bool_]
    unscored: Mapping[int, str] = field(default_factory=dict)
    """Index -> why the image is undecided."""

    def realised_revenue(self, price_micro_usd: Micros) -> RealisedRevenue:
        """`price_micro_usd` (images,): revenue of each image if accepted."""
        realised = int(price_micro_usd[self.accepted].sum())
        open_ = int(price_micro_usd[~self.known].sum())
        return RealisedRevenue(realised, realised + open_, int(self.known.sum()), int((~self.known).sum()))


NOTHING_APPLIES = "nothing that decides applies to it"
NO_LOG_ODDS = "the model gave no prediction"


@dataclass(frozen=True)
class Rule:
    """Accepted when every score that applies reaches its threshold (`settle.acceptance`)."""

    thresholds: dict[str, FiniteFloat]
    paid_if_rejected: FiniteFloat | None = None
    """Annotated acceptance rate of images that the rule rejects; None without annotations."""
    paid_if_accepted: FiniteFloat | None = None
    kind: Literal["rule"] = "rule"

    def decisions(self, features: Features) -> Decisions:
        """`features` has every score of the rule."""
        columns = [features.names.index(name) for name in self.thresholds]
        scores, applies = features.scores[:, columns], features.applies[:, columns]
        rejected = (scores < np.array([*self.thresholds.values()])).any(axis=1)  # False for NaN
        missing = applies & np.isnan(scores)
        nothing = np.asarray(~applies.any(axis=1), dtype=bool)
        open_ = ~rejected & (missing.any(axis=1) | nothing)
        names = list(self.thresholds)
        reasons = {
            int(row): NOTHING_APPLIES if nothing[row] else f"{names[int(missing[row].argmax())]} {NOT_THERE}"
            for row in np.flatnonzero(open_)
        }
        return Decisions(~rejected & ~open_, ~open_, reasons)

    def probabilities(self, features: Features) -> Floats:
        """(images,), NaN for undecided ones."""
        if self.paid_if_accepted is None or self.paid_if_rejected is None:
            raise UserError("a threshold rule without annotations has no probabilities: fit it, or use decisions")
        decided = self.decisions(features)
        values = np.where(decided.accepted, self.paid_if_accepted, self.paid_if_rejected)
        return np.where(decided.known, values, np.nan)


@dataclass(frozen=True)
class Layout:
    """Columns of the design matrix: scores, not-applicable indicators, log price, one column per category."""

    names: tuple[str, ...]
    held: tuple[FiniteFloat, ...]
    """Values for scores that do not apply."""
    categories: tuple[str, ...]

    def table(self, features: Features) -> Floats:
        """Design matrix (images, columns); an unknown category sets no category column. UserError for other scores."""
        if features.names != self.names:
            raise UserError(
                f"this predictor was fitted to {', '.join(self.names)}, not to {', '.join(features.names)}: "
                "give it the same scores, or fit it again"
            )
        scores = np.where(features.applies, features.scores, np.asarray(self.held))
        category = np.asarray(features.categories, dtype=object)
        return np.column_stack(
            [
                scores,
                (~features.applies).astype(np.float64),
                log1p(features.price_micro_usd / 1e6),
                *((category == name).astype(np.float64) for name in self.categories),
            ]
        )


@dataclass(frozen=True)
class Linear:
    """Log-odds of a logistic regression."""

    intercept: FiniteFloat
    coefficients: tuple[FiniteFloat, ...]
    kind: Literal["linear"] = "linear"

    def log_odds(self, table: Floats) -> Floats:
        odds = np.full(len(table), self.intercept)
        for column, coefficient in zip(table.T, self.coefficients, strict=True):
            odds += coefficient * column  # column by column: bit-identical for any number of rows
        return odds


@dataclass(frozen=True)
class Platt:
    """Linear calibration of the log-odds (Platt 1999)."""

    slope: FiniteFloat
    """At least 0, so calibration preserves the ranking."""
    intercept: FiniteFloat
    kind: Literal["platt"] = "platt"

    def probabilities(self, log_odds: Floats) -> Floats:
        return np.asarray(expit(np.clip(self.slope * log_odds + self.intercept, -700, 700)))


@dataclass(frozen=True)
class ConceptModel:
    """A calibrated model on the scores, the category, the price and what does not apply."""

    layout: Layout
    model: Linear
    calibration: Platt
    kind: Literal["concepts"] = "concepts"
    cut: FiniteFloat = 0.5
    """From which probability an image counts as paid for."""

    def __post_init__(self) -> None:
        columns = 2 * len(self.layout.names) + 1 + len(self.layout.categories)
        used = len(self.model.coefficients)
        if used != columns:
            raise UserError(f"the predictor's model reads {used} columns and its layout makes {columns}: fit it again")

    def probabilities(self, features: Features) -> Floats:
        """(images,), NaN where a score that applies is missing."""
        scored = features.known
        values = np.full(len(scored), np.nan)
        values[scored] = self.calibration.probabilities(self.model.log_odds(self.layout.table(features.rows(scored))))
        if np.isnan(values[scored]).any():  # of infinities of both signs
            raise UserError("the predictor's coefficients are too large to compute probabilities with: fit it again")
        return values

    def decisions(self, features: Features) -> Decisions:
        return Decisions(self.probabilities(features) >= self.cut, features.known, features.reasons())


@dataclass(frozen=True)
class Calibrated:
    """Calibration of the log-odds of a model that reads images and is stored elsewhere (ServImageModel)."""

    calibration: Platt
    kind: Literal["calibrated"] = "calibrated"
    cut: FiniteFloat = 0.5

    def decisions(self, log_odds: Floats) -> Decisions:
        """`log_odds` (images,): NaN where the model gives none."""
        missing = np.isnan(log_odds)
        unscored = {int(i): NO_LOG_ODDS for i in np.flatnonzero(missing)}
        return Decisions(self.calibration.probabilities(log_odds) >= self.cut, ~missing, unscored)


AnyPredictor = Rule | ConceptModel | Calibrated
_STORED: TypeAdapter[AnyPredictor] = TypeAdapter(Annotated[AnyPredictor, Field(discriminator="kind")])


def dumps(predictor: AnyPredictor) -> str:
    """Serialize a predictor to one line of JSON."""
    return canonical_json(asdict(predictor))


def loads(text: str) -> AnyPredictor:
    """Parse the output of `dumps`. UserError for anything else."""
    try:
        json.loads(text, parse_constant=_no_constant)  # pydantic reads NaN
        return _STORED.validate_json(text, strict=True)
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"not a predictor ({where or 'JSON'}: {first['msg']}): fit it again") from None
    except (ValueError, RecursionError) as e:
        raise UserError(f"not a predictor ({e}): fit it again") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")
