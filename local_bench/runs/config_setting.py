"""`--set key.sub=value`: one value of a config, changed before it is checked."""

from typing import Any

from local_bench.core.errors import ConfigError
from local_bench.core.messages import short
from local_bench.core.strictjson import natural
from local_bench.core.yamlfile import yaml_value


def apply_setting(data: dict[str, Any], setting: str) -> tuple[int | str, ...]:
    """Set the value at a dotted path of `data`, and return the path; indices of lists are numbers. ConfigError if there
    is no such place."""
    key, equals, text = setting.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {short(setting, 200)} is not of the form key.sub=value: use that form")
    try:
        value = yaml_value(text)
    except ValueError as e:
        raise ConfigError(f"--set {short(setting, 200)}: the value is not valid YAML ({e}): quote it") from None
    at: Any = data
    path: list[int | str] = []
    *parents, last = key.split(".")
    for step in parents:
        path.append(_index(at, step, setting) if isinstance(at, list) else step)
        at = _child(at, step, setting)
    path.append(_index(at, last, setting) if isinstance(at, list) else last)
    at[path[-1]] = value
    return tuple(path)


def _child(at: Any, step: str, setting: str) -> Any:
    key: Any = _index(at, step, setting) if isinstance(at, list) else step
    inner = at[key] if isinstance(at, list) else at.get(key)
    if inner is None:
        inner = at[key] = {}
    if not isinstance(inner, dict | list):
        raise ConfigError(
            f"--set {short(setting, 200)}: {short(step)} is {short(inner)} and has no keys: set the whole value"
        )
    return inner


def _index(at: list[Any], step: str, setting: str) -> int:
    index = natural(step)
    if index is None or index >= len(at):
        valid = f"give one of 0 to {len(at) - 1}" if at else "it is empty, so set the whole list"
        raise ConfigError(f"--set {short(setting, 200)}: {short(step)} is not an index of the list: {valid}")
    return index
