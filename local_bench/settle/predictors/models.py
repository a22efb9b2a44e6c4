"""Fitted predictors as plain numbers, stored as JSON.

A fitted model is linear log-odds over the columns of its layout, and a calibration. It makes
no prediction for an image with a missing score (invariant 5); a score that does not apply is replaced by the mean, with
an indicator column.
"""

import json
import math
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from local_bench.core.errors import UserError
from local_bench.core.identity import canonical_json
from local_bench.settle.intervals import Floats
from local_bench.settle.predictors.features import NOT_THERE, Features
from local_bench.settle.predictors.revenue import Decisions, Probabilities

NOTHING_APPLIES = "nothing that decides applies to it"
NO_LOG_ODDS = "the model gave no prediction"


@dataclass(frozen=True)
class Rule:
    """Accepted when every score that applies reaches its threshold (`settle.acceptance`)."""

    thresholds: dict[str, float]
    paid_if_rejected: float | None = None
    """Annotated acceptance rate of images that the rule rejects; None without annotations."""
    paid_if_accepted: float | None = None
    kind: Literal["rule"] = "rule"

    def decisions(self, features: Features) -> Decisions:
        rejected, open_ = np.zeros(len(features.tasks), dtype=bool), np.zeros(len(features.tasks), dtype=bool)
        reasons: dict[int, str] = {}
        for name, threshold in self.thresholds.items():
            missing = np.ones(len(features.tasks), dtype=bool)
            if name in features.names:
                at = features.names.index(name)
                rejected |= features.scores[:, at] < threshold  # False for NaN
                missing = features.applies[:, at] & np.isnan(features.scores[:, at])
            reasons |= {int(row): f"{name} {NOT_THERE}" for row in np.flatnonzero(missing & ~open_)}
            open_ |= missing
        if self.thresholds and set(self.thresholds) <= set(features.names):
            deciding = [features.names.index(name) for name in self.thresholds]
            nothing = ~features.applies[:, deciding].any(axis=1)
            reasons |= {int(row): NOTHING_APPLIES for row in np.flatnonzero(nothing)}
            open_ |= nothing
        reasons = {row: why for row, why in reasons.items() if not rejected[row]}
        return Decisions(~rejected & ~open_, rejected | ~open_, reasons)

    def probabilities(self, features: Features) -> Probabilities:
        if self.paid_if_accepted is None or self.paid_if_rejected is None:
            raise UserError("a threshold rule without annotations has no probabilities: fit it, or use decisions")
        decided = self.decisions(features)
        values = np.where(decided.accepted, self.paid_if_accepted, self.paid_if_rejected)
        return Probabilities(np.where(decided.known, values, np.nan), decided.unscored)


@dataclass(frozen=True)
class Layout:
    """Columns of the design matrix: scores, not-applicable indicators, log price, one column per category."""

    names: tuple[str, ...]
    held: tuple[float, ...]
    """Values for scores that do not apply."""
    categories: tuple[str, ...]

    @property
    def n_columns(self) -> int:
        return 2 * len(self.names) + 1 + len(self.categories)

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
                np.log1p(features.price_micro_usd / 1e6),
                *((category == name).astype(np.float64) for name in self.categories),
            ]
        )


@dataclass(frozen=True)
class Linear:
    """Log-odds of a logistic regression."""

    intercept: float
    coefficients: tuple[float, ...]
    kind: Literal["linear"] = "linear"

    def log_odds(self, table: Floats) -> Floats:
        odds = np.full(len(table), self.intercept)
        for column, coefficient in zip(table.T, self.coefficients, strict=True):
            odds += coefficient * column  # column by column: bit-identical for any number of rows
        return odds


@dataclass(frozen=True)
class Platt:
    """Linear calibration of the log-odds (Platt 1999)."""

    slope: float
    """At least 0, so calibration preserves the ranking."""
    intercept: float
    kind: Literal["platt"] = "platt"

    def probabilities(self, log_odds: Floats) -> Floats:
        return np.asarray(1 / (1 + np.exp(-np.clip(self.slope * log_odds + self.intercept, -700, 700))))


@dataclass(frozen=True)
class ConceptModel:
    """A calibrated model on the scores, the category, the price and what does not apply."""

    layout: Layout
    model: Linear
    calibration: Platt
    kind: Literal["concepts"] = "concepts"
    cut: float = field(default=0.5)
    """From which probability an image counts as paid for."""

    def __post_init__(self) -> None:
        columns, used = self.layout.n_columns, len(self.model.coefficients)
        if used != columns:
            raise UserError(f"the predictor's model reads {used} columns and its layout makes {columns}: fit it again")

    def probabilities(self, features: Features) -> Probabilities:
        scored = features.known
        values = np.full(len(scored), np.nan)
        values[scored] = self.calibration.probabilities(self.model.log_odds(self.layout.table(features.rows(scored))))
        return Probabilities(values, features.reasons())

    def decisions(self, features: Features) -> Decisions:
        return self.probabilities(features).decided(self.cut)


@dataclass(frozen=True)
class Calibrated:
    """Calibration of the log-odds of a model that reads images and is stored elsewhere (ServImageModel)."""

    calibration: Platt
    kind: Literal["calibrated"] = "calibrated"
    cut: float = field(default=0.5)

    def probabilities(self, log_odds: Floats) -> Probabilities:
        """`log_odds` (images,): NaN where the model gives none."""
        has_odds = ~np.isnan(log_odds)
        values = np.full(len(log_odds), np.nan)
        values[has_odds] = self.calibration.probabilities(log_odds[has_odds])
        return Probabilities(values, {int(i): NO_LOG_ODDS for i in np.flatnonzero(~has_odds)})


AnyPredictor = Rule | ConceptModel | Calibrated
Stored = Annotated[AnyPredictor, Field(discriminator="kind")]


def dumps(predictor: AnyPredictor) -> str:
    """Serialize a predictor to one line of JSON."""
    return canonical_json(asdict(predictor))


def loads(text: str) -> AnyPredictor:
    """Parse the output of `dumps`. UserError for anything else."""
    try:
        json.loads(text, parse_constant=_no_constant, parse_float=_finite)
        return _adapter().validate_json(text, strict=True)
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"not a predictor ({where or 'JSON'}: {first['msg']}): fit it again") from None
    except (ValueError, RecursionError) as e:
        raise UserError(f"not a predictor ({e}): fit it again") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    if not math.isfinite(float(text)):
        raise ValueError(f"{text} is too large")
    return float(text)


@cache
def _adapter() -> "TypeAdapter[AnyPredictor]":
    return TypeAdapter(Stored)
