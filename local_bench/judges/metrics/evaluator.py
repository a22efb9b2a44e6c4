"""Computes metrics for many subjects; each network is loaded once.

Host metrics are computed first, in a thread pool; each image of a subject is decoded once for all of them. Then the
networks run one after the other (design, invariant 3), each with its `FeatureExtractor`: arrays come from the cache, or
are computed in batches of a fixed shape. Results do not depend on the order of subjects, on the other items in a batch
or on interruptions. Memory use does not depend on the number of subjects.

A thread pool looks up inputs in the cache, or decodes and preprocesses them, while a network runs. Incomplete batches
are padded, so that all batches have one shape (design, invariant 2). Before its first batch on a machine, a network
runs one batch in two orders; if the bytes of an array change, the batch size is set to 1 and a message reports it.
"""

import hashlib
import json
import sqlite3
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from numbers import Real
from typing import Any, Self, TypeVar

import numpy as np
import torch
from PIL import Image

from local_bench.core.errors import ImageError, LocalBenchError, RunImageError, failure, is_of_item, is_out_of_memory
from local_bench.core.files import cache_dir
from local_bench.core.types import (
    MAX_SCORE,
    Message,
    PhaseAdvanced,
    Score,
    ScoresComputed,
    TimeCharged,
    canonical_json,
    digest,
)
from local_bench.judges.metrics.base import (
    FAULTY,
    NO_MEMORY,
    Array,
    FeatureInput,
    HostMetric,
    ImageFile,
    LoadedSubject,
    Metric,
    Network,
    NetworkMetric,
    Subject,
    Unscorable,
)

A = TypeVar("A")
B = TypeVar("B")
M = TypeVar("M", bound=Metric)
Wanted = tuple[Subject, tuple[str, ...]]
"""A subject and the names of the metrics to compute."""
Found = Mapping[FeatureInput, Array | Unscorable]
_Prepared = tuple[FeatureInput, Any]
"""A feature input without an array in the cache, and what the network's `prepare` made of it."""
Event = ScoresComputed | PhaseAdvanced | TimeCharged | Message
PART = 64
"""Number of subjects per `ScoresComputed`."""
_PROBE_SIDE = 64
_SCHEMA = """
CREATE TABLE IF NOT EXISTS about (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS arrays (
  look TEXT PRIMARY KEY, shape TEXT NOT NULL, data BLOB NOT NULL, sha256 TEXT NOT NULL) STRICT, WITHOUT ROWID;
"""
_LOCK_TIMEOUT_S = 30


class FeatureCache:
    """The arrays of one identity across runs on one machine: an SQLite file below `LOCAL_BENCH_CACHE`; safe for several
    threads and processes. Errors disable the cache and set `fault`.

    An identity is the network (model, weights, preprocessing, dtype), device, software and batch size, so a cached
    array equals the one that would be computed. A row with a wrong checksum is computed again.
    """

    def __init__(self, identity: Mapping[str, Any]) -> None:
        self.path = cache_dir() / "arrays" / f"{digest(identity)}.sqlite"
        self.fault: str | None = None
        self._lock = threading.Lock()
        self._db: sqlite3.Connection | None = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self.path, timeout=_LOCK_TIMEOUT_S, check_same_thread=False)
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.executescript(_SCHEMA)
            with self._db:
                about = "INSERT OR IGNORE INTO about VALUES ('identity', ?)"
                self._db.execute(about, (canonical_json(dict(identity)),))
        except (sqlite3.Error, OSError) as e:
            self._disable(e)

    def close(self) -> None:
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None

    @property
    def alone(self) -> bool | None:
        """Result of the batch-invariance check; None if it has not run yet."""
        row = self._select("SELECT value FROM about WHERE key = 'alone'")
        return None if row is None else row[0] == "yes"

    @alone.setter
    def alone(self, holds: bool) -> None:
        self._insert("INSERT OR REPLACE INTO about VALUES ('alone', ?)", [("yes" if holds else "no",)])

    def get(self, key: str) -> Array | None:
        """The cached array for the feature input with key `key`; None if it is missing or damaged."""
        row = self._select("SELECT shape, data, sha256 FROM arrays WHERE look = ?", key)
        if row is None:
            return None
        shape, data, sha256 = row
        if _checksum(key, shape, data) != sha256:
            return None
        return np.frombuffer(data, np.float32).reshape(json.loads(shape))

    def put(self, arrays: Mapping[str, Array]) -> None:
        """Store arrays by the keys of their feature inputs."""
        rows = []
        for key, array in arrays.items():
            shape, data = json.dumps(array.shape), np.ascontiguousarray(array, np.float32).tobytes()
            rows.append((key, shape, data, _checksum(key, shape, data)))
        self._insert("INSERT OR REPLACE INTO arrays VALUES (?, ?, ?, ?)", rows)

    def _select(self, query: str, *values: Any) -> Any:
        return self._use(lambda db: db.execute(query, values).fetchone())

    def _insert(self, statement: str, rows: list[tuple[Any, ...]]) -> None:
        self._use(lambda db: db.executemany(statement, rows))

    def _use(self, work: Callable[[sqlite3.Connection], Any]) -> Any:
        """What `work` returns, in one transaction; None if the cache is disabled or an error disables it."""
        with self._lock:
            if self._db is None:
                return None
            try:
                with self._db:
                    return work(self._db)
            except sqlite3.Error as e:
                self._disable(e)
                return None

    def _disable(self, error: Exception) -> None:
        self.fault = f"{self.path} cannot be used ({error}), so features are not cached: remove it"
        if self._db is not None:
            with suppress(sqlite3.Error):
                self._db.close()
            self._db = None


def _checksum(key: str, shape: str, data: bytes) -> str:
    return hashlib.sha256(f"{key}{shape}".encode() + data).hexdigest()


class FeatureExtractor:
    """Extracts feature arrays with one network; a context manager, used by one thread."""

    def __init__(
        self,
        network: Network,
        pool: ThreadPoolExecutor,
        io_workers: int,
        device: str,
        numerics: Mapping[str, Any],
        batch_size: int | None = None,
    ) -> None:
        self.opened_ns: int | None = None
        """Monotonic time at which the network was loaded; None while every array came from the cache."""
        self._network, self._pool, self._io_workers = network, pool, io_workers
        self._device, self._numerics = device, numerics
        self._device_type = torch.device(device).type
        self._batch_size = batch_size or network.batch_size[self._device_type]
        self._opening = threading.Lock()
        self._batch_variant = False
        self._cache = self._open_cache()
        if self._cache.alone is False:
            self._disable_batching()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._cache.close()
        if self.opened_ns is not None:
            self._network.close()

    @property
    def sentences(self) -> list[str]:
        """Messages for the user."""
        variant = "results depend on the other images in a batch here, so the batch size is 1"
        return [sentence for sentence in (variant if self._batch_variant else None, self._cache.fault) if sentence]

    def read(self, items: Iterable[tuple[A, Sequence[FeatureInput]]]) -> Iterator[tuple[A, Found]]:
        """Yield every item with the arrays of its inputs, in order. Raises LocalBenchError when memory runs out."""
        results: dict[FeatureInput, Array | Unscorable] = {}
        uses: Counter[FeatureInput] = Counter()
        waiting: deque[tuple[A, Sequence[FeatureInput]]] = deque()
        fetching: deque[tuple[FeatureInput, Future[tuple[Array | Unscorable | None, Any]]]] = deque()
        ready: dict[bool, list[_Prepared]] = {False: [], True: []}

        def drain(most: int) -> None:
            while len(fetching) > most:
                feature_input, future = fetching.popleft()
                array, prepared = future.result()
                if array is not None:
                    results[feature_input] = array
                    continue
                batch = ready[feature_input.text is not None]
                batch.append((feature_input, prepared))
                if len(batch) == self._batch_size:
                    results.update(self._run(batch))
                    batch.clear()

        def complete() -> Iterator[tuple[A, Found]]:
            while waiting and all(feature_input in results for feature_input in waiting[0][1]):
                item, inputs = waiting.popleft()
                yield item, {feature_input: results[feature_input] for feature_input in inputs}
                for feature_input in inputs:
                    uses[feature_input] -= 1
                    if not uses[feature_input]:
                        del results[feature_input], uses[feature_input]

        for item, inputs in items:
            waiting.append((item, inputs))
            for feature_input in inputs:
                if not uses[feature_input]:
                    fetching.append((feature_input, self._pool.submit(self._fetch, feature_input)))
                uses[feature_input] += 1
            drain(2 * self._batch_size + 2 * self._io_workers)
            yield from complete()
        drain(0)
        for batch in ready.values():
            results.update(self._run(batch))
        yield from complete()
        assert not waiting, "every feature input has been processed"

    def _fetch(self, feature_input: FeatureInput) -> tuple[Array | Unscorable | None, Any]:
        """An input's array in the cache, or the reason why it has none; else None and the preprocessed input. Runs in
        the thread pool."""
        try:
            digests_known = all(image.known_sha256 for image in feature_input.images)
            images = None if digests_known else self._load(feature_input.images)
            cached = self._cache.get(feature_input.key)
            if cached is not None:
                return cached, None
            if images is None:
                images = self._load(feature_input.images)
            self._open(feature_input)
            try:
                return None, self._network.prepare(images, feature_input.text)
            except (Exception, SystemExit) as e:  # noqa: BLE001  # raised again if it is not of this input
                return _unscorable(e), None
        except ImageError as e:
            return Unscorable(unreadable(e, feature_input.images)), None
        except Unscorable as e:
            return e, None

    def _load(self, images: Sequence[ImageFile]) -> list[Image.Image]:
        return [image.load(self._network.max_pixels) for image in images]

    def _run(self, batch: Sequence[_Prepared]) -> Found:
        if not batch:
            return {}
        inputs = [prepared for _, prepared in batch]
        inputs += inputs[-1:] * (self._batch_size - len(inputs))
        try:
            arrays = [np.asarray(array, np.float32) for array in self._network.run(inputs)]  # as in the cache
        except (Exception, SystemExit) as e:
            if not is_out_of_memory(e):
                fault = _unscorable(e)
                if len(batch) == 1:
                    return {batch[0][0]: fault}
                return {feature_input: array for item in batch for feature_input, array in self._run([item]).items()}
            if self._batch_size > 1:
                raise LocalBenchError(
                    f"{self._device} has too little memory for a batch of {self._batch_size} images: end other "
                    "processes that use it and run the same command again, or measure a new run or a folder with a "
                    "smaller engine.metric_batch_size; finished scores are kept"
                ) from e
            return {batch[0][0]: Unscorable(NO_MEMORY)}
        computed = {feature_input: array for (feature_input, _), array in zip(batch, arrays, strict=False)}
        self._cache.put({feature_input.key: array for feature_input, array in computed.items()})
        return computed

    def _open(self, first: FeatureInput) -> None:
        with self._opening:
            if self.opened_ns is not None:
                return
            try:
                self._network.open(self._device)
                supported = self._network.batch_size[self._device_type]
                if self._batch_size > 1 and self._cache.alone is None and supported > 1:
                    self._cache.alone = invariant = self._is_batch_invariant(first)
                    if not invariant:
                        self._batch_variant = True
                        self._disable_batching()
            except (Exception, SystemExit) as e:
                self._network.close()
                if not (is_of_item(e) or is_out_of_memory(e)):
                    raise
                reason = (str(e).strip().splitlines() or [""])[0][:200]
                raise LocalBenchError(
                    f"the metric's network cannot be used on {self._device} ({type(e).__name__}: {reason}): check its "
                    "files, the installed packages and the memory that is free"
                ) from None
            self.opened_ns = time.monotonic_ns()

    def _is_batch_invariant(self, first: FeatureInput) -> bool:
        """Whether permuting a batch of inputs like `first`, and of texts, leaves the bytes of every array unchanged on
        this machine."""
        noise = np.random.default_rng(0).integers(0, 256, (self._batch_size, _PROBE_SIDE, _PROBE_SIDE, 3), np.uint8)
        n, text = (len(first.images), first.text) if first.images else (1, None)
        inputs = [[self._network.prepare([Image.fromarray(pixels) for _ in range(n)], text) for pixels in noise]]
        if self._network.reads_text and text is None:
            inputs.append([self._network.prepare([], "word " * i) for i in range(1, self._batch_size + 1)])
        for batch in inputs:
            rotated = [*batch[1:], batch[0]]
            arrays, moved = self._network.run(batch), self._network.run(rotated)
            if any(a.tobytes() != b.tobytes() for a, b in zip([*arrays[1:], arrays[0]], moved, strict=True)):
                return False
        return True

    def _disable_batching(self) -> None:
        self._cache.close()
        self._batch_size = 1
        self._cache = self._open_cache()

    def _open_cache(self) -> FeatureCache:
        return FeatureCache(
            {"network": self._network.identity, "numerics": self._numerics, "batch_size": self._batch_size}
        )


def _unscorable(error: Exception | SystemExit) -> Unscorable:
    """The reason of an input for which `error` was raised. Raises `error` if it is not of this input alone."""
    if isinstance(error, ImageError):
        raise error
    if isinstance(error, Unscorable):
        return error
    return Unscorable(failure("measuring", error))


def unreadable(error: ImageError, images: Iterable[ImageFile]) -> str:
    """The reason why an image cannot be read, with file names instead of paths."""
    sentence = str(error)
    for image in images:
        sentence = sentence.replace(str(image.path), image.path.name)
    return f"{FAULTY}{error.fault}: {sentence}" if isinstance(error, RunImageError) else sentence


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

    def run_group(self, group: Mapping[str, Metric], wanted: Sequence[Wanted]) -> Iterator[Event]:
        """Yield the scores of one of the `groups` in parts; each (subject, metric) is scored exactly once.
        LocalBenchError if its network cannot be used."""
        hosted = {name: metric for name, metric in group.items() if isinstance(metric, HostMetric)}
        networked = {name: metric for name, metric in group.items() if isinstance(metric, NetworkMetric)}
        with ThreadPoolExecutor(self.io_workers) as pool:
            if on_host := _own(wanted, hosted):
                yield from _in_parts(_windowed(pool, _measured, on_host, 4 * self.io_workers))
            if todo := _own(wanted, networked):
                yield from self._network(pool, networked, todo)

    def n_steps(self, wanted: Sequence[Wanted]) -> int:
        """The number of subjects by which all groups advance: they are counted once per group."""
        return sum(len(_own(wanted, group)) for group in self.groups())

    def groups(self) -> list[dict[str, Metric]]:
        """Metrics by name that are computed together: all host metrics, then those of each network."""
        groups: dict[Hashable, dict[str, Metric]] = {None: {}}
        for name, metric in self.metrics.items():
            groups.setdefault(metric.network.key if isinstance(metric, NetworkMetric) else None, {})[name] = metric
        return list(groups.values())

    def _network(
        self,
        pool: ThreadPoolExecutor,
        metrics: Mapping[str, NetworkMetric],
        todo: Sequence[tuple[Subject, list[NetworkMetric]]],
    ) -> Iterator[Event]:
        name, first = next(iter(metrics.items()))
        alone = first.network.batch_size[self.device.partition(":")[0]] == 1  # does not support batching
        size = None if alone else self.batch_size
        with FeatureExtractor(first.network, pool, self.io_workers, self.device, self.numerics, size) as reader:
            rows = (_compared(*item, arrays) for item, arrays in reader.read((item, _inputs(*item)) for item in todo))
            reported = False
            for step in _in_parts(rows):
                if reader.opened_ns and not reported:
                    reported = True
                    yield TimeCharged("load", 0, reader.opened_ns)
                yield step
            yield from (Message(f"{name}: {sentence}") for sentence in reader.sentences)


def _own(wanted: Sequence[Wanted], metrics: Mapping[str, M]) -> list[tuple[Subject, list[M]]]:
    """The subjects for which any of these metrics is wanted, each with those."""
    own = ((subject, [metric for name, metric in metrics.items() if name in names]) for subject, names in wanted)
    return [item for item in own if item[1]]


def _measured(item: tuple[Subject, list[HostMetric]]) -> list[tuple[str, Score]]:
    subject, metrics = item
    seen = LoadedSubject(subject)
    return [(subject.key, _score(metric, subject, partial(metric.measure, seen))) for metric in metrics]


def _inputs(subject: Subject, metrics: Sequence[NetworkMetric]) -> tuple[FeatureInput, ...]:
    possible = (metric for metric in metrics if subject.absent(metric.spec.needs) is None)
    return tuple(dict.fromkeys(item for metric in possible for item in metric.inputs(subject)))


def _compared(subject: Subject, metrics: Sequence[NetworkMetric], arrays: Found) -> list[tuple[str, Score]]:
    def value(metric: NetworkMetric) -> float:
        features = [arrays[item] for item in metric.inputs(subject)]
        for array in features:
            if isinstance(array, Unscorable):
                raise array
        # Copies, which a metric may change: all metrics of the network share the arrays.
        return metric.value([array.copy() for array in features if not isinstance(array, Unscorable)])

    return [(subject.key, _score(metric, subject, partial(value, metric))) for metric in metrics]


def cut_captions(metrics: Mapping[str, Metric], wanted: Iterable[Wanted]) -> dict[str, dict[str, int]]:
    """For each metric that does not read every caption whole: `n` captions, of which it cut `n_cut` after
    `max_tokens` tokens."""
    limits: dict[tuple[Hashable, str], int | None] = {}
    n, cut = Counter[str](), defaultdict[str, list[int]](list)
    for subject, names in wanted:
        for name in names:
            metric = metrics.get(name)
            if not isinstance(metric, NetworkMetric) or subject.absent(metric.spec.needs) is not None:
                continue
            for text in [item.text for item in metric.inputs(subject) if item.text is not None]:
                n[name] += 1
                key = metric.network.key, text
                if key not in limits:
                    limits[key] = metric.network.tokens_if_cut(text)
                if (limit := limits[key]) is not None:
                    cut[name].append(limit)
    return {name: {"n": n[name], "n_cut": len(of_cut), "max_tokens": of_cut[0]} for name, of_cut in cut.items()}


def cut_sentence(name: str, cut: Mapping[str, int]) -> str:
    return (
        f"{name}: {cut['n_cut']} of {cut['n']} captions have more than {cut['max_tokens']} tokens and were cut; "
        "the rest of them is not compared"
    )


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
    except (Exception, SystemExit) as e:  # noqa: BLE001  # raised again if it is not of this image
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
    remaining = iter(rows)
    while part := list(islice(remaining, PART)):
        yield ScoresComputed([score for row in part for score in row])
        yield PhaseAdvanced(len(part))


def _windowed(pool: ThreadPoolExecutor, work: Callable[[A], B], items: Iterable[A], ahead: int) -> Iterator[B]:
    """Yield `work(item)` in order, with at most `ahead` pending items in the pool."""
    pending: deque[Future[B]] = deque()
    for item in items:
        pending.append(pool.submit(work, item))
        if len(pending) > ahead:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()
