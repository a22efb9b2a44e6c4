"""Computes metrics for many subjects; each network is loaded once.

Host metrics are computed first, in a thread pool; each image of a subject is decoded once for all of them. Then the
networks run one after the other (design, invariant 3), each with its `FeatureExtractor`. Results do not depend on the
order of subjects, on the other items in a batch or on interruptions. Memory use does not depend on the number of
subjects.
"""

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from numbers import Real
from typing import Any, TypeVar

from local_bench.core.errors import ImageError, failure
from local_bench.core.types import MAX_SCORE, Message, PhaseAdvanced, Score, ScoresComputed, TimeCharged
from local_bench.judges.metrics.base import (
    Array,
    FeatureInput,
    HostMetric,
    LoadedSubject,
    Metric,
    NetworkMetric,
    Subject,
    Unscorable,
)
from local_bench.judges.metrics.extractor import FeatureExtractor, unreadable

Wanted = tuple[Subject, tuple[str, ...]]
"""A subject and the names of the metrics to compute."""
PART = 64
"""Number of subjects per `ScoresComputed`."""
Event = ScoresComputed | PhaseAdvanced | TimeCharged | Message
A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True)
class Evaluator:
    """Computes metrics on one device."""

    metrics: Mapping[str, Metric]
    device: str = "cpu"
    numerics: Mapping[str, Any] = field(default_factory=dict)
    """The numerics signature of device and software; part of the key of the feature cache."""
    io_workers: int = 2
    batch_size: int | None = None
    """Batch size of networks that support batching; None: each network's own value for this device type."""

    def run(self, wanted: Sequence[Wanted]) -> Iterator[Event]:
        """Yield the scores in parts; each (subject, metric) is scored exactly once."""
        with ThreadPoolExecutor(self.io_workers) as pool:
            for names in self._groups():
                todo = [(subject, own_names) for subject, chosen in wanted if (own_names := _among(chosen, names))]
                if todo:
                    on_host = isinstance(self.metrics[names[0]], HostMetric)
                    yield from self._hosts(pool, todo) if on_host else self._network(pool, names, todo)

    def groups(self, wanted: Sequence[Wanted]) -> int:
        """The number of subjects by which `run` advances: they are counted once per metric group."""
        return sum(1 for names in self._groups() for _, chosen in wanted if _among(chosen, names))

    def _groups(self) -> list[tuple[str, ...]]:
        """Groups of metrics that are computed together: all host metrics, then those of each network."""
        groups: dict[Hashable, list[str]] = {}
        for name, metric in self.metrics.items():
            groups.setdefault(metric.network.key if isinstance(metric, NetworkMetric) else None, []).append(name)
        return [tuple(names) for _, names in sorted(groups.items(), key=lambda group: group[0] is not None)]

    def _hosts(self, pool: ThreadPoolExecutor, todo: Sequence[Wanted]) -> Iterator[Event]:
        yield from _in_parts(_windowed(pool, self._host, todo, 4 * self.io_workers))

    def _host(self, wanted: Wanted) -> list[tuple[str, Score]]:
        subject, names = wanted
        seen = LoadedSubject(subject)
        rows = []
        for name in names:
            metric = self.metrics[name]
            assert isinstance(metric, HostMetric)
            rows.append((subject.key, _score(metric, subject, partial(metric.measure, seen))))
        return rows

    def _network(self, pool: ThreadPoolExecutor, names: tuple[str, ...], todo: Sequence[Wanted]) -> Iterator[Event]:
        first = self.metrics[names[0]]
        assert isinstance(first, NetworkMetric)
        alone = first.network.batch_size[self.device.partition(":")[0]] == 1  # does not support batching
        size = None if alone else self.batch_size
        with FeatureExtractor(first.network, pool, self.io_workers, self.device, self.numerics, size) as reader:
            rows = (
                self._compare(subject, own_names, arrays)
                for (subject, own_names), arrays in reader.read(self._inputs(todo))
            )
            reported = False
            for step in _in_parts(rows):
                if reader.opened_ns and not reported:
                    reported = True
                    yield TimeCharged("load", 0, reader.opened_ns)
                yield step
            yield from (Message(f"{names[0]}: {sentence}") for sentence in reader.sentences)

    def _inputs(self, todo: Sequence[Wanted]) -> Iterator[tuple[Wanted, tuple[FeatureInput, ...]]]:
        for subject, names in todo:
            inputs: list[FeatureInput] = []
            for name in names:
                metric = self.metrics[name]
                assert isinstance(metric, NetworkMetric)
                if subject.absent(metric.spec.needs) is None:
                    inputs += metric.inputs(subject)
            yield (subject, names), tuple(dict.fromkeys(inputs))

    def _compare(
        self, subject: Subject, names: tuple[str, ...], arrays: Mapping[FeatureInput, "Array | Unscorable"]
    ) -> list[tuple[str, Score]]:
        def value(metric: NetworkMetric) -> float:
            features = [arrays[item] for item in metric.inputs(subject)]
            for array in features:
                if isinstance(array, Unscorable):
                    raise array
            # Copies, which a metric may change: all metrics of the network share the arrays.
            return metric.value([array.copy() for array in features if not isinstance(array, Unscorable)])

        rows = []
        for name in names:
            metric = self.metrics[name]
            assert isinstance(metric, NetworkMetric)
            rows.append((subject.key, _score(metric, subject, partial(value, metric))))
        return rows


def cut_captions(metrics: Mapping[str, Metric], wanted: Iterable[Wanted]) -> dict[str, dict[str, int]]:
    """For each metric that does not read every caption whole: `n` captions, of which it cut `n_cut` after
    `max_tokens` tokens."""
    counts: dict[str, dict[str, int]] = {}
    limits: dict[tuple[Hashable, str], int | None] = {}
    texts: Counter[str] = Counter()
    for subject, names in wanted:
        for name in names:
            metric = metrics.get(name)
            if not isinstance(metric, NetworkMetric) or subject.absent(metric.spec.needs) is not None:
                continue
            for text in [item.text for item in metric.inputs(subject) if item.text is not None]:
                texts[name] += 1
                key = metric.network.key, text
                if key not in limits:
                    limits[key] = metric.network.tokens_if_cut(text)
                limit = limits[key]
                if limit is not None:
                    entry = counts.setdefault(name, {"n": 0, "n_cut": 0, "max_tokens": limit})
                    entry["n_cut"] += 1
    return {name: entry | {"n": texts[name]} for name, entry in counts.items()}


def cut_sentence(name: str, cut: Mapping[str, int]) -> str:
    return (
        f"{name}: {cut['n_cut']} of {cut['n']} captions have more than {cut['max_tokens']} tokens and were cut; "
        "the rest of them is not compared"
    )


def _among(chosen: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name in chosen)


def _score(metric: Metric, subject: Subject, value: Callable[[], float]) -> Score:
    name = metric.spec.name
    reason = subject.absent(metric.spec.needs)
    if reason is not None:
        return Score(name, None, reason)
    try:
        given: object = value()
        number = float(given) if isinstance(given, Real) else None
    except Unscorable as e:
        return Score(name, None, str(e))
    except ImageError as e:
        return Score(name, None, unreadable(e, subject.images))
    except Exception as e:  # noqa: BLE001  # raised again if it is not of this image
        return Score(name, None, failure("measuring", e))
    if number is None:
        return Score(name, None, f"the metric gave no number, but {type(given).__name__}")
    if not -MAX_SCORE <= number <= MAX_SCORE:  # NaN is no number between them either
        return Score(name, None, f"the metric gave no finite number of at most {MAX_SCORE:g}")
    within = metric.spec.within(number)
    if within is None:
        return Score(name, None, f"the metric gave a number outside its range, {metric.spec.range}")
    return Score(name, within)


def _in_parts(rows: Iterable[list[tuple[str, Score]]]) -> Iterator[ScoresComputed | PhaseAdvanced]:
    """The rows in steps of `PART` subjects."""
    part: list[tuple[str, Score]] = []
    n = 0
    for row in rows:
        part += row
        n += 1
        if n == PART:
            yield from (ScoresComputed(part), PhaseAdvanced(n))
            part, n = [], 0
    if n:
        yield from (ScoresComputed(part), PhaseAdvanced(n))


def _windowed(pool: ThreadPoolExecutor, work: Callable[[A], B], items: Iterable[A], ahead: int) -> Iterator[B]:
    """Yield `work(item)` in order, with at most `ahead` pending items in the pool."""
    pending: deque[Future[B]] = deque()
    for item in items:
        pending.append(pool.submit(work, item))
        if len(pending) > ahead:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()
