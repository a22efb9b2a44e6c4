"""Output: results on stdout, progress and messages on stderr, without control characters from data."""

import json
import shlex
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click

from local_bench.core.errors import escaped_json, sentence
from local_bench.core.table import clean

if TYPE_CHECKING:
    from rich.progress import TaskID

    from local_bench.runs.image_store import ImageFault
    from local_bench.runs.rundir import RunDir

BAR_EVERY_S = 5.0
"""Least time between two log lines of a phase."""
CLOCK_EVERY_S = 30.0
"""A log without news for this long gets a line with the elapsed time."""


def say(*messages: str) -> None:
    """Print messages to stderr; they are lost if stderr is closed or full."""
    for message in messages:
        with suppress(OSError, ValueError):
            click.echo(sentence(message), err=True)


def say_notes(*notes: str) -> None:
    """As `say`, with the program's name before each."""
    say(*(f"local-bench: {note}" for note in notes))


def show(text: str) -> None:
    """Print a result to stdout."""
    click.echo(clean(text))


def show_json(value: Any) -> None:
    """Print a result as JSON to stdout. ValueError for NaN and infinities."""
    click.echo(escaped_json(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)))


def show_result(values: Any, text: str, as_json: bool) -> int:
    """Print a result as JSON or as text; return the exit status."""
    show_json(values) if as_json else show(text)
    return 0


def quoted(path: object) -> str:
    """As a shell takes it, for a command that is printed."""
    return shlex.quote(str(path))


def say_faults(faults: "Sequence[ImageFault]") -> int:
    """Report missing, damaged or altered image files on stderr; return the exit status, 1 if there are any."""
    if not faults:
        return 0
    from local_bench.runs.image_store import faults_sentence

    say(f"local-bench: {faults_sentence(list(faults))}")
    return 1


def say_written(*runs: "RunDir") -> None:
    """Report which runs, still open, another process has written while they were read."""
    if paths := [str(run.path) for run in runs if run.written_meanwhile]:
        say(
            f"local-bench: another process was writing {', '.join(paths)} meanwhile: the results may be of different "
            "states; repeat this command when it has ended"
        )


class PlainProgress:
    """Progress as log lines: at the start and end of a phase, every few seconds with the time left, and every half
    minute with the elapsed time if nothing advances."""

    def __init__(self) -> None:
        self._phase, self._total, self._done = "", 0, 0
        self._overall = ""
        self._printed = self._started = time.monotonic()
        self._ended = threading.Event()
        self._lock = threading.Lock()

    def __enter__(self) -> "PlainProgress":
        threading.Thread(target=self._clock, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def note(self, message: str) -> None:
        say(message)

    def begin(self, phase: str, total: int) -> None:
        with self._lock:
            self._phase, self._total, self._done = phase, total, 0
            self._printed = self._started = time.monotonic()
            say(f"{phase}: 0/{total}")

    def advance(self, n: int = 1) -> None:
        if not n:
            return
        with self._lock:
            self._done += n
            now = time.monotonic()
            if self._done >= self._total or now - self._printed >= BAR_EVERY_S:
                self._print(now)

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        with self._lock:
            outer = self._phase, self._total, self._done, self._started
            self._phase, self._total, self._done = what, 0, 0
            self._printed = self._started = time.monotonic()
            say(what)
        try:
            yield
        finally:
            with self._lock:
                self._phase, self._total, self._done, self._started = outer

    def overall(self, fraction: float, seconds_left: float | None) -> None:
        self._overall = f"; {_overall(fraction, seconds_left)}"

    def _clock(self) -> None:
        while not self._ended.wait(min(1.0, CLOCK_EVERY_S)):
            with self._lock:
                now = time.monotonic()
                if (
                    self._phase
                    and now - self._printed >= CLOCK_EVERY_S
                    and (not self._total or self._done < self._total)
                ):
                    self._print(now)

    def _print(self, now: float) -> None:
        from tqdm import tqdm

        self._printed = now
        elapsed_s = now - self._started
        if not self._total:
            say(f"{self._phase}: {tqdm.format_interval(elapsed_s)} elapsed")
            return
        bar_format = "{n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}]"
        meter = tqdm.format_meter(self._done, self._total, elapsed_s, bar_format=bar_format)
        say(f"{self._phase}: {meter}{self._overall}")


def _overall(fraction: float, seconds_left: float | None) -> str:
    from tqdm import tqdm

    left = "" if seconds_left is None else f", about {tqdm.format_interval(seconds_left)} left"
    return f"run {fraction:.0%}{left}"


class BarProgress:
    """Progress bars for a terminal: one per phase, and below them one for the run."""

    def __init__(self) -> None:
        from rich.console import Console, Group
        from rich.live import Live
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),  # "n/?" while waiting
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._runs = Progress(TextColumn("{task.description}", markup=False), BarColumn())
        self._live = Live(Group(self._bars, self._runs), console=Console(stderr=True))
        self._task: TaskID | None = None
        self._run: TaskID | None = None

    def __enter__(self) -> "BarProgress":
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def note(self, message: str) -> None:
        self._live.console.print(clean(message), markup=False, highlight=False)

    def begin(self, phase: str, total: int) -> None:
        self._task = self._bars.add_task(clean(phase), total=total)

    def advance(self, n: int = 1) -> None:
        if self._task is not None:
            self._bars.advance(self._task, n)

    def overall(self, fraction: float, seconds_left: float | None) -> None:
        if self._run is None:
            self._run = self._runs.add_task("", total=1.0)
        self._runs.update(self._run, completed=fraction, description=_overall(fraction, seconds_left))

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        task = self._bars.add_task(clean(what), total=None)
        try:
            yield
        finally:
            self._bars.update(task, total=1, completed=1)


def progress() -> PlainProgress | BarProgress:
    """Progress bars if stderr is a terminal, otherwise log lines."""
    return BarProgress() if sys.stderr.isatty() else PlainProgress()
