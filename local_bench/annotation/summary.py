"""The state of an annotation session for its lead: coverage, agreement, pace and adjudication."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, median
from typing import Any

from local_bench.annotation.items import Given, StoredAnswer
from local_bench.annotation.protocol import OVERALL, PREFERRED, Protocol
from local_bench.annotation.session import Session
from local_bench.settle.agreement import cohen_kappa, krippendorff_alpha

Unit = tuple[str, str]
"""(item id, deliverable; "" for the item as a whole)"""
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
    answers = [one for one in session.database.answers() if one.item_id in queue.by_id]
    table = _ratings(protocol, (one for one in answers if one.kind == "answer"))
    coverage = queue.coverage()
    disputed = queue.disputed()
    return Summary(
        protocol=protocol.id,
        raters=protocol.raters,
        n_items=len(queue.items),
        n_complete=sum(n for given, n in coverage.items() if given >= protocol.raters),
        n_disputed=len(disputed),
        n_adjudicated=len({one.item_id for one in answers if one.kind == "adjudication"}),
        coverage=coverage,
        annotators=_annotators(session, answers, table),
        fields=[_field_agreement(name, of, protocol) for name, of in table.items()],
        disputed=[
            f"{item.task_id}, image{'s' * (len(item.images) > 1)} {', '.join(str(i.deliverable) for i in item.images)}"
            for item in disputed[:MAX_LISTED]
        ],
    )


def _ratings(protocol: Protocol, answers: Iterable[StoredAnswer]) -> dict[str, dict[Unit, dict[str, float]]]:
    """Question -> unit -> annotator -> answer as a number. Decisions derived from several questions are the question
    `overall`; a preference is 0 for side a, 1 for side b and 0.5 for a tie."""
    found: dict[str, dict[Unit, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for one in answers:
        for key, values in one.given.values.items():
            for name, value in numbers(protocol, one.given, values).items():
                found[name][one.item_id, key][one.annotator] = value
    return dict(sorted(found.items(), key=lambda of: (len(of[0]) if of[0].startswith("point_") else 0, of[0])))


def numbers(protocol: Protocol, given: Given, values: Mapping[str, Any]) -> dict[str, float]:
    """The values of an answer's fields as numbers."""
    if protocol.shows == "pair":
        return {
            PREFERRED: {"tie": 0.5, "left": float(given.left == "b")}.get(values[PREFERRED], float(given.left == "a"))
        }
    found = {name: float(value) for name, value in values.items()}
    decision = protocol.decision(dict(values))
    return found if decision is None else found | {OVERALL: float(decision)}


def _field_agreement(name: str, table: Mapping[Unit, Mapping[str, float]], protocol: Protocol) -> FieldAgreement:
    units = [of for of in table.values() if len(of) > 1]
    people = sorted({who for of in units for who in of})
    ratings = [[of.get(who) for who in people] for of in units]
    alpha = krippendorff_alpha(ratings, "interval" if protocol.scores else "nominal")
    both: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for of in units:
        for a, b in combinations(sorted(of), 2):
            both[a, b].append((of[a], of[b]))
    pairs = [pair for answers in both.values() for pair in answers]
    has_decisions = all(value in (0, 1) for pair in pairs for value in pair)
    of_two = map(_kappa, both.values() if has_decisions else ())
    kappas = [(kappa.value, kappa.n) for kappa in of_two if kappa.value is not None]
    return FieldAgreement(
        name,
        len(units),
        _share([x == y for x, y in pairs]),
        Figure(fmean(value for value, _ in kappas) if kappas else None, sum(n for _, n in kappas)),
        Figure(alpha.value, alpha.n),
    )


def _kappa(pairs: Sequence[tuple[float, float]]) -> Figure:
    """Cohen's kappa of two raters' decisions; it has no value for other answers."""
    if any(value not in (0, 1) for pair in pairs for value in pair):
        return Figure(None, len(pairs))
    kappa = cohen_kappa([bool(x) for x, _ in pairs], [bool(y) for _, y in pairs])
    return Figure(kappa.value, kappa.n)


def _share(same: Sequence[bool]) -> Figure:
    return Figure(sum(same) / len(same) if same else None, len(same))


def _annotators(
    session: Session, answers: Sequence[StoredAnswer], table: Mapping[str, Mapping[Unit, Mapping[str, float]]]
) -> list[AnnotatorSummary]:
    on_screen = session.queue.on_screen()
    by_name: dict[str, list[StoredAnswer]] = defaultdict(list)
    for one in answers:
        by_name[one.annotator].append(one)
    times = {name: [one.elapsed_ms / 1000 for one in of if one.elapsed_ms is not None] for name, of in by_name.items()}
    medians = {name: median(of) for name, of in times.items() if len(of) >= MIN_FOR_PACE}
    typical = median(medians.values()) if len(medians) > 2 else None
    found = []
    for annotator in session.database.annotators():
        name = annotator.name
        own = [one for one in by_name[name] if one.kind != "repeat"]
        pairs = _against_rest(name, table)
        found.append(
            AnnotatorSummary(
                name=name,
                role=annotator.role,
                n_answers=len(own),
                n_on_screen=on_screen.get(name, 0),
                n_open=session.queue.progress(name).left,
                n_cannot_tell=sum(one.given.cannot_tell is not None for one in own),
                median_s=median(times[name]) if times.get(name) else None,
                outlier=_outlier(medians.get(name), typical),
                agreement=_share([x == y for x, y in pairs]),
                kappa=_kappa(pairs),
                repeats=_share(list(_repeated(session.protocol, by_name[name]))),
                gold=_share(list(_known(session, own))),
            )
        )
    return found


def _outlier(own: float | None, typical: float | None) -> str | None:
    if own is None or not typical:
        return None
    return "slow" if own > OUTLIER * typical else "fast" if own * OUTLIER < typical else None


def _against_rest(name: str, table: Mapping[str, Mapping[Unit, Mapping[str, float]]]) -> list[tuple[float, float]]:
    """The annotator's answer and the others' majority for every unit that both answered: of the decision if there is
    one, else of every question; the mean of scores is not a majority, so that scores must be equal to most others'."""
    pairs = []
    for question in [OVERALL] if OVERALL in table else list(table):
        for of in table[question].values():
            others = Counter(value for who, value in of.items() if who != name).most_common(2)
            if name in of and others and [n for _, n in others].count(others[0][1]) == 1:
                pairs.append((of[name], others[0][0]))
    return pairs


def _repeated(protocol: Protocol, answers: Sequence[StoredAnswer]) -> Iterable[bool]:
    """Whether each value of each repeat equals that of the first answer."""
    first = {one.item_id: one.given for one in answers if one.kind == "answer"}
    for one in answers:
        before = first.get(one.item_id)
        if one.kind != "repeat" or before is None:
            continue
        if before.cannot_tell or one.given.cannot_tell:
            yield bool(before.cannot_tell) == bool(one.given.cannot_tell)
            continue
        for key, values in one.given.values.items():
            yield numbers(protocol, one.given, values) == numbers(protocol, before, before.values[key])


def _known(session: Session, answers: Sequence[StoredAnswer]) -> Iterable[bool]:
    """Whether each known answer was given."""
    for one in answers:
        gold = session.queue.by_id[one.item_id].gold
        for key, known in (gold or {}).items():
            values = one.given.values.get(key)
            given = None if values is None else numbers(session.protocol, one.given, values)
            for name, value in known.items():
                if given is None or name in given:
                    yield given is not None and given[name] == float(value)
