"""Predictors of payment that are trained on annotated runs and used on other runs.

A trained predictor is a folder with one file, `predictor.json`: the fitted numbers, the two baselines that every
evaluation has beside it (the majority and a tuned threshold rule), what its inputs are (scores, judges, rubrics), what
it was trained on, and a digest of all of that.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from local_bench.analysis.payment import decided_by_people
from local_bench.analysis.settlement import accounting
from local_bench.core.errors import UserError
from local_bench.core.identity import digest
from local_bench.core.storage import storage_errors, write_atomic
from local_bench.core.types import Decision
from local_bench.core.version import __version__
from local_bench.core.yamlfile import Strict
from local_bench.runs.acceptance import thresholds_of
from local_bench.runs.rundir import RunDir
from local_bench.settle.bootstrap import Floats
from local_bench.settle.predictors.evaluation import Evaluation, Measured, accuracy_difference, evaluate
from local_bench.settle.predictors.features import Features, feature_table
from local_bench.settle.predictors.fitting import Calibration, fit_held_out, tune_rule
from local_bench.settle.predictors.models import ConceptModel, Rule
from local_bench.settle.predictors.revenue import ExpectedRevenue
from local_bench.settle.predictors.serialization import dumps, loads
from local_bench.settle.predictors.splits import SPLITS, Split, split_of
from local_bench.settle.settlement import Settlement, settle
from local_bench.settle.table import Line

FILE = "predictor.json"
FORMAT = 1
MAX_BYTES = 64_000_000
Kind = Literal["rule", "logistic", "boosted"]
NO_IMAGE = "there is no image"
MAJORITY, RUN_RULE, TUNED_RULE = "majority", "rule of the run", "tuned rule"


class Inputs(Strict):
    """What the predictor reads, which a run must have alike."""

    scores: list[str]
    judges: list[str]
    """Digests of the judges that gave the scores."""
    rubrics: list[tuple[str, str]]
    """(rubric, sha256)"""


class TrainedOn(Strict):
    """The training data."""

    runs: list[str]
    manifest_sha256: str
    """Digest of all annotated images: work, pixels and decision."""
    n_images: dict[str, int]
    """By split."""
    tasks: dict[str, list[str]]
    """Digests of the tasks by split."""


class Card(Strict):
    """The contents of `predictor.json`."""

    format: int = FORMAT
    kind: Kind
    predictor: str
    tuned_rule: str
    rule: str
    """The threshold rule of the first training run."""
    majority: float = Field(ge=0, le=1)
    """Fraction of the training images that is accepted."""
    inputs: Inputs
    trained_on: TrainedOn
    calibration: Calibration
    seed: int
    libraries: dict[str, str]
    sha256: str = ""
    """Of everything else."""

    def digest(self) -> str:
        return digest(self.model_dump(mode="json", exclude={"sha256"}))


@dataclass(frozen=True)
class LabelledImages:
    """Images of several runs with their scores and decisions."""

    features: Features
    accepted: Floats
    """(images,) 1, 0, or NaN without a decision."""
    splits: tuple[Split, ...]
    tasks: tuple[str, ...]
    """Digests of the images' tasks."""
    work_ids: tuple[str, ...]
    manifest: str

    def of(self, split: Split) -> tuple[Features, Floats]:
        mask = np.array([one == split for one in self.splits], dtype=bool)
        return self.features.rows(mask), self.accepted[mask]


@dataclass(frozen=True)
class Compared:
    """One predictor on the evaluated images."""

    name: str
    evaluation: Evaluation | None
    """None if it predicts nothing."""
    over_tuned_rule: Measured | None
    """Difference of its accuracy from that of the tuned rule, on the images for which both predict; None for it."""


@dataclass(frozen=True)
class Report:
    """An evaluation: the predictor, then the baselines, on the same images."""

    rows: list[Compared]
    n_left_out: int
    """Annotated images left out because their tasks were used in training."""


@dataclass(frozen=True)
class Prediction:
    """What the predictor says of one image."""

    work_id: str
    model: str
    task_id: str
    deliverable: int
    attempt: int
    probability: float | None
    accepted: bool | None
    """By the probability and the cut."""
    unscored: str | None


@dataclass(frozen=True)
class PredictedSettlement:
    """One model, settled by predicted decisions and by the run's own."""

    predicted: Settlement
    """By the thresholded probabilities (ServImage, table 9)."""
    expected: ExpectedRevenue
    """Sum of probability times price, another quantity."""
    run: Settlement


def train(
    runs: Sequence[RunDir],
    annotations: Sequence[Path],
    kind: Kind = "boosted",
    calibration: Calibration = "platt",
    seed: int = 0,
) -> Card:
    """Fit a predictor to the annotated images of `runs`, one annotations file or annotated run for each.

    70 % of the tasks train it and 15 % calibrate it, by a hash of the task; the rest is for `report`. UserError if the
    runs' judges, rubrics or deciding scores differ, or if there are too few annotations.
    """
    inputs = _same_inputs(runs)
    images = labelled_images(runs, annotations, inputs.scores, seed)
    features, labels = images.of("train")
    tuned = tune_rule(features, labels, inputs.scores)
    own = Rule({name: float(value) for name, value in thresholds_of(runs[0].config).items()})
    fitted: Rule | ConceptModel = (
        tuned
        if kind == "rule"
        else fit_held_out(features, labels, *images.of("validation"), kind, calibration, seed=seed)
    )
    known = ~np.isnan(images.accepted)
    card = Card(
        kind=kind,
        predictor=dumps(fitted),
        tuned_rule=dumps(tuned),
        rule=dumps(own),
        majority=float(labels[~np.isnan(labels)].mean()),
        inputs=inputs,
        trained_on=TrainedOn(
            runs=[run.path.resolve().name for run in runs],
            manifest_sha256=images.manifest,
            n_images={split: int((known & (np.array(images.splits) == split)).sum()) for split in SPLITS},
            tasks={
                split: sorted({task for task, of in zip(images.tasks, images.splits, strict=True) if of == split})
                for split in SPLITS
            },
        ),
        calibration=calibration,
        seed=seed,
        libraries={"local-bench": __version__, "numpy": np.__version__, "scikit-learn": version("scikit-learn")},
    )
    return card.model_copy(update={"sha256": card.digest()})


def save(card: Card, folder: Path) -> Path:
    """Write the predictor to a new or empty folder, or over the same predictor. UserError if the folder has other
    files."""
    file = folder / FILE
    with storage_errors(folder):
        if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not file.is_file())):
            raise UserError(f"{folder} has other files: give a new folder for the predictor")
    if file.is_file() and load(folder).sha256 != card.sha256:
        raise UserError(f"{folder} has another predictor: give a new folder, or remove it")
    write_atomic(file, (json.dumps(card.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n").encode())
    return file


def load(folder: Path) -> Card:
    """Read a predictor. UserError if it is missing, damaged or altered."""
    file = folder / FILE
    try:
        if not file.is_file():
            raise UserError(f"{folder} has no {FILE}: give a folder written by `local-bench predictor train`")
        if file.stat().st_size > MAX_BYTES:
            raise UserError(f"{file} is larger than {MAX_BYTES // 1_000_000} MB: it is not a predictor")
        card = Card.model_validate(json.loads(file.read_bytes()))
    except ValidationError as e:
        where = ".".join(map(str, e.errors()[0]["loc"])) or "contents"
        raise UserError(f"{file} is not a predictor ({where}: {e.errors()[0]['msg']}): train it again") from None
    except (OSError, ValueError, RecursionError) as e:
        raise UserError(f"{file} cannot be read ({e}): train the predictor again") from None
    if card.format != FORMAT:
        raise UserError(f"{file} has format {card.format}, and this release reads {FORMAT}: train it again")
    if card.sha256 != card.digest():
        raise UserError(f"{file} was altered after training: its contents differ from its digest")
    for part in (card.predictor, card.tuned_rule, card.rule):
        loads(part)
    return card


def report(card: Card, runs: Sequence[RunDir], annotations: Sequence[Path], other_judge: bool = False) -> Report:
    """Evaluate the predictor and the baselines on annotated images of tasks that were not used in training: the test
    tasks of its own runs, and all tasks that it has never seen. UserError as `predictions`, and without such images."""
    for run in runs:
        check_inputs(card, run, other_judge)
    images = labelled_images(runs, annotations, card.inputs.scores, card.seed)
    seen = {*card.trained_on.tasks["train"], *card.trained_on.tasks["validation"]}
    decided = ~np.isnan(images.accepted)
    unseen = np.array([task not in seen for task in images.tasks], dtype=bool)
    used = decided & unseen
    if not used.any():
        raise UserError("every annotated image is of a task that trained the predictor: evaluate it on other tasks")
    features, accepted = images.features.rows(used), images.accepted[used] == 1
    tuned = _probabilities(loads(card.tuned_rule), features)
    found = {
        f"predictor ({card.kind})": _probabilities(loads(card.predictor), features),
        TUNED_RULE: tuned,
        RUN_RULE: _probabilities(loads(card.rule), features),
        MAJORITY: np.full(len(accepted), card.majority),
    }
    rows = [
        Compared(
            name,
            evaluate(values, accepted, features.tasks, features.categories, seed=card.seed),
            None
            if name == TUNED_RULE
            else accuracy_difference(values, tuned, accepted, features.tasks, seed=card.seed),
        )
        for name, values in found.items()
    ]
    return Report(rows, int((decided & ~unseen).sum()))


def predictions(card: Card, run: RunDir, other_judge: bool = False) -> list[Prediction]:
    """What the predictor says of every image of `run`, in the plan's order. UserError if the run lacks one of the
    scores, or if its judge or rubrics differ and `other_judge` is not set."""
    check_inputs(card, run, other_judge)
    rows = run.store.outcomes()
    scores = run.store.scores_by_candidate()
    made = [row for row in rows if row.candidate.image is not None]
    features = feature_table(
        [list(scores.get(row.candidate.work_id, {}).values()) for row in made],
        [row.category for row in made],
        [row.part_micro_usd for row in made],
        [row.candidate.task_id for row in made],
        card.inputs.scores,
    )
    predictor = loads(card.predictor)
    probabilities = predictor.probabilities(features)
    decided = predictor.decisions(features)
    place = {row.candidate.work_id: i for i, row in enumerate(made)}
    found = []
    for row in rows:
        of, i = row.candidate, place.get(row.candidate.work_id)
        known = i is not None and bool(decided.known[i]) and not np.isnan(probabilities.values[i])
        why = NO_IMAGE if i is None else decided.unscored.get(i) or probabilities.unscored.get(i)
        found.append(
            Prediction(
                of.work_id,
                of.model,
                of.task_id,
                of.deliverable,
                of.attempt,
                float(probabilities.values[i]) if known and i is not None else None,
                bool(decided.accepted[i]) if known and i is not None else None,
                None if known else why,
            )
        )
    return found


def settled_by_predictor(card: Card, run: RunDir, other_judge: bool = False) -> list[PredictedSettlement]:
    """Every model settled by the predictor, highest revenue first. Raises as `predictions`."""
    said = {one.work_id: one for one in predictions(card, run, other_judge)}
    rows = run.store.outcomes(attempt=1)
    lines = [
        Line(
            model=row.candidate.model,
            task_id=row.candidate.task_id,
            category=row.category,
            price_micro_usd=row.price_micro_usd,
            deliverable=row.candidate.deliverable,
            deliverables=row.deliverables,
            decision=_decision(said[row.candidate.work_id]),
            made=row.candidate.image is not None,
        )
        for row in rows
    ]
    own = {one.model: one for one in accounting(run.store, run.config.settlement).settlements}
    expected: dict[str, ExpectedRevenue] = {}
    for model in own:
        of = [
            (said[row.candidate.work_id].probability, row.part_micro_usd)
            for row in rows
            if row.candidate.model == model
        ]
        known = [(p, pays) for p, pays in of if p is not None]
        total, open_ = sum(p * pays for p, pays in known), sum(pays for p, pays in of if p is None)
        expected[model] = ExpectedRevenue(round(total), round(total) + open_, len(known), len(of) - len(known))
    costs = {model: one.cost_micro_usd for model, one in own.items()}
    return [PredictedSettlement(one, expected[one.model], own[one.model]) for one in settle(lines, costs)]


def _decision(said: Prediction) -> Decision:
    if said.accepted is not None:
        return Decision(said.accepted)
    return Decision(False) if said.unscored == NO_IMAGE else Decision(None, said.unscored or NO_IMAGE)


def labelled_images(
    runs: Sequence[RunDir], annotations: Sequence[Path], names: Sequence[str], seed: int
) -> LabelledImages:
    """All images of `runs` with scores and annotators' consensus decisions. UserError if annotations cannot be read."""
    if len(annotations) != len(runs):
        raise UserError(
            f"there are {len(runs)} runs and {len(annotations)} files of annotations: give one for each run"
        )
    scores, categories, pays, task_ids, accepted, splits, works, manifest = [], [], [], [], [], [], [], []
    for run, people in zip(runs, annotations, strict=True):
        decided = decided_by_people(run, people)
        by_candidate = run.store.scores_by_candidate()
        suite = run.config.suite.name
        for row in run.store.outcomes():
            of = row.candidate
            if of.image is None:
                continue
            scores.append([by_candidate.get(of.work_id, {}).get(name) for name in names])
            categories.append(row.category)
            pays.append(row.part_micro_usd)
            task_ids.append(digest([suite, of.task_id]))
            accepted.append(float(decided.get(of.work_id, np.nan)))
            splits.append(split_of(suite, of.task_id, seed))
            works.append(of.work_id)
            if of.work_id in decided:
                manifest.append([of.work_id, of.image, decided[of.work_id]])
    features = feature_table(
        [[score for score in of if score is not None] for of in scores], categories, pays, task_ids, names
    )
    return LabelledImages(
        features, np.array(accepted), tuple(splits), tuple(task_ids), tuple(works), digest(sorted(manifest))
    )


def inputs_of(run: RunDir) -> Inputs:
    """The scores that decide in `run`, its judges, and the rubrics of its verdicts."""
    judges = run.store.json_meta("judges") or {}
    rubrics = sorted({(row.rubric, row.rubric_sha256) for row in run.store.rubric_versions()})
    return Inputs(scores=list(thresholds_of(run.config)), judges=sorted(judges), rubrics=rubrics)


def _same_inputs(runs: Sequence[RunDir]) -> Inputs:
    first = inputs_of(runs[0])
    for run in runs[1:]:
        _refuse_difference(first, inputs_of(run), run.path, f"from {runs[0].path}", "train on runs that are alike")
    return first


def check_inputs(card: Card, run: RunDir, other_judge: bool = False) -> None:
    """UserError if `run` has not the predictor's inputs."""
    own = inputs_of(run)
    if other_judge:
        own = own.model_copy(update={"judges": card.inputs.judges, "rubrics": card.inputs.rubrics})
    hint = "train one on such runs, or give --other-judge to use it all the same"
    _refuse_difference(card.inputs, own, run.path, "from what the predictor was trained on", hint)


def _refuse_difference(expected: Inputs, found: Inputs, path: Path, than: str, hint: str) -> None:
    missing = [name for name in expected.scores if name not in found.scores]
    if missing:
        raise UserError(f"{path} has no score {missing[0]!r} that decides, which differs {than}: {hint}")
    if expected.judges != found.judges:
        raise UserError(f"the judges of {path} differ {than}: {hint}")
    theirs, ours = dict(expected.rubrics), dict(found.rubrics)
    different = next((name for name in theirs if name in ours and theirs[name] != ours[name]), None)
    if different is not None:
        raise UserError(f"the rubric {different} of {path} differs {than}: {hint}")


def _probabilities(predictor: Rule | ConceptModel, features: Features) -> NDArray[np.float64]:
    """Of a rule without annotated rates its decisions, as 0 and 1."""
    if isinstance(predictor, Rule) and predictor.paid_if_accepted is None:
        decided = predictor.decisions(features)
        return np.where(decided.known, decided.accepted.astype(np.float64), np.nan)
    return predictor.probabilities(features).values


def evaluation_json(found: Report) -> Mapping[str, Any]:
    """As JSON, by predictor."""
    return {
        "n_left_out": found.n_left_out,
        "predictors": {
            row.name: {
                "evaluation": row.evaluation and asdict(row.evaluation),
                "accuracy_over_tuned_rule": row.over_tuned_rule and asdict(row.over_tuned_rule),
            }
            for row in found.rows
        },
    }
