"""The progress of a run: fractions of the modelled operations, times from the speed of this run."""

import pytest

from local_bench.runs.overall import Overall
from local_bench.runs.progress import Quiet


class Recorded(Quiet):
    def __init__(self):
        self.values = []

    def overall(self, fraction, seconds_left):
        self.values.append((round(fraction, 6), seconds_left))


def test_a_phase_counts_by_its_operations_and_time_follows_from_its_own_speed():
    now = 0.0
    recorded = Recorded()
    bars = Overall(recorded, {"a: make": 6.0, "b: make": 2.0, "j: judge": 2.0}, clock=lambda: now)
    bars.begin("a: encode", 3)
    bars.advance(3)
    assert recorded.values == []
    bars.begin("a: make", 3)
    now = 12.0
    bars.advance(3)  # two seconds per operation
    assert recorded.values[-1] == (0.6, pytest.approx(8.0))
    bars.begin("b: make", 1)
    now = 14.0
    bars.advance()  # one second per operation: generation has 14 s for 8
    assert recorded.values[-1] == (0.8, pytest.approx(2 * 14 / 8))
    bars.begin("j: judge", 2)
    now = 15.0
    bars.advance()
    assert recorded.values[-1] == (0.9, pytest.approx(1.0))  # judging has its own speed
    now = 16.0
    bars.advance()
    assert recorded.values[-1] == (1.0, pytest.approx(0.0))


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
    assert recorded.values[-1][0] == 1.0
    assert [fraction for fraction, _ in recorded.values] == sorted(fraction for fraction, _ in recorded.values)
