"""The progress of a whole run: its phases, weighted by their modelled operations, with the time left.

The weights need not be right in seconds: the time left of a kind of phase (generation, metrics, judging) follows from
the speed at which this run has worked on it, and only for a kind that has not begun from the speed so far.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping

from local_bench.judges.metrics.registry import metric_card
from local_bench.models.cards import card
from local_bench.runs.budget import TOKENS
from local_bench.runs.estimate import n_questions
from local_bench.runs.plan import RunPlan
from local_bench.runs.progress import Forwarding, Progress, Quiet
from local_bench.runs.rundir import RunDir

TEXT_TOKENS = 500
"""Tokens of a question besides its image."""
HOST_FLOP = 1e9
"""Nominal operations of a metric without a network, per image."""


def weights_of_phases(run: RunDir, plan: RunPlan, stages: tuple[str, ...]) -> dict[str, float]:
    """Modelled operations of the work that is left, by the name that a phase has in `Progress.begin`."""
    left = run.store.planned_by_model()
    n_images = sum(planned.unscored is None for planned in plan.planned)
    weights: dict[str, float] = {}
    if "generate" in stages:
        weights |= {
            f"{model.label}: make": left.get(model.label, 0) * 1e15 * (model.card.pflop_per_image or 0.0)
            for model in plan.models
            if model.card is not None
        }
    if "measure" in stages:
        weights["measure"] = n_images * sum(map(_metric_flop, run.config.metrics))
    if "judge" in stages:
        n, _ = n_questions(plan, run.config.order_swap, run.config.suite.questions_from, Quiet())
        for judge in run.config.judges:
            described = card(judge.card, "judge")
            tokens = described.tokens_of_image(described.judge_max_pixels) + TEXT_TOKENS
            parameters_b = described.active_parameters_b or described.parameters_b
            weights[f"{judge.label}: judge"] = n * 2e9 * parameters_b * tokens
    return {name: flop for name, flop in weights.items() if flop}


def _metric_flop(name: str) -> float:
    described = metric_card(name)
    return HOST_FLOP if described is None else 2e9 * described.parameters_b * TOKENS


class Overall(Forwarding):
    """Passes progress on, with the finished fraction of the run and the seconds left."""

    def __init__(
        self, shown: Progress, weights: Mapping[str, float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`weights` are those of `weights_of_phases`; phases that it lacks count as nothing."""
        super().__init__(shown)
        self._weights, self._clock = weights, clock
        self._done = dict.fromkeys(weights, 0.0)
        """Phase -> finished fraction."""
        self._seconds: dict[str, float] = defaultdict(float)
        """Kind -> seconds spent so far."""
        self._flop: dict[str, float] = defaultdict(float)
        """Kind -> modelled operations done in this process."""
        self._phase: str | None = None
        self._step, self._at = 0.0, clock()

    def begin(self, phase: str, total: int) -> None:
        self._shown.begin(phase, total)
        if self._phase is not None and phase != self._phase:
            self._done[self._phase] = 1.0  # some of its items may have been stored already
        self._phase = phase if phase in self._weights else None
        self._at = self._clock()
        if self._phase is not None:
            self._step = (1.0 - self._done[self._phase]) / max(total, 1)

    def advance(self, n: int = 1) -> None:
        if self._phase is not None:
            kind, now = _kind(self._phase), self._clock()
            self._done[self._phase] = min(1.0, self._done[self._phase] + n * self._step)
            self._flop[kind] += n * self._step * self._weights[self._phase]
            self._seconds[kind] += now - self._at
            self._at = now
            self._shown.overall(self._fraction(), self._seconds_left())
        self._shown.advance(n)

    def _fraction(self) -> float:
        return sum(self._done[phase] * flop for phase, flop in self._weights.items()) / sum(self._weights.values())

    def _seconds_left(self) -> float | None:
        left = {phase: (1.0 - self._done[phase]) * flop for phase, flop in self._weights.items()}
        flop, seconds = sum(self._flop.values()), sum(self._seconds.values())
        if not flop or not seconds:
            return None
        speeds = {kind: self._flop[kind] / self._seconds[kind] for kind in self._flop if self._seconds[kind]}
        return sum(operations / (speeds.get(_kind(phase)) or flop / seconds) for phase, operations in left.items())


def _kind(phase: str) -> str:
    return phase.rpartition(": ")[2]
