"""Predictors as text: canonical JSON of plain numbers, read back to the last bit and checked on the way."""

import json
from dataclasses import asdict
from functools import cache
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from local_bench.core.errors import UserError
from local_bench.core.identity import canonical_json
from local_bench.settle.predictors.models import ConceptModel, Rule

Kept = Annotated[Rule | ConceptModel, Field(discriminator="kind")]


def dumps(predictor: Rule | ConceptModel) -> str:
    """The predictor as one line of JSON."""
    return canonical_json(asdict(predictor))


def loads(text: str) -> Rule | ConceptModel:
    """The predictor that `dumps` wrote. UserError says in one sentence why a text is none."""
    try:
        json.loads(text, parse_constant=_no_constant)
        return _adapter().validate_json(text, strict=True)
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"this is no predictor ({where or 'JSON'}: {first['msg']}): fit it again") from None
    except (ValueError, RecursionError) as e:
        raise UserError(f"this is no predictor ({e}): fit it again") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")


@cache
def _adapter() -> "TypeAdapter[Rule | ConceptModel]":
    return TypeAdapter(Kept)
