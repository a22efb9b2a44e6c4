"""A finished run as pandas data frames, for notebooks and scripts: `local_bench.load_run`."""

from collections import defaultdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from local_bench.analysis.agreement import judge_labels
from local_bench.analysis.candidate_table import CandidateTable
from local_bench.analysis.official import derived
from local_bench.analysis.settlement import accounting
from local_bench.analysis.unseen_inputs import unseen_inputs
from local_bench.core import strictjson
from local_bench.core.errors import ConfigError
from local_bench.core.money import MICRO
from local_bench.core.packages import require
from local_bench.runs.acceptance import deciding
from local_bench.runs.config import RunConfig
from local_bench.runs.rundir import RunDir
from local_bench.settle.acceptance import missed

if TYPE_CHECKING:
    import pandas as pd


def load_run(path: str | Path) -> "Run":
    """Open the run directory at `path` for reading. UserError if it is not a run directory, LedgerError if it is
    damaged."""
    return Run(RunDir.open(Path(path)))


class Run:
    """A run directory opened for reading; use it as a context manager, or call `close`.

    Each table is a data frame with one row per item in a stable order. Missing values are None or NaN, never 0. Amounts
    of money are floats in US dollars.
    """

    def __init__(self, run: RunDir) -> None:
        self._run = run

    @property
    def path(self) -> Path:
        return self._run.path

    @property
    def config(self) -> RunConfig:
        """The run's resolved config."""
        return self._run.config

    def candidates(self) -> "pd.DataFrame":
        """One row per candidate, in the plan's order.

        `work_id, model, task_id, category, deliverable, attempt, prompt, seed, width, height, state, unscored, image,
        pixels_sha256, cost_usd, price_usd, task_price_usd, accepted, without_inputs`. `image` is the PNG's path, None
        without an image. `cost_usd` is the model's mean metered cost per image, or the cost of an imported image;
        `price_usd` is the deliverable's share of the task's price, `task_price_usd`; `without_inputs` is True if the
        model does not take all of the task's input images. exports/candidates.csv and .parquet have the same values,
        with `image` relative to the run directory.
        """
        store = self._run.store
        table = CandidateTable(self._run, accounting(store, self._run.config.settlement))
        columns: dict[str, list[Any]] = {name: [] for name in _CANDIDATES}
        positions: list[int] = []
        for limits in store.parts():
            part = table.part(limits)
            positions += part["position"]
            part |= {
                "image": [None if image is None else str(self.path / image) for image in part["image"]],
                "cost_usd": [None if cost is None else float(cost) for cost in part["cost_usd"]],
                "price_usd": [micro / MICRO for micro in part["price_micro_usd"]],
                "task_price_usd": [micro / MICRO for micro in part["task_price_micro_usd"]],
                "accepted": [None if accepted is None else bool(accepted) for accepted in part["accepted"]],
            }
            for name, values in columns.items():
                values.extend(part[name])
        in_order = sorted(range(len(positions)), key=positions.__getitem__)
        return _frame([{name: values[i] for name, values in columns.items()} for i in in_order], list(_CANDIDATES))

    def scores(self) -> "pd.DataFrame":
        """One row per score: `work_id, model, task_id, deliverable, attempt, name, kind, value, spread, applies,
        unscored`. `kind` is `judge`, `metric`, or with `suite.questions_from` also `benchmark`: what ICE-Bench and
        IDEA-Bench compute from several scores of an image. `value` is NaN if the score does not apply or is
        unscored."""
        candidates = self._candidate_columns()
        rows = [
            candidates[work_id]
            | {
                "name": score.name,
                "kind": kind,
                "value": score.value,
                "spread": score.spread,
                "applies": score.applies,
                "unscored": score.unscored,
            }
            for work_id, kind, score in (
                *self._run.store.scores(),
                *((work_id, "benchmark", score) for work_id, score in derived(self._run)),
            )
        ]
        return _frame(rows, [*_CANDIDATE, "name", "kind", "value", "spread", "applies", "unscored"])

    def verdicts(self) -> "pd.DataFrame":
        """One row per question and judge: `work_id, model, task_id, deliverable, attempt, judge, rubric, point, repeat,
        answer, labels, unscored, raw`. `answer` is a dict of the rubric's fields; `labels` maps criterion to label to
        probability, if the judge returned probabilities."""
        candidates, judges = self._candidate_columns(), judge_labels(self._run)
        rows = [
            candidates[row.work_id]
            | {
                "judge": judges.get(row.judge, row.judge),
                "rubric": row.rubric,
                "point": row.point,
                "repeat": row.repeat,
                "answer": None if row.answer_json is None else strictjson.stored(row.answer_json),
                "labels": None if row.labels_json is None else strictjson.stored(row.labels_json),
                "unscored": row.unscored,
                "raw": row.raw,
            }
            for row in self._run.store.verdicts()
        ]
        names = ["judge", "rubric", "point", "repeat", "answer", "labels", "unscored", "raw"]
        return _frame(rows, [*_CANDIDATE, *names])

    def decisions(self) -> "pd.DataFrame":
        """One row per settled candidate: `work_id, model, task_id, deliverable, attempt, accepted, unscored, missed`.
        `accepted` is True, False, or None if undecided; `unscored` then gives the reason. `missed` are the names of the
        scores below their thresholds; None if the suite is not installed here."""
        candidates = self._candidate_columns()
        below: dict[str, list[str]] = defaultdict(list)
        try:
            rule = deciding(self._run.config)
        except ConfigError:
            rule = None
        for work_id, _, score in self._run.store.scores() if rule else ():
            below[work_id].extend(missed([score], rule or {}))
        rows = [
            candidates[row.work_id]
            | {
                "accepted": row.decision.accepted,
                "unscored": row.decision.unscored,
                "missed": None if rule is None else below.get(row.work_id, []),
            }
            for row in self._run.store.decisions()
        ]
        return _frame(rows, [*_CANDIDATE, "accepted", "unscored", "missed"])

    def settlement(self) -> "pd.DataFrame":
        """One row per model: `model, revenue_usd, revenue_ci95_low_usd, revenue_ci95_high_usd, revenue_bound_low_usd,
        revenue_bound_high_usd, value_usd, open_usd, whole_usd, share, coverage, task_acceptance,
        deliverable_acceptance, n_tasks, n, n_accepted, n_unscored, cost_usd, profit_usd, n_without_inputs`.

        `ci95` are the ends of the 95 % interval for tasks like these, `bound` the revenue if none and if all unscored
        images were accepted; `whole_usd` is the price of the fully accepted tasks, which ServImage's tables print as
        revenue; `n_without_inputs` counts images generated without all of their task's input images.
        exports/settlement.csv and .parquet have the same values (`scope` run)."""
        rows, unseen = [], unseen_inputs(self._run).n_images
        for s in accounting(self._run.store, self._run.config.settlement).settlements:
            total = s.total
            low, high = total.revenue_interval_micro_usd or (None, None)
            amounts = {
                "revenue": total.revenue_micro_usd,
                "revenue_ci95_low": low,
                "revenue_ci95_high": high,
                "revenue_bound_low": total.bounds_micro_usd[0],
                "revenue_bound_high": total.bounds_micro_usd[1],
                "value": total.value_micro_usd,
                "open": total.open_micro_usd,
                "whole": total.whole_micro_usd,
                "cost": s.cost_micro_usd,
                "profit": s.profit_micro_usd,
            }
            rows.append(
                {"model": s.model}
                | {f"{name}_usd": None if micro is None else micro / MICRO for name, micro in amounts.items()}
                | {name: getattr(total, name) for name in _TOTALS}
                | {"n_without_inputs": unseen.get(s.model, 0)}
            )
        ends = [f"revenue_{kind}_{end}_usd" for kind in ("ci95", "bound") for end in ("low", "high")]
        names = ["model", "revenue_usd", *ends, "value_usd", "open_usd", "whole_usd", *_TOTALS]
        return _frame(rows, [*names, "cost_usd", "profit_usd", "n_without_inputs"])

    def close(self) -> None:
        self._run.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    def _candidate_columns(self) -> dict[str, dict[str, Any]]:
        return {row.work_id: {name: getattr(row, name) for name in _CANDIDATE} for row in self._run.store.candidates()}


_CANDIDATE = ("work_id", "model", "task_id", "deliverable", "attempt")
_CANDIDATES = (
    *("work_id", "model", "task_id", "category", "deliverable", "attempt", "prompt", "seed", "width", "height"),
    *("state", "unscored", "image", "pixels_sha256", "cost_usd", "price_usd", "task_price_usd", "accepted"),
    "without_inputs",
)
_TOTALS = (
    *("share", "coverage", "task_acceptance", "deliverable_acceptance"),
    *("n_tasks", "n", "n_accepted", "n_unscored"),
)


def _frame(rows: list[dict[str, Any]], columns: list[str]) -> "pd.DataFrame":
    require("tables")
    import pandas as pd

    return pd.DataFrame(rows, columns=columns)
