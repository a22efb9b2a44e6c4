"""How far a run's judges agree with people, with each other, and with themselves when a set is shown the other way
round (ServImage, appendix H, tables 10 and 11). The figures are those of `settle.agreement`."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean

from local_bench.analysis.annotations import OVERALL, PEOPLE, Annotations, Opinion, Rating, people_labels
from local_bench.core.errors import LedgerError, UserError
from local_bench.core.types import Verdict
from local_bench.runs.acceptance import thresholds_of
from local_bench.runs.rundir import RunDir
from local_bench.runs.scoring import ScoresByWork, scores_of, sets, verdicts_of
from local_bench.settle.acceptance import by_threshold
from local_bench.settle.agreement import (
    Agreement,
    Level,
    agreement_rate,
    cohen_kappa,
    krippendorff_alpha,
    spearman,
    top_k_overlap,
)
from local_bench.settle.intervals import bootstrap_mean
from local_bench.suites.servimage.questions import CNS_SET

PANEL = "the panel"
ALPHA_DIGITS = 2
"""Scores go into alpha to the hundredth: its table has a line for every value there is."""


@dataclass(frozen=True)
class Pair:
    """Two sides on one dimension: a score that decides, `overall`, or another score that people gave numbers for."""

    dimension: str
    judge: str
    against: str
    """Another judge, or `people`."""
    rate: Agreement | None
    """Over images: the same decision. None for a score that decides nothing."""
    kappa: Agreement | None
    """Cohen's, of the decisions; its interval resamples whole orders."""
    rho: Agreement
    """Spearman's, over models: each side's mean over the images that both rated."""
    top_k: Agreement
    """Over models: the part of the k best that both name."""


@dataclass(frozen=True)
class Alpha:
    """Krippendorff's alpha among several on one dimension, over images."""

    dimension: str
    among: str
    """`judges`, `judges and people`, or `people`."""
    n_raters: int
    level: Level
    """`interval` over scores, `nominal` over decisions."""
    alpha: Agreement


@dataclass(frozen=True)
class OrderSwap:
    """What showing a set in the other order does to one judge's answers about its images."""

    judge: str
    same: Agreement
    """The share of images with the same answer (under `logit` the likeliest label) in both orders."""
    mean_difference: float | None
    """Second order less first, in points of the score."""
    interval: tuple[float, float] | None
    """Of the mean difference, resampling whole sets; None for fewer than two."""


@dataclass(frozen=True)
class Agreements:
    """All that can be said of a run's judges."""

    judges: list[str]
    """Labels, in the config's order."""
    raters: list[str]
    """People, by name; empty without labels."""
    k: int
    pairs: list[Pair]
    alphas: list[Alpha]
    order_swaps: list[OrderSwap]
    notes: list[str]
    """What is open in people's labels, a sentence each."""


def judge_labels(run: RunDir) -> dict[str, str]:
    """Judge id -> label, in the config's order; empty where nothing has been judged. LedgerError if it is damaged."""
    labels = run.store.json_meta("judges") or {}
    if not isinstance(labels, dict) or not all(isinstance(label, str) for label in labels.values()):
        raise LedgerError(f"the judges noted in {run.store.path} are not judges: run the judge stage again")
    return labels


def agreement(run: RunDir, people: Path | None = None, top_k: int = 3, intervals: bool = True) -> Agreements:
    """Every judge of `run` against every other and against the labels in `people` (see `people_labels`).

    An image counts in a dimension that applies to it and, beside people, that they rated. `intervals` asks for those
    that take a bootstrap. UserError where nothing has been judged, where there is nobody to compare the one judge
    with, or where the labels cannot be read.
    """
    labels = judge_labels(run)
    if not labels:
        raise UserError(f"{run.path} has not been judged: run `local-bench judge {run.path}` first")
    swaps = order_swaps(run)
    if people is None and len(labels) < 2 and not swaps:
        raise UserError(
            f"{run.path} has one judge and nobody to compare it with: give people's labels with --people FILE, or add "
            "a judge under `panel` in the config and judge again"
        )
    tasks = {task.task_id: task for task in run.store.tasks()}
    scored = {label: scores_of(run, tasks, verdicts_of(run.store, judge_id)) for judge_id, label in labels.items()}
    thresholds = thresholds_of(run.config)
    opinions = {label: _opinion(scores, thresholds) for label, scores in scored.items()}
    said = None
    if people is not None:
        applies: dict[str, set[str]] = defaultdict(set)
        for opinion in opinions.values():
            for name in thresholds:
                for work_id in opinion.get(name, {}):
                    applies[work_id].add(name)
        said = people_labels(people, run, applies)
    extra = sorted({name for name in (said.word if said else ()) if name not in thresholds and name != OVERALL})
    dimensions = [*thresholds, OVERALL, *extra]
    places = {row.work_id: (row.model, row.task_id) for row in run.store.candidates()}
    table = _Table(places, thresholds, top_k, intervals)
    pairs = []
    if said:
        beside = opinions | (
            {PANEL: _opinion(run.store.scores_by_candidate("judge"), thresholds)} if len(opinions) > 1 else {}
        )
        rated = [d for d in dimensions if said.word.get(d)]
        pairs += [table.pair(d, label, o, PEOPLE, said.word) for label, o in beside.items() for d in rated]
    for (a, first), (b, second) in combinations(opinions.items(), 2):
        pairs += [table.pair(d, a, first, b, second) for d in dimensions]
    alphas = [alpha for d in dimensions for alpha in _alphas(d, list(opinions.values()), said)]
    return Agreements(
        list(labels.values()),
        sorted(said.raters) if said else [],
        top_k,
        pairs,
        alphas,
        swaps,
        said.notes(run) if said else [],
    )


def _opinion(scored: ScoresByWork, thresholds: Mapping[str, float]) -> Opinion:
    """What one judge's scores say of every image, each score alone and all that decide together."""
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
class _Table:
    """What every pair of sides needs to know of the run."""

    places: Mapping[str, tuple[str, str]]
    """Work id -> (model, task), in the run's order."""
    thresholds: Mapping[str, float]
    k: int
    intervals: bool

    def pair(self, dimension: str, judge: str, first: Opinion, against: str, second: Opinion) -> Pair:
        a, b = first.get(dimension, {}), second.get(dimension, {})
        units = [work_id for work_id in self.places if work_id in b or (against != PEOPLE and work_id in a)]
        decides = dimension in self.thresholds or dimension == OVERALL
        means = self._model_means(units, a, b, b_in_numbers=against != PEOPLE or _all_numbers(b))
        x, y = [m[0] for m in means], [m[1] for m in means]
        return Pair(
            dimension,
            judge,
            against,
            agreement_rate([_decision(a, u) for u in units], [_decision(b, u) for u in units]) if decides else None,
            self._kappa(units, a, b) if decides else None,
            spearman(x, y),
            top_k_overlap(x, y, self.k),
        )

    def _kappa(self, units: Sequence[str], a: Mapping[str, Rating], b: Mapping[str, Rating]) -> Agreement:
        tasks = {task: i for i, task in enumerate(dict.fromkeys(self.places[unit][1] for unit in units))}
        clusters = [tasks[self.places[unit][1]] for unit in units] if self.intervals else None
        return cohen_kappa([_decision(a, unit) for unit in units], [_decision(b, unit) for unit in units], clusters)

    def _model_means(
        self, units: Iterable[str], a: Mapping[str, Rating], b: Mapping[str, Rating], *, b_in_numbers: bool
    ) -> list[tuple[float | None, float | None]]:
        """Both sides' mean a model, over the images that both rated; of decisions, the part that is accepted."""
        values: dict[str, list[tuple[float, float]]] = {self.places[unit][0]: [] for unit in self.places}
        for unit in units:
            x, y = _number(a.get(unit), True), _number(b.get(unit), b_in_numbers)
            if x is not None and y is not None:
                values[self.places[unit][0]].append((x, y))
        return [
            (fmean(x for x, _ in both), fmean(y for _, y in both)) if both else (None, None) for both in values.values()
        ]


def _decision(side: Mapping[str, Rating], unit: str) -> bool | None:
    return side[unit].decision if unit in side else None


def _number(rating: Rating | None, in_numbers: bool) -> float | None:
    if rating is None:
        return None
    if in_numbers:
        return rating.number
    return None if rating.decision is None else float(rating.decision)


def _alphas(dimension: str, judges: Sequence[Opinion], people: Annotations | None) -> list[Alpha]:
    sides = [opinion.get(dimension, {}) for opinion in judges]
    found = []
    if len(sides) > 1:
        found.append(_alpha(dimension, "judges", sides, {u for side in sides for u in side}, numbers=True))
    if people is None or not people.word.get(dimension):
        return found
    word = people.word[dimension]
    if _all_numbers(word):
        found.append(_alpha(dimension, "judges and people", [*sides, word], set(word), numbers=True))
    raters = [opinion[dimension] for opinion in people.raters.values() if opinion.get(dimension)]
    if len(raters) > 1:
        found.append(_alpha(dimension, PEOPLE, raters, set(word), numbers=all(map(_all_numbers, raters))))
    return found


def _all_numbers(side: Mapping[str, Rating]) -> bool:
    return all(rating.number is not None for rating in side.values())


def _alpha(
    dimension: str, among: str, sides: Sequence[Mapping[str, Rating]], units: set[str], *, numbers: bool
) -> Alpha:
    given = [[_number(side.get(unit), numbers) for side in sides] for unit in sorted(units)]
    rounded = [[None if x is None else round(x, ALPHA_DIGITS) for x in unit] for unit in given]
    level: Level = "interval" if numbers else "nominal"
    return Alpha(dimension, among, len(sides), level, krippendorff_alpha(rounded, level))


def order_swaps(run: RunDir) -> list[OrderSwap]:
    """One row for every judge that was shown sets in both orders."""
    rows = []
    for judge_id, label in judge_labels(run).items():
        said = verdicts_of(run.store, judge_id)
        firsts: list[int | None] = []
        seconds: list[int | None] = []
        apart: list[list[float]] = []
        for images in sets(run.store).values():
            apart.append([])
            for work_id, _ in images.values():
                first, second = (said.get(work_id, {}).get((CNS_SET, 0, repeat)) for repeat in (0, 1))
                if first is None or second is None:
                    continue
                firsts.append(_label(first))
                seconds.append(_label(second))
                x, y = first.value("score"), second.value("score")
                if x is not None and y is not None:
                    apart[-1].append(y - x)
        every = [difference for of_set in apart for difference in of_set]
        if firsts:
            same = agreement_rate(firsts, seconds)
            rows.append(OrderSwap(label, same, fmean(every) if every else None, bootstrap_mean(apart)))
    return rows


def _label(verdict: Verdict) -> int | None:
    return None if verdict.answer is None else verdict.answer.get("score")
