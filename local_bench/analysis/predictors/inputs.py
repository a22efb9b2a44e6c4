"""What a predictor reads of a run, and whether another run has the same."""

from collections.abc import Sequence
from pathlib import Path

from local_bench.core.errors import UserError
from local_bench.core.yamlfile import Strict
from local_bench.runs.acceptance import thresholds_of
from local_bench.runs.rundir import RunDir


class Inputs(Strict):
    """The scores, and what they were made with."""

    scores: list[str]
    judges: list[str]
    """Digests of the judges that gave the scores."""
    rubrics: list[tuple[str, str]]
    """(rubric, sha256)"""


def inputs_of(run: RunDir) -> Inputs:
    """The scores that decide in `run`, its judges, and the rubrics of its verdicts."""
    judges = run.store.json_meta("judges") or {}
    rubrics = sorted({(row.rubric, row.rubric_sha256) for row in run.store.rubric_versions()})
    return Inputs(scores=list(thresholds_of(run.config)), judges=sorted(judges), rubrics=rubrics)


def same_inputs(runs: Sequence[RunDir]) -> Inputs:
    """The inputs of all runs. UserError if they differ."""
    first = inputs_of(runs[0])
    for run in runs[1:]:
        of_run = inputs_of(run)
        than, hint = f"from {runs[0].path}", "train on runs with the same judges and rubrics"
        _refuse_judges(first, of_run, run.path, than, hint)
        if set(of_run.scores) != set(first.scores):
            raise UserError(
                f"{run.path} is decided by {', '.join(of_run.scores)} and {runs[0].path} by {', '.join(first.scores)}: "
                "train on runs that are decided by the same scores"
            )
    return first


def check_inputs(expected: Inputs, run: RunDir, other_judge: bool = False) -> None:
    """UserError if `run` lacks one of the scores, or, without `other_judge`, has another judge or other rubrics."""
    names = {name for _, name in run.store.score_names()}
    missing = next((name for name in expected.scores if name not in names), None)
    if missing is not None:
        raise UserError(f"{run.path} has no score {missing!r}, which the predictor reads: train one on such runs")
    if not other_judge:
        hint = "train a predictor on such runs, or add --other-judge (reproduce: --allow-unlike) to use this one anyway"
        _refuse_judges(expected, inputs_of(run), run.path, "from those that the predictor was trained with", hint)


def judges_differ(expected: Inputs, run: RunDir) -> bool:
    """Whether `run` has another judge or other rubrics, so that `check_inputs` refuses it without `other_judge`."""
    return _difference(expected, inputs_of(run), run.path) is not None


def _refuse_judges(expected: Inputs, actual: Inputs, path: Path, than: str, hint: str) -> None:
    difference = _difference(expected, actual, path)
    if difference is not None:
        raise UserError(f"{difference} {than}: {hint}")


def _difference(expected: Inputs, actual: Inputs, path: Path) -> str | None:
    """The beginning of a sentence that says what differs."""
    if expected.judges != actual.judges:
        return f"the judges of {path} differ"
    theirs, ours = set(expected.rubrics), set(actual.rubrics)
    both = {name for name, _ in theirs} & {name for name, _ in ours}
    different = next((name for name, sha in sorted(ours - theirs) if name in both), None)
    return None if different is None else f"the rubric {different} of {path} differs"
