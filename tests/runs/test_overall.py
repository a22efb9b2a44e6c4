"""The progress of a run: fractions of the modelled operations, times from the speed of this run."""

import pytest

from local_bench.runs.estimate import Overall
from local_bench.runs.progress import Quiet


class Recorded(Quiet):
    def __init__(self):
        self.values = []

    def overall(self, fraction, seconds_left):
        self.values.append((round(fraction, 6), seconds_left))


def test_a_phase_counts_by_its_operations_and_time_follows_from_its_own_speed():
    now, recorded = 0.0, Recorded()
    bars = Overall(recorded, {"a: make": 6.0, "b: make": 2.0, "j: judge": 2.0}, clock=lambda: now)
    bars.begin("a: encode", 3)
    bars.advance(3)
    assert recorded.values == []
    for phase, total, steps in (
        ("a: make", 3, [(12.0, 3, 0.6, 8.0)]),  # two seconds per operation
        ("b: make", 1, [(14.0, 1, 0.8, 2 * 14 / 8)]),  # one second per operation: generation has 14 s for 8
        ("j: judge", 2, [(15.0, 1, 0.9, 1.0), (16.0, 1, 1.0, 0.0)]),  # judging has its own speed
    ):
        bars.begin(phase, total)
        for at, n, fraction, seconds_left in steps:
            now = at
            bars.advance(n)
            assert recorded.values[-1] == (fraction, pytest.approx(seconds_left))


def test_a_phase_that_restarts_or_ends_early_is_counted_once():
    recorded = Recorded()
    bars = Overall(recorded, {"a: make": 4.0, "measure": 4.0}, clock=iter(range(100)).__next__)
    bars.begin("a: make", 4)
    bars.advance(2)
    bars.begin("a: make", 2)  # a lost worker's share
    bars.advance(1)
    assert recorded.values[-1][0] == 0.375
    bars.begin("measure", 1)  # the last image was stored without an event
    bars.advance(5)
    fractions = [fraction for fraction, _ in recorded.values]
    assert fractions[-1] == 1.0
    assert fractions == sorted(fractions)


def test_a_time_is_shown_only_from_a_speed_that_this_run_has_shown():
    """A start-up of 100 s before the first of 100 images, and a phase of other work that is most of the run."""
    recorded, clock = Recorded(), []
    bars = Overall(recorded, {"a: make": 4.0, "j: judge": 6.0}, clock=lambda: clock[-1] if clock else 0.0)

    def seconds_left(at, n=1):
        clock.append(at)
        bars.advance(n)
        return recorded.values[-1][1]

    bars.begin("a: make", 100)
    assert [seconds_left(at) for at in (100.0, 101.0, 102.0)] == [None] * 3  # judging is more than half of the run
    assert seconds_left(199.0, 97) is None
    bars.begin("j: judge", 100)
    assert [seconds_left(at) for at in (200.0, 200.9)] == [None, None]
    assert [seconds_left(at) for at in (202.0, 203.0)] == pytest.approx([97.0, 96.0])

    bars = Overall(recorded, {"a: make": 6.0, "j: judge": 4.0}, clock=lambda: clock[-1])
    bars.begin("a: make", 100)
    assert seconds_left(300.0) is None
    assert seconds_left(301.0) == pytest.approx(98 + 4 / 0.06)


def test_phases_that_an_earlier_session_has_finished_are_done():
    recorded = Recorded()
    bars = Overall(recorded, {"measure": 4.0, "j: judge": 4.0}, clock=iter(range(100)).__next__)
    bars.begin("j: judge", 2)
    bars.advance()
    bars.advance()
    assert [fraction for fraction, _ in recorded.values] == [0.75, 1.0]
