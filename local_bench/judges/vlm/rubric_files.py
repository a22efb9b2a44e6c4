"""Locations of rubrics: the shipped ones, those in config folders, and those of installed packages."""

import importlib.util
from functools import cache
from pathlib import Path

from local_bench.core.errors import ConfigError
from local_bench.core.packages import entry_points
from local_bench.core.paths import user_config_dirs

FOLDER = Path(__file__).parent / "rubrics"
PLUGINS = "local_bench.rubrics"
"""Group of entry points `name = "package"`; the package's folder `rubrics/` has one YAML file per rubric."""


def rubric_file(name: str, variant: str) -> Path:
    """The file of the rubric of that name; only shipped rubrics differ between variants. ConfigError where there is
    none."""
    if name in shipped_rubric_names():
        own = FOLDER / variant / f"{name}.yaml"
        return own if own.is_file() else FOLDER / f"{name}.yaml"
    added = _added()
    if name not in added:
        raise ConfigError(f"unknown rubric {name!r}: use one of {', '.join((*shipped_rubric_names(), *added))}")
    return added[name]


@cache
def shipped_rubric_names() -> tuple[str, ...]:
    """The shipped rubrics' names, the same in every variant."""
    return tuple(sorted({path.stem for path in FOLDER.rglob("[!_]*.yaml")}))


def rubric_names() -> tuple[str, ...]:
    """The names of all rubrics: the shipped ones, then those of config folders and installed packages."""
    return (*shipped_rubric_names(), *_added())


def _added() -> dict[str, Path]:
    """Rubric files that are not shipped, by name: `rubrics/*.yaml` of a lab's config folders, then of the packages that
    entry points name. Shipped rubrics keep their names."""
    folders = [folder / "rubrics" for folder in user_config_dirs()]
    for point in sorted(entry_points(PLUGINS), key=lambda point: point.name):
        try:
            spec = importlib.util.find_spec(point.value)
        except ImportError as e:
            raise ConfigError(f"the rubrics of {point.value} cannot be found ({e}): correct that package") from e
        folders += [Path(folder) / "rubrics" for folder in (spec and spec.submodule_search_locations) or ()]
    found: dict[str, Path] = {}
    for folder in folders:
        for path in sorted(folder.glob("[!_]*.yaml")):
            if path.stem not in shipped_rubric_names():
                found.setdefault(path.stem, path)
    return dict(sorted(found.items()))
