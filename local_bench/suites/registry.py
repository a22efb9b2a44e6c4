"""The suites by name: a module with `deliverables`, `questions`, `scores` and `SCORES`, and a way to the tasks.

A module may also have `fitted` (what a model is asked that takes only so much, or why it is not), `THRESHOLDS` (what
decides acceptance in the place of the config's), `METRICS` (those of which each task has its own list), `writes` and
`writes_rules` (what a judge is to write about a task before the run: what its file lacks, and its hard rules).
"""

import difflib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from local_bench.core.cards import Takes
from local_bench.core.errors import ConfigError
from local_bench.core.nouns import Deliverable, Task, Truth
from local_bench.suites.orders import KeepImage
from local_bench.suites.written import with_written

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
    reader: str = "local_bench.suites.orders:read_orders"
    """`package.module:function`, called with the path and what keeps pictures; gives the tasks."""
    refuses_cases: bool = False
    """Whether the reader takes a third argument: what is called with a sentence for every case that it leaves out."""
    layout: str = "an order file, one JSON object a line"
    """What `suite.path` is."""
    attempts: int = 1
    """How many images of each deliverable the benchmark's protocol asks for."""
    referee: str | None = None
    """The module whose `truths` tells what is so of a picture, in a suite where that is known."""

    def load(self) -> ModuleType:
        return importlib.import_module(self.module)

    def truths(self, task: Task, pictures: "Mapping[int, NDArray[np.uint8]]") -> dict[int, Truth]:
        """What is true of one model's pictures for an order, uint8 RGB by deliverable; nothing in a suite that has no
        referee."""
        return {} if self.referee is None else importlib.import_module(self.referee).truths(task, pictures)

    def tasks(
        self,
        path: str | None,
        keep: KeepImage,
        part: str | None = None,
        written: str | None = None,
        refuse: Callable[[str], None] | None = None,
    ) -> list[Task]:
        """Reads the suite's tasks, or those of one part, with what the file `written` says of them.

        `refuse` is called with a sentence for every case that cannot be read, where the suite's reader can leave it
        out. ConfigError or TaskFileError otherwise, and where `refuse` is None.
        """
        if self.path is not None and path is not None:
            raise ConfigError(f"suite.path: the suite {self.name!r} ships with its tasks: leave the path out")
        if self.path is None and path is None:
            raise ConfigError(
                f"suite.path: the suite {self.name!r} is read from {self.layout}: say where that is, or "
                f"`local-bench suites fetch {self.name} --out FOLDER`"
            )
        module, _, function = self.reader.partition(":")
        read: Callable[..., list[Task]] = getattr(importlib.import_module(module), function)
        tasks = read(self.path or Path(str(path)), keep, *((refuse,) if self.refuses_cases else ()))
        if written is not None:
            tasks = with_written(tasks, Path(written))
        return tasks if part is None else _of_part(tasks, part)

    def fitted(self, task: Task, takes: Takes) -> list[Deliverable] | str:
        """What a model that takes so much is asked for a task, or why this is not its kind of work."""
        module = self.load()
        found: list[Deliverable] | str = getattr(module, "fitted", lambda t, _: module.deliverables(t))(task, takes)
        return found


def _of_part(tasks: list[Task], part: str) -> list[Task]:
    parts = {task.task_id: (task.category, *task.own.get("parts", ())) for task in tasks}
    found = [task for task in tasks if part in parts[task.task_id]]
    if not found:
        known = dict.fromkeys(name for names in parts.values() for name in names)
        near = difflib.get_close_matches(part, known, 1, 0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
        raise ConfigError(f"suite.part: there is no part {part!r}: {hint}")
    return found


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
            referee="local_bench.suites.miniature.referee",
        ),
        SuiteEntry(
            "servimage",
            "ServImage: paid design orders in three categories",
            "local_bench.suites.servimage_bench",
            "see the benchmark's authors",
            "Ji et al., ServImage; FengxianJi/ServImage",
            reader="local_bench.suites.servimage_bench:read_tasks",
            layout="its ServImage_Bench folder, one of the JSON files in it, or an order file of one object a line",
        ),
        SuiteEntry(
            "hype-edit-1",
            "HYPE-EDIT-1: edits for marketing and design, pass or fail, ten attempts each",
            "local_bench.suites.hype_edit_1.suite",
            "CC BY 4.0 (public tasks)",
            "Chan and Allen, HYPE-EDIT-1; sourceful-official/hype-edit-1-benchmark",
            reader="local_bench.suites.hype_edit_1.tasks:read_tasks",
            layout="its own public.json, with the tasks' pictures beside it",
            attempts=10,
        ),
        SuiteEntry(
            "idea-bench",
            "IDEA-Bench: professional briefs in five kinds of work, six questions a case",
            "local_bench.suites.idea_bench.suite",
            "CC BY-NC 4.0",
            "Liang et al., IDEA-Bench; ali-vilab/IDEA-Bench",
            reader="local_bench.suites.idea_bench.tasks:read_tasks",
            layout="its dataset folder, a folder a case",
            refuses_cases=True,
        ),
        SuiteEntry(
            "ice-bench",
            "ICE-Bench: 31 tasks of creating and editing, eleven metrics in six dimensions",
            "local_bench.suites.ice_bench.suite",
            "see the benchmark's authors",
            "Pan et al., ICE-Bench; ali-vilab/ICE-Bench",
            reader="local_bench.suites.ice_bench.tasks:read_tasks",
            layout="its data.jsonl",
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
