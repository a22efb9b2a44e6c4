"""Sources of a table: finished runs, or a benchmark's own result files, and the command's options."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property
from pathlib import Path

from local_bench.analysis.comparability import JUDGED, TASKS, comparable, rubric_sets
from local_bench.analysis.official import format_of, run_results
from local_bench.analysis.unseen_inputs import unseen_inputs
from local_bench.annotation.ratings import load_annotations
from local_bench.core.errors import LocalBenchError, UserError, count
from local_bench.runs.rundir import RunDir
from local_bench.suites.published import api_prices
from local_bench.suites.registry import suite
from local_bench.suites.run_results import RunResults


@dataclass(frozen=True)
class Options:
    """The command's options; None or empty if omitted."""

    tasks: Path | None = None
    """servimage: the tasks of result files. idea-bench: the dataset folder, for categories."""
    scores: Path | None = None
    """servimage: BRF, VEQ and CNS of result files."""
    costs: Mapping[str, Decimal] | None = None
    """US dollars per image by model, instead of the costs measured by a run."""
    api_prices: bool = False
    """The prices of the paper's APIs, for models that have one."""
    allow_unlike: bool = False
    """Whether runs that cannot be compared are in one table, with their rows marked."""
    people: tuple[Path, ...] = ()
    """Human labels; if they replace the runs' own decisions, one file per run, in the runs' order."""
    predictor: tuple[Path, ...] = ()
    """Folders of trained predictors of payment."""
    predictions: tuple[Path, ...] = ()
    """Files of predictions, of judges or of predictors."""
    by_type: bool = False
    intervals: bool = False
    raters: bool = False
    """Whether the result files are of one rater each."""
    task: str | None = None


@dataclass(frozen=True)
class Request:
    """The sources, all of one benchmark: runs or files, not both."""

    paper: str
    runs: tuple[RunDir, ...] = ()
    files: tuple[Path, ...] = ()
    options: Options = field(default_factory=Options)
    differences: tuple[str, ...] = ()
    """Why runs of the table cannot be compared, if that is allowed."""
    unlike: frozenset[str] = frozenset()
    """Models of runs that differ from the first."""
    keeps_judge: bool = False
    """`Entry.keeps_judge`"""

    @property
    def judging(self) -> list[str]:
        """Who judged: the judges and rubric sets of the runs, one sentence each, or the labels that replace them; and
        how many images of each model were made. Empty for result files."""
        requested, n_made, unseen = Counter[str](), Counter[str](), Counter[str]()
        for run in self.runs:
            requested.update(run.store.n_candidates())
            n_made.update(run.store.n_candidates(made=True))
            unseen.update(unseen_inputs(run).n_images)
        made = ", ".join(f"{model} {n_made[model]} of {n}" for model, n in requested.items())
        blind = ", ".join(f"{model} {n}" for model, n in unseen.items())
        counts = [f"images made: {made}"] if made else []
        counts += [f"made without all of their task's input images: {blind}"] if blind else []
        if self.options.people and not self.keeps_judge:
            return [f"decided by people's labels: {', '.join(path.name for path in self.options.people)}", *counts]
        return [*self.judges, *counts]

    @property
    def judges(self) -> list[str]:
        """The judges and rubric sets of the runs, one sentence each."""
        used = {(name, *sets) for run in self.runs for name, sets in rubric_sets(run).items()}
        return [f"judged by {name} with the rubric set {variant} ({sha[:12]})" for name, variant, sha in sorted(used)]

    def costs_of(self, models: Sequence[str], measured: Mapping[str, Decimal]) -> dict[str, Decimal]:
        """US dollars per image: `--costs`, else `--api-prices`, else as measured."""
        paid = api_prices(self.paper).of(models)[0] if self.options.api_prices else {}
        return dict(measured) | paid | dict(self.options.costs or {})

    @property
    def run(self) -> RunDir:
        """The run of a table that is created from one run."""
        (run,) = self.runs
        return run

    @property
    def labelled(self) -> list[tuple[RunDir, Path]]:
        """Each run with its labels. UserError unless there is one file of labels per run."""
        people = self.options.people
        if self.files:
            raise UserError(f"--people is for runs, and {self.files[0]} is a result file: leave it out")
        if len(people) != len(self.runs):
            raise UserError(
                f"{count(len(self.runs), 'runs')} and {count(len(people), 'files')} of labels are given: "
                "give --people once for each run"
            )
        return list(zip(self.runs, people, strict=True))

    @cached_property
    def results(self) -> list[tuple[RunDir, RunResults]]:
        """Each run's results, with human decisions if labels are given: an image without a label is undecided.
        UserError unless there is one file of labels per run, and if one cannot be read."""
        if not self.options.people:
            return [(run, run_results(run)) for run in self.runs]
        decided_results = []
        for run, file in self.labelled:
            decided = load_annotations(file, run).decisions()
            results = run_results(run)
            images = [replace(image, accepted=decided.get(image.work_id)) for image in results.images]
            decided_results.append((run, replace(results, images=images)))
        return decided_results


@contextmanager
def opened(paper: str, paths: Sequence[Path], options: Options, keeps_judge: bool = False) -> Iterator[Request]:
    """Open folders as runs, and the rest as result files; `keeps_judge` as in `Entry`. UserError if both are given, for
    a path that does not exist, and for a run of another benchmark or without a plan; the errors of `RunDir.open`."""
    absent = next((path for path in paths if not path.exists()), None)
    if absent is not None:
        raise UserError(f"{absent} does not exist: give a run directory or a result file")
    folders = [path for path in paths if path.is_dir()]
    files = tuple(path for path in paths if not path.is_dir())
    if folders and files:
        raise UserError(f"{files[0]} is not a run directory but {folders[0]} is: give runs or result files, not both")
    with ExitStack() as stack:
        runs = tuple(stack.enter_context(RunDir.open(path)) for path in folders)
        for run in runs:
            if (format_of(run) or run.config.suite.name) != paper:
                raise UserError(f"{run.path} is a run of {run.config.suite.name}, not of {paper}: give runs of {paper}")
            if not run.store.models():
                raise UserError(f"{run.path} has no images planned yet: run its config first")
        of_files = next((f"--{name}" for name in ("tasks", "scores", "raters") if getattr(options, name)), None)
        if runs and of_files is not None:
            raise UserError(
                f"{of_files} is for result files, and {runs[0].path} is a run, which has its own: leave it out"
            )
        conditions = ("the suite",) if suite(paper).tasks_differ else TASKS
        if not options.people or keeps_judge:  # if people decide, the judge does not matter
            conditions = (*conditions, *JUDGED)
        groups, differences = comparable(runs, conditions)
        if differences and not options.allow_unlike:
            raise LocalBenchError(
                f"{'; '.join(differences)}: their models cannot be compared in one table, give like runs, or "
                "--allow-unlike to mark their rows"
            )
        unlike = frozenset(model for run, i in zip(runs, groups, strict=True) if i for model in run.store.models())
        yield Request(paper, runs, files, options, tuple(differences), unlike, keeps_judge)


def once(named: Iterable[tuple[Path, Iterable[str]]], what: str = "the model") -> None:
    """UserError if a name is in two of the sources; the message has both."""
    first: dict[str, Path] = {}
    for path, names in named:
        for name in names:
            if name in first:
                raise UserError(f"{what} {name!r} is in both {first[name]} and {path}: give one of them")
            first[name] = path
