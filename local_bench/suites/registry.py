"""The suites of local-bench and of installed packages, by name."""

from collections.abc import Callable
from functools import cache

from local_bench.core.environment import entry_points, load_object
from local_bench.core.errors import ConfigError, hint
from local_bench.suites.base import Suite
from local_bench.suites.from_files import file_of, names, suite_of

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
    """Names of all suites: built-in ones, then those of installed packages and of config folders."""
    return list(dict.fromkeys([*_known(), *names()]))


def all_suites(report: Callable[[str], None] = lambda _: None) -> list[Suite]:
    """All suites that can be loaded, built-in ones first; `report` is called with the fault of every other one."""
    loaded = []
    for name in suite_names():
        try:
            loaded.append(suite(name))
        except ConfigError as e:
            report(str(e))
    return loaded


def suite(name: str) -> Suite:
    """The suite of that name. ConfigError with the nearest name, or with the reason why a package's suite cannot be
    loaded."""
    if name in _SUITES:
        return _loaded(name, _SUITES[name])
    registered = _known()
    if name not in registered and (described := file_of(name)):
        return suite_of(described)
    if name not in registered:
        available = suite_names()
        suggestion = hint(name, available, f"available: {', '.join(available)}")
        raise ConfigError(f"suite.name: unknown suite {name!r}: {suggestion}")
    return _loaded(name, registered[name])


@cache
def _loaded(name: str, where: str) -> Suite:
    kind = load_object(where, f"suite.name: {name!r}")
    if not (isinstance(kind, type) and issubclass(kind, Suite)):
        raise ConfigError(f"suite.name: {where} is not a subclass of local_bench.Suite: correct or remove that package")
    try:
        return kind()
    except TypeError as e:
        raise ConfigError(f"suite.name: {where} is not complete ({e}): correct or remove that package") from e


def _known() -> dict[str, str]:
    plugins = sorted((point.name, point.value) for point in entry_points(PLUGINS))
    return _SUITES | {name: where for name, where in plugins if name not in _SUITES}
