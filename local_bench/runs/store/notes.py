"""The forms of the JSON values in `meta`, which may come from someone else's run."""

from typing import Any

from pydantic import BaseModel, ConfigDict, PositiveInt, TypeAdapter, ValidationError

from local_bench.core.messages import kind


class _Form(BaseModel):
    """Further keys are allowed."""

    model_config = ConfigDict(strict=True)


class _Repeats(_Form):
    reproducible: bool
    differs: list[str]
    n: int
    sessions: int


class _Attacks(_Form):
    n: int
    n_unscored: int
    fooled_by: list[str]


class _Checks(_Form):
    judge: str | None = None
    repeats: _Repeats | None = None
    attacks: _Attacks | None = None


class _Metric(_Form):
    higher_is_better: bool = True


class _Provenance(_Form):
    judge: dict[str, Any] | None = None
    panel: list[dict[str, Any] | None] = []
    models: dict[str, dict[str, Any]] = {}


class _Placement(_Form):
    offload: list[str]
    compile: bool


_FORMS: dict[str, TypeAdapter[Any]] = {
    "judges": TypeAdapter(dict[str, str], config=_Form.model_config),
    "batches": TypeAdapter(dict[str, PositiveInt], config=_Form.model_config),
    "canary": TypeAdapter(_Checks),
    "metric": TypeAdapter(_Metric),
    "placement": TypeAdapter(_Placement),
    "provenance": TypeAdapter(_Provenance),
}
"""By kind, the part of a key before its colon: names of judges, batch sizes chosen for a model by kind of image,
results of the checks of a judge, a metric's identity, where a model's weights are and whether it is compiled, the
provenance."""


def fault_of_note(key: str, value: Any) -> str | None:
    """Why the value is not what local-bench stores under this key of `meta`; None if it is, or may be."""
    if not isinstance(value, dict):
        return f"is {kind(value)}"
    form = _FORMS.get(key.partition(":")[0])
    try:
        if form:
            form.validate_python(value)
    except ValidationError as e:
        error = e.errors()[0]
        where = ".".join(map(str, error["loc"]))[:60]
        return f"has a value that no release writes{where and f', at {where!r}'}"
    return None
