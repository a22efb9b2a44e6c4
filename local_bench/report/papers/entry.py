"""One table or figure of a paper, and the function that creates it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from local_bench.core.environment import load_object
from local_bench.core.errors import UserError

if TYPE_CHECKING:
    from local_bench.core.table import Table
    from local_bench.report.panels import Figure
    from local_bench.report.papers.inputs import Request

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
    """`package.module:function`, or `module:function` of `local_bench.report.papers`, called with a Request; empty if
    `reason` says why it is not supported."""
    argument: str | None = None
    """A second argument of the function."""
    reason: str = ""
    """Why it cannot be created here, as a sentence without a full stop."""
    sources: Literal["runs", "run", "runs or files", "anything"] = "runs or files"
    """`run`: exactly one; `anything`: also nothing."""
    options: tuple[str, ...] = ()
    """Options that apply to it."""
    required: tuple[str, ...] = ()
    either: tuple[str, ...] = ()
    """Options of which one is required."""
    keeps_judge: bool = False
    """Whether the judge's results are shown with the labels of `--people`, which otherwise replace them."""

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.number}"

    @property
    def where(self) -> str:
        """`build` with its package."""
        return self.build if "." in self.build else f"local_bench.report.papers.{self.build}"

    @property
    def command(self) -> str:
        """How it is created, for docs/benchmarks.md; empty if it is not supported."""
        if self.reason:
            return ""
        parts = ["local-bench reproduce", self.paper, self.name]
        parts += {"run": ["RUN"], "anything": []}.get(self.sources, ["RUN…"])
        parts += [_given(name) for name in self.required]
        # not `|`: in a table of Markdown it would have to be escaped, and MkDocs shows the backslash
        parts += [f"[{' or '.join(map(_given, self.either))}]"] if self.either else []
        return " ".join([*parts, *(["--out FILE.svg"] if self.kind == "figure" else [])])

    def make(self, request: "Request") -> "Table | Figure":
        """Create the table or figure. UserError if the sources are not of the required kind."""
        self._check(request)
        from local_bench.report.panels import annotated

        builder: Callable[..., Table | Figure] = load_object(self.where, f"{self.name} of {self.paper}")
        result = builder(request) if self.argument is None else builder(request, self.argument)
        return annotated(
            result,
            request.unlike,
            [*(f"* not comparable: {difference}" for difference in request.differences), *request.judging],
        )

    def _check(self, request: "Request") -> None:
        what = f"{self.kind} {self.number} of {self.paper}"
        if self.reason:
            raise UserError(f"{what} ({self.title}) cannot be created: {self.reason}")
        n = len(request.runs) + len(request.files)
        if request.files and self.sources in ("runs", "run"):
            raise UserError(f"{what} is created from runs, but {request.files[0]} is not a run directory: give one")
        if not n and self.sources != "anything":
            raise UserError(f"{what} is created from {self.sources}: give their paths after {self.name}")
        if n > 1 and self.sources == "run":
            raise UserError(f"{what} is of one run, and {n} are given: give one at a time")
