"""`--set key.sub=value`: one value of a config, changed before it is checked."""

from typing import Any

from local_bench.core.errors import ConfigError
from local_bench.core.yamlfile import yaml_value


def apply_setting(data: dict[str, Any], setting: str) -> None:
    """Set the value at a dotted path of `data`; indices of lists are numbers. ConfigError if there is no such place."""
    key, equals, text = setting.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {setting!r} is not of the form key.sub=value: use that form")
    try:
        value = yaml_value(text)
    except ValueError as e:
        raise ConfigError(f"--set {setting!r}: the value is not valid YAML ({e}): quote it") from None
    at: Any = data
    *parents, last = key.split(".")
    for step in parents:
        at = _child(at, step, setting)
    if isinstance(at, list):
        at[_index(at, last, setting)] = value
    else:
        at[last] = value


def _child(at: Any, step: str, setting: str) -> Any:
    if isinstance(at, list):
        return at[_index(at, step, setting)]
    inner = at.setdefault(step, {})
    if inner is None:
        inner = at[step] = {}
    if not isinstance(inner, dict | list):
        raise ConfigError(f"--set {setting!r}: {step!r} is {inner!r} and has no keys: set the whole value")
    return inner


def _index(at: list[Any], step: str, setting: str) -> int:
    if not step.isdigit() or int(step) >= len(at):
        raise ConfigError(f"--set {setting!r}: {step!r} is not an index of the list (0 to {len(at) - 1})")
    return int(step)
