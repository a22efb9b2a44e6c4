"""Predictors as canonical JSON; values round-trip exactly, and reading validates them."""

import json
import math
from dataclasses import asdict
from functools import cache
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from local_bench.core.errors import UserError
from local_bench.core.identity import canonical_json
from local_bench.settle.predictors.models import Calibrated, ConceptModel, Rule

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
