"""The suites by name: a module with `deliverables`, `questions`, `scores` and `SCORES`, and a way to the tasks."""

import difflib
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from local_bench.core.errors import ConfigError
from local_bench.core.nouns import Task, Truth
from local_bench.suites.orders import KeepImage, read_orders

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class SuiteEntry:
    """What a suite is, before its tasks are read."""

    name: str
    title: str
    module: str
    licence: str
    source: str
    path: Path | None = None
    """Where its tasks are, for a suite that ships with us; None asks for `suite.path`."""
    referee: str | None = None
    """The module whose `truths` tells what is so of a picture, in a suite where that is known."""

    def load(self) -> ModuleType:
        return importlib.import_module(self.module)

    def truths(self, task: Task, pictures: "Mapping[int, NDArray[np.uint8]]") -> dict[int, Truth]:
        """What is true of one model's pictures for an order, uint8 RGB by deliverable; nothing in a suite that has no
        referee."""
        return {} if self.referee is None else importlib.import_module(self.referee).truths(task, pictures)

    def tasks(self, path: str | None, keep: KeepImage) -> list[Task]:
        """Reads the suite's tasks. ConfigError or TaskFileError where they cannot be."""
        if self.path is not None and path is not None:
            raise ConfigError(f"suite.path: the suite {self.name!r} ships with its tasks: leave the path out")
        if self.path is None and path is None:
            raise ConfigError(f"suite.path: the suite {self.name!r} is read from its own file: say where that is")
        return read_orders(self.path or Path(str(path)), keep)


SUITES = {
    entry.name: entry
    for entry in (
        SuiteEntry(
            "studio",
            "Twelve commercial briefs of our own",
            "local_bench.suites.servimage",
            "Apache-2.0",
            "local-bench",
            _HERE / "studio.jsonl",
        ),
        SuiteEntry(
            "printshop",
            "Forty-eight orders of a print shop in the miniature's world, whose truth is known",
            "local_bench.suites.servimage",
            "Apache-2.0",
            "local-bench",
            _HERE / "miniature/orders.jsonl",
            "local_bench.suites.miniature.referee",
        ),
        SuiteEntry(
            "servimage",
            "ServImage: paid design orders in three categories",
            "local_bench.suites.servimage",
            "see the benchmark's authors",
            "Ji et al., ServImage; an order file, one JSON object a line",
        ),
    )
}


def suite(name: str) -> SuiteEntry:
    """The suite of that name. ConfigError names the nearest one."""
    if name not in SUITES:
        near = difflib.get_close_matches(name, SUITES, 1, 0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(SUITES)}"
        raise ConfigError(f"suite.name: there is no suite {name!r}: {hint}")
    return SUITES[name]
