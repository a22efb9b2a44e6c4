"""One table or figure of a paper, and what makes it."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from local_bench.core.errors import UserError

if TYPE_CHECKING:
    from local_bench.report.papers.inputs import Given
    from local_bench.report.papers.table import Figure, Table

Kind = Literal["table", "figure"]


def _given(option: str) -> str:
    return f"--{option} {'DIR' if option == 'predictor' else 'FILE'}"


@dataclass(frozen=True)
class Entry:
    """One table or figure."""

    paper: str
    kind: Kind
    number: int
    title: str
    build: str = ""
    """`module:function` below `local_bench.report.papers`, called with a Given; empty where `reason` says why not."""
    argument: str | None = None
    """A second argument of the function."""
    reason: str = ""
    """Why it cannot be made here, in one sentence without its full stop."""
    sources: Literal["runs", "run", "runs or files", "anything"] = "runs or files"
    """`run`: exactly one; `anything`: also nothing."""
    options: tuple[str, ...] = ()
    """Those that it takes."""
    required: tuple[str, ...] = ()
    either: tuple[str, ...] = ()
    """Options of which one is needed."""

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.number}"

    @property
    def command(self) -> str:
        """How it is made, as docs/benchmarks.md has it; empty where it is not."""
        if self.reason:
            return ""
        words = ["local-bench reproduce", self.paper, self.name]
        words += {"run": ["RUN"], "anything": []}.get(self.sources, ["RUN…"])
        words += [_given(name) for name in self.required]
        words += [" or ".join(map(_given, self.either))] if self.either else []
        return " ".join([*words, *(["--out FILE.svg"] if self.kind == "figure" else [])])

    def make(self, given: "Given") -> "Table | Figure":
        """UserError where the sources are not those that it is made from."""
        self._check(given)
        module, _, function = self.build.partition(":")
        builder: Callable[..., Table | Figure] = getattr(
            importlib.import_module(f"local_bench.report.papers.{module}"), function
        )
        return builder(given) if self.argument is None else builder(given, self.argument)

    def _check(self, given: "Given") -> None:
        what = f"{self.kind} {self.number} of {self.paper}"
        if self.reason:
            raise UserError(f"{what} ({self.title}) cannot be made: {self.reason}")
        n = len(given.runs) + len(given.files)
        if given.files and self.sources in ("runs", "run"):
            raise UserError(f"{what} is made from runs, and {given.files[0]} is no run directory: give a run directory")
        if not n and self.sources != "anything":
            raise UserError(f"{what} is made from {self.sources}: say after {self.name} where they are")
        if n > 1 and self.sources == "run":
            raise UserError(f"{what} is of one run, and {n} are given: give one at a time")
