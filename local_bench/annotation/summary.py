"""The state of an annotation session for its lead: coverage, agreement, pace and adjudication."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from statistics import fmean, median
from typing import Any

from local_bench.annotation.protocol import OVERALL, PREFERRED, Answer, Protocol, StoredAnswer
from local_bench.annotation.session import Session
from local_bench.settle.agreement import cohen_kappa, krippendorff_alpha

Ratings = dict[str, dict[tuple[str, str], dict[str, float]]]
"""Question -> unit (item id, deliverable; "" for the item as a whole) -> annotator -> answer as a number."""
Pair = tuple[float, float]
OUTLIER = 3.0
"""A median time per answer that is this many times longer or shorter than the median over all annotators."""
MIN_FOR_PACE = 10
MAX_LISTED = 50


@dataclass(frozen=True)
class Figure:
    """A statistic with the number of units behind it; `value` is None if it is undefined."""

    value: float | None
    n: int

    @property
    def text(self) -> str:
        return "-" if self.value is None else f"{self.value:.3f} ({self.n})"


@dataclass(frozen=True)
class FieldAgreement:
    """Agreement of the annotators on one question, over the units that two or more of them answered."""

    name: str
    n_units: int
    raw: Figure
    """Fraction of equal answers over all pairs of annotators of a unit."""
    kappa: Figure
    """Cohen's kappa, mean over the pairs of annotators for which it is defined; only of questions with two answers."""
    alpha: Figure
    """Krippendorff's alpha: nominal, or interval for scores."""


@dataclass(frozen=True)
class AnnotatorSummary:
    """One annotator's numbers."""

    name: str
    role: str
    n_answers: int
    """Without repeats; adjudications for adjudicators."""
    n_on_screen: int
    n_open: int
    """Items that this annotator could answer now."""
    n_cannot_tell: int
    median_s: float | None
    """Median seconds per answer, as measured by the page."""
    outlier: str | None
    """`fast` or `slow` compared with the others."""
    agreement: Figure
    """Fraction of answers equal to the majority of the other annotators; ties are left out."""
    kappa: Figure
    """Cohen's kappa with that majority."""
    repeats: Figure
    """Fraction of hidden repeats with the same answer."""
    gold: Figure
    """Fraction of known answers that were given."""


@dataclass(frozen=True)
class Summary:
    """The state of a session."""

    protocol: str
    raters: int
    n_items: int
    n_complete: int
    n_disputed: int
    n_adjudicated: int
    coverage: dict[int, int]
    annotators: list[AnnotatorSummary]
    fields: list[FieldAgreement]
    disputed: list[str]
    """Task and deliverables of the first items that wait for adjudication."""


def summary(session: Session) -> Summary:
    """Compute the state of a session from its stored answers."""
    queue, protocol = session.queue, session.protocol
    answers = [answer for answer in session.database.answers() if answer.item_id in queue.by_id]
    every: Ratings = defaultdict(lambda: defaultdict(dict))
    for answer in answers:
        for key, values in answer.given.values.items() if answer.kind == "answer" else ():
            for name, value in numbers(protocol, answer.given, values).items():
                every[name][answer.item_id, key][answer.annotator] = value
    order = sorted(every, key=lambda name: (len(name) * name.startswith("point_"), name))
    ratings = {name: every[name] for name in order}
    coverage, disputed = queue.coverage(), queue.disputed()
    return Summary(
        protocol=protocol.id,
        raters=protocol.raters,
        n_items=len(queue.items),
        n_complete=sum(n for n_answers, n in coverage.items() if n_answers >= protocol.raters),
        n_disputed=len(disputed),
        n_adjudicated=len({answer.item_id for answer in answers if answer.kind == "adjudication"}),
        coverage=coverage,
        annotators=_annotators(session, answers, ratings),
        fields=[_field_agreement(name, units.values(), protocol) for name, units in ratings.items()],
        disputed=[
            f"{item.task_id}, image{'s' * (len(item.images) > 1)} {', '.join(str(i.deliverable) for i in item.images)}"
            for item in disputed[:MAX_LISTED]
        ],
    )


def numbers(protocol: Protocol, answer: Answer, values: Mapping[str, Any]) -> dict[str, float]:
    """The values of an answer's fields as numbers, and the decision that follows from them as `overall`; a preference
    is 0 for side a, 1 for side b and 0.5 for a tie."""
    if protocol.shows == "pair":
        sides = {"tie": 0.5, "left": float(answer.left == "b"), "right": float(answer.left == "a")}
        return {PREFERRED: sides[values[PREFERRED]]}
    decision = protocol.decision(dict(values))
    decided = {} if decision is None else {OVERALL: float(decision)}
    return {name: float(value) for name, value in values.items()} | decided


def _field_agreement(name: str, ratings: Iterable[Mapping[str, float]], protocol: Protocol) -> FieldAgreement:
    units = [by_annotator for by_annotator in ratings if len(by_annotator) > 1]
    people = sorted({annotator for unit in units for annotator in unit})
    rows = [list(map(unit.get, people)) for unit in units]
    alpha = krippendorff_alpha(rows, "interval" if protocol.scores else "nominal")
    of_two = [[(unit[a], unit[b]) for unit in units if a in unit and b in unit] for a, b in combinations(people, 2)]
    pairs = list(chain.from_iterable(of_two))
    kappas = [kappa for kappa in map(_kappa, of_two if _are_decisions(pairs) else ()) if kappa.value is not None]
    mean_kappa = fmean(kappa.value or 0 for kappa in kappas) if kappas else None
    return FieldAgreement(
        name, len(units), _equal(pairs), Figure(mean_kappa, sum(k.n for k in kappas)), Figure(alpha.value, alpha.n)
    )


def _are_decisions(pairs: Iterable[Pair]) -> bool:
    return all(value in (0, 1) for pair in pairs for value in pair)


def _kappa(pairs: Sequence[Pair]) -> Figure:
    """Cohen's kappa of two raters' decisions; it has no value for other answers."""
    if not _are_decisions(pairs):
        return Figure(None, len(pairs))
    kappa = cohen_kappa([bool(first) for first, _ in pairs], [bool(second) for _, second in pairs])
    return Figure(kappa.value, kappa.n)


def _equal(pairs: Iterable[tuple[object, object]]) -> Figure:
    """The fraction of pairs of equal values."""
    equal = [first == second for first, second in pairs]
    return Figure(sum(equal) / len(equal) if equal else None, len(equal))


def _annotators(session: Session, answers: Sequence[StoredAnswer], ratings: Ratings) -> list[AnnotatorSummary]:
    on_screen = session.queue.on_screen()
    by_name: dict[str, list[StoredAnswer]] = defaultdict(list)
    for answer in answers:
        by_name[answer.annotator].append(answer)
    times = {name: [a.elapsed_ms / 1000 for a in by if a.elapsed_ms is not None] for name, by in by_name.items()}
    medians = {name: median(seconds) for name, seconds in times.items() if len(seconds) >= MIN_FOR_PACE}
    typical = median(medians.values()) if len(medians) > 2 else None
    summaries = []
    for annotator in session.database.annotators():
        name = annotator.name
        counted = [answer for answer in by_name[name] if answer.kind != "repeat"]
        pairs = _against_rest(name, ratings)
        outlier = None
        if name in medians and typical:
            own = medians[name]
            outlier = "slow" if own > OUTLIER * typical else "fast" if own * OUTLIER < typical else None
        summaries.append(
            AnnotatorSummary(
                name=name,
                role=annotator.role,
                n_answers=len(counted),
                n_on_screen=on_screen.get(name, 0),
                n_open=session.queue.progress(name).left,
                n_cannot_tell=sum(answer.given.cannot_tell is not None for answer in counted),
                median_s=median(times[name]) if times.get(name) else None,
                outlier=outlier,
                agreement=_equal(pairs),
                kappa=_kappa(pairs),
                repeats=_equal(_repeated(session.protocol, by_name[name])),
                gold=_equal(_known(session, counted)),
            )
        )
    return summaries


def _against_rest(name: str, ratings: Ratings) -> list[Pair]:
    """The annotator's answer and the others' majority for every unit that both answered: of the decision if there is
    one, else of every question; the mean of scores is not a majority, so that scores must be equal to most others'."""
    pairs = []
    for question in [OVERALL] if OVERALL in ratings else ratings:
        for unit in ratings[question].values():
            others = Counter(value for annotator, value in unit.items() if annotator != name).most_common(2)
            if name in unit and others and [n for _, n in others].count(others[0][1]) == 1:
                pairs.append((unit[name], others[0][0]))
    return pairs


def _repeated(protocol: Protocol, answers: Sequence[StoredAnswer]) -> Iterator[tuple[object, object]]:
    """Each value of each repeat, and that of the first answer."""
    first = {answer.item_id: answer.given for answer in answers if answer.kind == "answer"}
    for answer in answers:
        if answer.kind != "repeat" or answer.item_id not in first:
            continue
        before, again = first[answer.item_id], answer.given
        if before.cannot_tell or again.cannot_tell:
            yield bool(before.cannot_tell), bool(again.cannot_tell)
            continue
        for key, values in again.values.items():
            yield numbers(protocol, again, values), numbers(protocol, before, before.values[key])


def _known(session: Session, answers: Sequence[StoredAnswer]) -> Iterator[tuple[object, object]]:
    """Each answer to an item with a known one, and that one."""
    for answer in answers:
        for key, gold in (session.queue.by_id[answer.item_id].gold or {}).items():
            values = answer.given.values.get(key)
            rated = dict.fromkeys(gold) if values is None else numbers(session.protocol, answer.given, values)
            yield from ((rated[name], float(value)) for name, value in gold.items() if name in rated)
