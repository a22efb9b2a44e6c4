"""The suites of local-bench and of installed packages, by name."""

import importlib
import sys
from functools import cache
from importlib.metadata import entry_points

from local_bench.core.errors import ConfigError
from local_bench.core.suggest import hint
from local_bench.suites.base import Suite

PLUGINS = "local_bench.suites"
"""Group of entry points `name = "package.module:Class"` with subclasses of `Suite`; built-in names take precedence."""
_SUITES = {
    "studio": "local_bench.suites.studio.suite:Studio",
    "printshop": "local_bench.suites.printshop.suite:PrintShop",
    "servimage": "local_bench.suites.servimage.suite:ServImage",
    "hype-edit-1": "local_bench.suites.hype_edit_1.suite:HypeEdit1",
    "idea-bench": "local_bench.suites.idea_bench.suite:IdeaBench",
    "ice-bench": "local_bench.suites.ice_bench.suite:IceBench",
}


def suite_names() -> list[str]:
    """Names of all suites: built-in ones, then those of installed packages."""
    return list(_known())


def suite(name: str) -> Suite:
    """The suite of that name. ConfigError with the nearest name, or with the reason why a package's suite cannot be
    loaded."""
    if name in _SUITES:
        return _loaded(name, _SUITES[name])
    known = _known()
    if name not in known:
        suggestion = hint(name, known, f"available: {', '.join(known)}")
        raise ConfigError(f"suite.name: unknown suite {name!r}: {suggestion}")
    return _loaded(name, known[name])


@cache
def _loaded(name: str, where: str) -> Suite:
    module, _, attribute = where.partition(":")
    try:
        kind = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as e:
        raise ConfigError(
            f"suite.name: {name!r} cannot be loaded from {where} ({e}): correct or remove that package"
        ) from e
    if not (isinstance(kind, type) and issubclass(kind, Suite)):
        raise ConfigError(f"suite.name: {where} is not a subclass of local_bench.Suite: correct or remove that package")
    try:
        return kind()
    except TypeError as e:
        raise ConfigError(f"suite.name: {where} is not complete ({e}): correct or remove that package") from e


def _known() -> dict[str, str]:
    return _SUITES | {name: where for name, where in _plugins(tuple(sys.path)) if name not in _SUITES}


@cache
def _plugins(path: tuple[str, ...]) -> list[tuple[str, str]]:
    """(name, location) of the suites of installed packages. Reading the metadata of all packages takes milliseconds,
    and a suite is looked up for every row; `path` is sys.path, whose change is the only way to new packages."""
    return sorted((point.name, point.value) for point in entry_points(group=PLUGINS))
