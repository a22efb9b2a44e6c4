"""Agreement of a run's judges with human annotators, with each other, and with themselves after the images of a set are
swapped (ServImage, appendix H, tables 10 and 11). The statistics are in `settle.agreement`."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import fmean

from local_bench.annotation.protocol import OVERALL
from local_bench.annotation.ratings import PEOPLE, Annotations, Opinion, Rating, load_annotations
from local_bench.core.errors import UserError, count
from local_bench.core.types import Verdict
from local_bench.runs.rundir import RunDir
from local_bench.runs.scoring import ScoresByWork, scores_of, sets, thresholds_of, verdicts_of
from local_bench.settle.acceptance import by_threshold
from local_bench.settle.agreement import (
    Agreement,
    Level,
    agreement_rate,
    cohen_kappa,
    krippendorff_alpha,
    mean_difference,
    rank_correlation,
    top_k_overlap,
)
from local_bench.suites.base import CNS_SET
from local_bench.suites.questions_from import scale_of
from local_bench.suites.registry import suite

PANEL = "the panel"
ALPHA_DIGITS = 2
"""Scores are rounded to this many digits for alpha, whose matrices have one row per distinct value."""


@dataclass(frozen=True)
class Pair:
    """Agreement of two raters on one dimension: a deciding score, `overall`, or another score with numeric
    annotations."""

    dimension: str
    judge: str
    against: str
    """Another judge, or `people` (the annotators' consensus)."""
    rate: Agreement | None
    """Rate of equal decisions over images. None for a score without decisions."""
    kappa: Agreement | None
    """Cohen's kappa of the decisions."""
    rho: Agreement
    """Spearman's rho over models, of each rater's mean over the images that both rated."""
    top_k: Agreement
    """Over models: overlap of the k best."""
    mean_difference: float | None
    """First minus second rater, over the images that both rated: in score points, or for decisions the difference in
    the share accepted."""
    interval: tuple[float, float] | None
    """95 % interval of the mean difference over tasks; None for fewer than two."""
    in_points: bool
    """Whether the difference is in score points."""


@dataclass(frozen=True)
class Alpha:
    """Krippendorff's alpha of several raters on one dimension, over images."""

    dimension: str
    among: str
    """`judges`, `judges and people`, or `people`."""
    n_raters: int
    level: Level
    """`interval` over scores, `nominal` over decisions."""
    alpha: Agreement
    same: Agreement
    """Raw agreement: the rate of equal ratings over all pairs of raters of an image, without an interval."""


@dataclass(frozen=True)
class OrderSwap:
    """Effect of the order of a set's images on one judge's answers."""

    judge: str
    same: Agreement
    """Rate of images with the same answer (with protocol `logit`, the most likely label) in both orders."""
    mean_difference: float | None
    """Second order minus first order, in score points."""
    interval: tuple[float, float] | None
    """95 % interval of the mean difference over tasks; None for fewer than two, and where no answer changed."""


@dataclass(frozen=True)
class Agreements:
    """All agreement statistics of a run's judges."""

    judges: list[str]
    """Labels, in the config's order."""
    raters: list[str]
    """Names of the annotators; empty without annotations."""
    k: int
    pairs: list[Pair]
    alphas: list[Alpha]
    order_swaps: list[OrderSwap]
    notes: list[str]
    """Unresolved annotations, one sentence each."""


def judge_labels(run: RunDir) -> dict[str, str]:
    """Judge id -> name, in the config's order; empty before the judge phase."""
    return run.store.json_meta("judges") or {}


def agreement(run: RunDir, people: Path | None = None, top_k: int = 3) -> Agreements:
    """Compare every judge of `run` with every other and with the annotations in `people` (see `load_annotations`).

    An image counts in the dimensions that apply to it, and in comparisons with annotators only if they rated it.
    UserError if nothing has been judged, if a single judge has no
    rater to be compared with, or if the annotations cannot be read.
    """
    labels = judge_labels(run)
    if not labels:
        raise UserError(f"{run.path} has not been judged: run `local-bench judge {run.path}` first")
    swaps = order_swaps(run)
    if people is None and len(labels) < 2 and not swaps:
        raise UserError(
            f"{run.path} has one judge and no other rater: give human annotations with --people FILE, or add "
            "a judge under `panel` in the config and judge again"
        )
    tasks = {task.task_id: task for task in run.store.tasks()}
    scored = {label: scores_of(run, tasks, verdicts_of(run.store, judge_id)) for judge_id, label in labels.items()}
    thresholds = thresholds_of(run.config)
    opinions = {label: _ratings(scores, thresholds) for label, scores in scored.items()}
    human = None
    if people is not None:
        applies: dict[str, set[str]] = defaultdict(set)
        for opinion in opinions.values():
            for name in thresholds:
                for work_id in opinion.get(name, {}):
                    applies[work_id].add(name)
        human = load_annotations(people, run, applies)
    extra = sorted({name for name in (human.consensus if human else ()) if name not in thresholds and name != OVERALL})
    dimensions = [*thresholds, OVERALL, *extra]
    candidates = {row.work_id: (row.model, row.task_id) for row in run.store.candidates()}
    comparison = _Comparison(candidates, thresholds, top_k, run.config.suite.name)
    pairs = []
    if human:
        compared = opinions | (
            {PANEL: _ratings(run.store.scores_by_candidate("judge"), thresholds)} if len(opinions) > 1 else {}
        )
        rated = [d for d in dimensions if human.consensus.get(d)]
        pairs += [comparison.pair(d, label, o, PEOPLE, human.consensus) for label, o in compared.items() for d in rated]
    for (a, first), (b, second) in combinations(opinions.items(), 2):
        pairs += [comparison.pair(d, a, first, b, second) for d in dimensions]
    alphas = [alpha for d in dimensions for alpha in _alphas(d, list(opinions.values()), human)]
    return Agreements(
        list(labels.values()),
        sorted(human.raters) if human else [],
        top_k,
        pairs,
        alphas,
        swaps,
        [*human.sampling_notes, *human.ties(run), *_other_questions(run)] if human else [],
    )


def _other_questions(run: RunDir) -> list[str]:
    """A note if there are tasks about which annotators answer other questions than the judges."""
    points = suite(run.config.suite.name).points_for_people
    n = sum(
        any(question not in shown for question, shown in zip(task.evaluation_points, points(task), strict=False))
        for task in run.store.tasks()
    )
    note = f"annotators answer other questions than the judges about {count(n, 'tasks')}: on these, agreement per "
    return [f"{note}question compares different questions of one level"] if n else []


def _ratings(scored: ScoresByWork, thresholds: Mapping[str, float]) -> Opinion:
    """One judge's ratings of every image, for each score and for `overall`."""
    opinion: Opinion = {OVERALL: {}}
    for work_id, scores in scored.items():
        for name, score in scores.items():
            if score.applies:
                value, threshold = score.value, thresholds.get(name)
                decision = None if value is None or threshold is None else value >= threshold
                opinion.setdefault(name, {})[work_id] = Rating(decision, value)
        parts = [scores[name] for name in thresholds if name in scores and scores[name].applies]
        values = [part.value for part in parts if part.value is not None]
        mean = fmean(values) if values and len(values) == len(parts) else None
        opinion[OVERALL][work_id] = Rating(by_threshold(list(scores.values()), thresholds).accepted, mean)
    return opinion


@dataclass(frozen=True)
class _Comparison:
    candidates: Mapping[str, tuple[str, str]]
    """Work id -> (model, task), in the run's order."""
    thresholds: Mapping[str, float]
    k: int
    suite: str

    def pair(self, dimension: str, judge: str, first: Opinion, against: str, second: Opinion) -> Pair:
        a, b = first.get(dimension, {}), second.get(dimension, {})
        units = [work_id for work_id in self.candidates if work_id in b or (against != PEOPLE and work_id in a)]
        decides = dimension in self.thresholds or dimension == OVERALL
        in_numbers = against != PEOPLE or _all_numbers(b)
        in_points = in_numbers and dimension != OVERALL
        first_of, second_of = ([side[unit].decision if unit in side else None for unit in units] for side in (a, b))
        tasks = [self.candidates[unit][1] for unit in units]
        of_models: dict[str, list[tuple[float, float]]] = {model: [] for model, _ in self.candidates.values()}
        differences: dict[str, list[float]] = defaultdict(list)
        for unit in units:
            model, task = self.candidates[unit]
            own, of_other = _number(a.get(unit), True), _number(b.get(unit), in_numbers)
            if own is not None and of_other is not None:
                of_models[model].append((own, of_other))
            own, of_other = (_number(side.get(unit), in_points) for side in (a, b))
            if own is not None and of_other is not None:
                differences[task].append(own - of_other)
        # each rater's mean of a model, for decisions the acceptance rate, over the images that both rated; rounded, so
        # that equal means of sixths, such as 7/6 and 7/6 or 1 and 4/3, have one rank
        x, y = ([round(fmean(p[i] for p in both), 12) if both else None for both in of_models.values()] for i in (0, 1))
        return Pair(
            dimension,
            judge,
            against,
            agreement_rate(first_of, second_of, tasks) if decides else None,
            cohen_kappa(first_of, second_of, tasks) if decides else None,
            rank_correlation(x, y),
            top_k_overlap(x, y, self.k),
            *mean_difference(differences, scale_of(self.suite, dimension) if in_points else (0.0, 1.0)),
            in_points,
        )


def _number(rating: Rating | None, in_numbers: bool) -> float | None:
    if rating is None:
        return None
    if in_numbers:
        return rating.number
    return None if rating.decision is None else float(rating.decision)


def _alphas(dimension: str, judges: Sequence[Opinion], people: Annotations | None) -> list[Alpha]:
    sides = [opinion.get(dimension, {}) for opinion in judges]
    alphas = []
    if len(sides) > 1:
        alphas.append(_alpha(dimension, "judges", sides, {u for side in sides for u in side}, numbers=True))
    if people is None or not people.consensus.get(dimension):
        return alphas
    consensus = people.consensus[dimension]
    if _all_numbers(consensus):
        alphas.append(_alpha(dimension, "judges and people", [*sides, consensus], set(consensus), numbers=True))
    raters = [opinion[dimension] for opinion in people.raters.values() if opinion.get(dimension)]
    if len(raters) > 1:
        alphas.append(_alpha(dimension, PEOPLE, raters, set(consensus), numbers=all(map(_all_numbers, raters))))
    return alphas


def _all_numbers(side: Mapping[str, Rating]) -> bool:
    return all(rating.number is not None for rating in side.values())


def _alpha(
    dimension: str, among: str, sides: Sequence[Mapping[str, Rating]], units: set[str], *, numbers: bool
) -> Alpha:
    numbers_by_unit = [[_number(side.get(unit), numbers) for side in sides] for unit in sorted(units)]
    rounded = [[None if x is None else round(x, ALPHA_DIGITS) for x in unit] for unit in numbers_by_unit]
    level: Level = "interval" if numbers else "nominal"
    pairs = [(*pair, i) for i, unit in enumerate(rounded) for pair in combinations(unit, 2)]
    same = agreement_rate([a for a, *_ in pairs], [b for _, b, _ in pairs], [i for *_, i in pairs])
    same = replace(same, low=None, high=None)  # over images it would be too narrow, and alpha has none either
    return Alpha(dimension, among, len(sides), level, krippendorff_alpha(rounded, level), same)


def order_swaps(run: RunDir) -> list[OrderSwap]:
    """One row per judge that judged sets in both orders."""
    rows = []
    for judge_id, label in judge_labels(run).items():
        verdicts = verdicts_of(run.store, judge_id)
        firsts: list[int | None] = []
        seconds: list[int | None] = []
        tasks: list[str] = []
        differences: dict[str, list[float]] = defaultdict(list)
        for (task_id, _, _), images in sets(run.store.images()).items():
            for work_id, _ in images.values():
                first, second = (verdicts.get(work_id, {}).get((CNS_SET, 0, repeat)) for repeat in (0, 1))
                if first is None or second is None:
                    continue
                firsts.append(_label(first))
                seconds.append(_label(second))
                tasks.append(task_id)
                x, y = first.value("score"), second.value("score")
                if x is not None and y is not None:
                    differences[task_id].append(y - x)
        if firsts:
            rows.append(OrderSwap(label, agreement_rate(firsts, seconds, tasks), *mean_difference(differences)))
    return rows


def _label(verdict: Verdict) -> int | None:
    return None if verdict.answer is None else verdict.answer.get("score")
