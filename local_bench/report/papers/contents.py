"""The tables and figures of the four papers, and how those of a suite are found. ICE-Bench's are its supplement's."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from local_bench.core.environment import load_object
from local_bench.core.errors import UserError, hint

if TYPE_CHECKING:
    from local_bench.core.table import Table
    from local_bench.report.panels import Figure
    from local_bench.report.papers.inputs import Request


Kind = Literal["table", "figure"]


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
        from local_bench.report.panels import annotated

        builder: Callable[..., Table | Figure] = load_object(self.where, f"{self.name} of {self.paper}")
        result = builder(request) if self.argument is None else builder(request, self.argument)
        return annotated(
            result,
            request.unlike,
            [*(f"* not comparable: {difference}" for difference in request.differences), *request.judging],
        )


_PEOPLE = ("people",)
_LITERATURE = "it compares the benchmark with others by their publications, and contains nothing that a run measures"
_ILLUSTRATION = "it is an illustration by the authors"
_SHOWN = "RUN/report/index.html shows every task of a run with its images"
_PROMPT = (
    "it is a prompt, not a result: it is in the rubric set `verbatim` (judge.rubrics), in "
    "local_bench/judges/vlm/rubrics/verbatim; the default set is `improved`"
)
_PROMPTS = (
    *("prompt for BRF", "prompt for VEQ (technical)", "prompts for VEQ (aesthetic, text)"),
    *("prompt for CNS (edit)", "prompt for CNS (set)"),
)
_TABLE: Kind = "table"
_FIGURE: Kind = "figure"
_servimage = partial(Entry, "servimage")
_servimage_people = partial(_servimage, sources="run", options=_PEOPLE, required=_PEOPLE, keeps_judge=True)
"""Of one run with labels."""
_servimage_payers = partial(
    _servimage,
    sources="runs",
    options=(*_PEOPLE, "predictor", "predictions"),
    required=(*_PEOPLE, "predictor"),
    keeps_judge=True,
)
"""Of runs with annotations, and trained predictors."""
_idea = partial(Entry, "idea-bench")
_hype = partial(Entry, "hype-edit-1")
_ice = partial(Entry, "ice-bench")
_FILES = ("tasks", "scores", "costs", "api_prices")
_DECIDED = (*_FILES, "people")

SERVIMAGE = (
    _servimage(_TABLE, 1, "statistics of the benchmark", "servimage:table_1", options=_FILES),
    _servimage(_TABLE, 2, "standard settlement", "servimage:table_2", options=_DECIDED),
    _servimage(_TABLE, 3, "crowdsourcing competition", "servimage:table_3", options=_DECIDED),
    _servimage_payers(_TABLE, 4, "accuracy of predictors of payment", "servimage_people:table_4"),
    _servimage(_TABLE, 5, "comparison with other benchmarks", reason=_LITERATURE),
    _servimage(_TABLE, 6, "price per image", "servimage:table_6", sources="anything", options=_FILES),
    _servimage(_TABLE, 7, "cost reduction", "servimage:table_7", options=_DECIDED),
    _servimage(_TABLE, 8, "standard settlement by category", "servimage:table_8", options=_DECIDED),
    _servimage(
        _TABLE,
        9,
        "settlement by predicted payment",
        "servimage_people:table_9",
        sources="run",
        options=(*_PEOPLE, "predictor"),
        either=(*_PEOPLE, "predictor"),
        keeps_judge=True,
    ),
    _servimage_people(_TABLE, 10, "agreement of judges and people", "servimage_people:table_10"),
    _servimage(_TABLE, 11, "rank correlation of judges", "servimage_people:table_11", sources="run"),
    _servimage_people(_TABLE, 12, "dimensions of failure", "servimage_people:table_12"),
    _servimage_people(_TABLE, 13, "examples of failure", "servimage_people:table_13"),
    _servimage(_FIGURE, 1, "overview", reason=_ILLUSTRATION),
    _servimage(_FIGURE, 2, "prices by category", "servimage:figure_2", options=_FILES),
    _servimage_people(_FIGURE, 3, "acceptance by composite score", "servimage_people:figure_3"),
    _servimage_payers(_FIGURE, 4, "accuracy of predictors and judges, by category", "servimage_people:figure_4"),
    _servimage_people(_FIGURE, 5, "metrics and payment", "servimage_people:figure_5"),
    *(
        _servimage(_FIGURE, n, f"task case {n - 5}", reason=f"it shows a task of the authors' data; {_SHOWN}")
        for n in (6, 7, 8)
    ),
    _servimage(
        _FIGURE, 9, "prompt for evaluation points", reason="it is a prompt, not a result: `local-bench extract` uses it"
    ),
    *(_servimage(_FIGURE, n, title, reason=_PROMPT) for n, title in enumerate(_PROMPTS, 10)),
)

_IDEA_OPTIONS = ("tasks", *_PEOPLE)
IDEA_BENCH = (
    _idea(_TABLE, 1, "statistics of the benchmark", "idea_bench:table_1", sources="runs"),
    _idea(_TABLE, 2, "scores by category", "idea_bench:table_2", options=_IDEA_OPTIONS),
    *(
        _idea(_TABLE, n, title, "idea_bench:subtasks", argument=category, options=_IDEA_OPTIONS)
        for n, category, title in (
            (3, "T2I", "subtasks of text to image"),
            (4, "I2I", "subtasks of image to image"),
            (5, "Is2I", "subtasks of images to image"),
            (6, "T2Is", "subtasks of text to images"),
            (7, "I(s)2Is", "subtasks of image(s) to images"),
        )
    ),
    _idea(
        _TABLE, 8, "the mini subset: CLIPScore, judge, people", "idea_bench:table_8", options=_PEOPLE, keeps_judge=True
    ),
    _idea(_FIGURE, 1, "overview", reason=_ILLUSTRATION),
    _idea(_FIGURE, 2, "construction of the dataset", reason=_ILLUSTRATION),
    _idea(_FIGURE, 3, "examples of generated images", reason=f"it shows a selection by the authors; {_SHOWN}"),
)

_HYPE = ("costs", "api_prices")
_CHARTS = (*_HYPE, "intervals", "people", "raters")
_RICHER = (*_CHARTS, "by_type")
HYPE_EDIT_1 = (
    _hype(_TABLE, 1, "comparison with other benchmarks", reason=_LITERATURE),
    _hype(_TABLE, 2, "statistics of the benchmark", "hype_edit_1:table_2", sources="runs"),
    _hype(_TABLE, 3, "cost per candidate", "hype_edit_1:table_3", sources="anything", options=_HYPE),
    _hype(_TABLE, 4, "reliability and effective cost", "hype_edit_1:table_4", options=_RICHER),
    _hype(_FIGURE, 1, "ten attempts at one task", "hype_edit_1:figure_1", sources="runs", options=("task",)),
    _hype(_FIGURE, 2, "examples of tasks", "hype_edit_1:figure_2", sources="runs"),
    *(
        _hype(_FIGURE, n, f"summary charts, {split} split", "hype_edit_1:summary", argument=split, options=_CHARTS)
        for n, split in ((3, "combined"), (4, "public"), (5, "private"))
    ),
)

_DIMENSIONS = (
    *("aesthetic quality", "imaging quality", "prompt following", "source consistency"),
    *("reference consistency", "controllability"),
)
ICE_BENCH = (
    _ice(_TABLE, 1, "an evaluation case", reason="it prints one line of the benchmark's data.jsonl"),
    _ice(_TABLE, 2, "tasks that the models support", "ice_bench:table_2", sources="runs"),
    *(
        _ice(_TABLE, n, title, "ice_bench:raw", argument=str(n))
        for n, title in (
            (3, "raw metrics: creating without reference (task 1)"),
            (4, "raw metrics: controllable generation (tasks 23 to 27)"),
            (5, "raw metrics: editing with reference (tasks 28 to 31)"),
            (6, "raw metrics: creating with reference (tasks 2 to 4)"),
            (7, "raw metrics: global editing (tasks 5 to 16)"),
            (8, "raw metrics: local editing (tasks 17 to 22)"),
        )
    ),
    *(
        _ice(_FIGURE, n, title, reason=_ILLUSTRATION)
        for n, title in enumerate((*_DIMENSIONS, "examples of the 31 tasks"), 1)
    ),
)

SHIPPED = (SERVIMAGE, IDEA_BENCH, HYPE_EDIT_1, ICE_BENCH)
_NAME = re.compile(r"(?P<kind>t|tab|table|f|fig|figure)?[-. ]*(?P<number>\d{1,2})", re.I)


def papers() -> list[str]:
    """The suites whose papers have tables or figures."""
    from local_bench.suites.registry import all_suites  # takes a second, and `--help` lists `SHIPPED` alone

    names = {entry.name: entry.layout for entry in all_suites() if entry.paper}
    # The paper of a layout that is another suite's is that suite's.
    return [name for name, layout in names.items() if layout == name or layout not in names]


def entries(paper: str) -> list[Entry]:
    """The paper's tables, then its figures. UserError for an unknown paper, ConfigError if a package's cannot be
    loaded."""
    from local_bench.suites.registry import suite, suite_names

    if paper not in papers():
        if paper in suite_names():
            suite(paper)  # a package's suite that cannot be loaded
        raise UserError(f"unknown paper {paper!r}: {hint(paper, papers())}")
    return list(load_object(suite(paper).paper, f"the tables of {paper}"))


def entry(paper: str, name: str) -> Entry:
    """Look up `table-2`, `t2`, `2` or `figure-3`, `fig3`. UserError if the paper has no such table or figure."""
    match = _NAME.fullmatch(name.strip())
    every = entries(paper)
    if match is not None:
        kind: Kind = "figure" if (match["kind"] or "t").lower().startswith("f") else "table"
        for candidate in every:
            if (candidate.kind, candidate.number) == (kind, int(match["number"])):
                return candidate
    raise UserError(f"{paper} has no {name!r}: `local-bench reproduce {paper}` lists its tables and figures")


def _given(option: str) -> str:
    return f"--{option} {'DIR' if option == 'predictor' else 'FILE'}"
