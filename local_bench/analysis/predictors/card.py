"""A trained predictor: a folder with one file, `predictor.json`; for the kind `servimage` also the folder `model`; and
whether a run has what it reads.

It has the fitted numbers, the two baselines that every evaluation compares with (the majority and the tuned threshold
rule), what the inputs are (scores, judges, rubrics), what it was trained on, and a digest of all of that.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from local_bench.analysis.comparability import judging_of
from local_bench.core.errors import UserError
from local_bench.core.files import storage_errors
from local_bench.core.yamlfile import Strict
from local_bench.judges.payment.data import CheckedCard
from local_bench.runs.payment import MODEL
from local_bench.runs.rundir import RunDir
from local_bench.runs.scoring import thresholds_of
from local_bench.settle.predictors.models import Calibrated, Rule, loads

Kind = Literal["rule", "logistic", "servimage"]


class Inputs(Strict):
    """The scores, and what they were made with."""

    scores: list[str]
    judges: list[str]
    """Digests of the judges that gave the scores, and how they were combined (`judging_of`)."""
    rubrics: list[tuple[str, str]]
    """(rubric, sha256)"""


class TrainedOn(Strict):
    """The training data."""

    runs: list[str]
    """Names of the runs, or of the dataset files."""
    manifest_sha256: str
    """Digest of all annotated images: work, pixels and decision."""
    n_images: dict[str, int]
    """Annotated images by split."""
    tasks: dict[str, list[str]]
    """Digests of the tasks by split."""
    calibrated_on: Literal["validation", "training, out of fold", "nothing"]


class Card(CheckedCard):
    """The contents of `predictor.json`."""

    FILE = "predictor.json"
    WHAT = "predictor"

    kind: Kind
    predictor: str
    tuned_rule: str
    rule: str | None
    """The threshold rule of the first training run; None without runs."""
    majority: float = Field(ge=0, le=1)
    """Fraction of the training images that is accepted."""
    inputs: Inputs
    trained_on: TrainedOn
    calibration: Literal["platt"] = "platt"
    seed: int
    libraries: dict[str, str]

    @property
    def used_tasks(self) -> set[str]:
        """Digests of the tasks that trained or calibrated the predictor."""
        return {*self.trained_on.tasks["train"], *self.trained_on.tasks["validation"]}


def check_folder(folder: Path) -> None:
    """UserError if `folder` exists and has other files than a payment model without its predictor."""
    with storage_errors(folder):
        if folder.exists() and (not folder.is_dir() or any(path.name != MODEL for path in folder.iterdir())):
            raise UserError(f"{folder} exists and is not an empty folder: give a new folder for the predictor")


def save(card: Card, folder: Path) -> Path:
    """Write the predictor to a new or empty folder. UserError for another."""
    check_folder(folder)
    return card.write(folder)


def load(folder: Path) -> Card:
    """Read a predictor. UserError if it is missing, damaged or altered."""
    card, file = Card.read(folder), folder / Card.FILE
    if set(card.trained_on.tasks) != {"train", "validation", "test"}:
        raise UserError(f"{file} does not list the tasks of its three splits: train it again")
    for text in (card.predictor, card.tuned_rule, *([card.rule] if card.rule else [])):
        predictor = loads(text)
        if isinstance(predictor, Calibrated):
            continue
        names = predictor.thresholds if isinstance(predictor, Rule) else predictor.layout.names
        if unknown := sorted(set(names) - set(card.inputs.scores)):
            raise UserError(f"{file} reads the score {unknown[0]!r}, which is not among its inputs: train it again")
    return card


def inputs_of(run: RunDir) -> Inputs:
    """The scores that decide in `run`, its judges, and the rubrics of its verdicts."""
    rubrics = run.store.rubric_versions()
    return Inputs(scores=list(thresholds_of(run.config)), judges=judging_of(run), rubrics=rubrics)


def same_inputs(runs: Sequence[RunDir]) -> Inputs:
    """The inputs of all runs. UserError if they differ."""
    first = inputs_of(runs[0])
    for run in runs[1:]:
        of_run = inputs_of(run)
        if difference := difference_of(first, of_run, run.path):
            raise UserError(f"{difference} from {runs[0].path}: train on runs with the same judges and rubrics")
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
    if not other_judge and (difference := difference_of(expected, inputs_of(run), run.path)):
        raise UserError(
            f"{difference} from those that the predictor was trained with: train a predictor on such runs, or add "
            "--other-judge (reproduce: --allow-unlike) to use this one anyway"
        )


def difference_of(expected: Inputs, actual: Inputs, path: Path) -> str | None:
    """What differs of the judges or rubrics of the run at `path`."""
    if expected.judges != actual.judges:
        return f"the judges of {path} differ"
    theirs, ours = set(expected.rubrics), set(actual.rubrics)
    both = {name for name, _ in theirs} & {name for name, _ in ours}
    different = next((name for name, sha in sorted(ours - theirs) if name in both), None)
    return None if different is None else f"the rubric {different} of {path} differs"
