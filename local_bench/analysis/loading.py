"""A finished run as pandas data frames, for notebooks and scripts: `local_bench.load_run`; and the rows of its
settlement, which the exports have too."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pandas as pd

from local_bench.analysis.agreement import judge_labels
from local_bench.analysis.economics import candidate_table
from local_bench.analysis.official import derived
from local_bench.analysis.settlement import Accounting, accounting
from local_bench.analysis.unseen_inputs import unseen_inputs
from local_bench.core import strictjson
from local_bench.core.errors import ConfigError
from local_bench.core.money import MICRO, usd_number
from local_bench.runs.config import RunConfig
from local_bench.runs.rundir import RunDir
from local_bench.runs.scoring import deciding
from local_bench.runs.store import plain
from local_bench.settle.acceptance import missed
from local_bench.settle.settlement import Total


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

    def candidates(self) -> pd.DataFrame:
        """One row per candidate, in the plan's order.

        `work_id, model, task_id, category, deliverable, attempt, prompt, seed, width, height, state, unscored, image,
        pixels_sha256, cost_usd, price_usd, task_price_usd, accepted, without_inputs`. `image` is the PNG's path, None
        without an image. `cost_usd` is the model's mean metered cost per image, or the cost of an imported image;
        `price_usd` is the deliverable's share of the task's price, `task_price_usd`; `without_inputs` is True if the
        model does not take all of the task's input images. exports/candidates.csv and .parquet have the same values,
        with `image` relative to the run directory.
        """
        rows = candidate_table(self._run, accounting(self._run.store, self._run.config.settlement))
        rows = plain(rows.sort_values("position"))
        rows["image"] = [None if image is None else str(self.path / image) for image in rows["image"]]
        rows["cost_usd"] = [None if cost is None else float(cost) for cost in rows["cost_usd"]]
        rows["price_usd"] = [micro / MICRO for micro in rows["price_micro_usd"]]
        rows["task_price_usd"] = [micro / MICRO for micro in rows["task_price_micro_usd"]]
        rows["accepted"] = [None if accepted is None else bool(accepted) for accepted in rows["accepted"]]
        return _inferred(rows, _CANDIDATES)

    def scores(self) -> pd.DataFrame:
        """One row per score: `work_id, model, task_id, deliverable, attempt, name, kind, value, spread, applies,
        unscored`. `kind` is `judge`, `metric`, or with `suite.questions_from` also `benchmark`: what ICE-Bench and
        IDEA-Bench compute from several scores of an image. `value` is NaN if the score does not apply or is
        unscored."""
        scores = plain(self._of_candidates("scores"))
        if self._run.config.suite.questions_from:
            scores = pd.concat([scores, derived(self._run)])
        scores["applies"] = scores["applies"].map(bool)
        names = ["name", "kind", "value", "spread", "applies", "unscored"]
        return _inferred(scores, [*_CANDIDATE, *names])

    def verdicts(self) -> pd.DataFrame:
        """One row per question and judge: `work_id, model, task_id, deliverable, attempt, judge, rubric, point, repeat,
        answer, labels, unscored, raw`. `answer` is a dict of the rubric's fields; `labels` maps criterion to label to
        probability, if the judge returned probabilities."""
        verdicts, judges = (
            plain(self._of_candidates("verdicts", *self._run.store.counted("TRUE"))),
            judge_labels(self._run),
        )
        verdicts["judge"] = [judges.get(judge, judge) for judge in verdicts["judge"]]
        for name in ("answer", "labels"):
            verdicts[name] = [None if text is None else strictjson.stored(text) for text in verdicts[name]]
        names = ["judge", "rubric", "point", "repeat", "answer", "labels", "unscored", "raw"]
        return _inferred(verdicts, [*_CANDIDATE, *names])

    def decisions(self) -> pd.DataFrame:
        """One row per settled candidate: `work_id, model, task_id, deliverable, attempt, accepted, unscored, missed`.
        `accepted` is True, False, or None if undecided; `unscored` then gives the reason. `missed` are the names of the
        scores below their thresholds; None if the suite is not installed here."""
        decisions = plain(self._of_candidates("decisions"))
        decisions["accepted"] = [None if accepted is None else bool(accepted) for accepted in decisions["accepted"]]
        try:
            rule = deciding(self._run.config)
        except ConfigError:
            decisions["missed"] = None
        else:
            below: dict[str, list[str]] = defaultdict(list)
            for work_id, score in self._run.store.scores():
                below[work_id].extend(missed([score], rule))
            decisions["missed"] = [below.get(work_id, []) for work_id in decisions["work_id"]]
        return _inferred(decisions, [*_CANDIDATE, "accepted", "unscored", "missed"])

    def settlement(self) -> pd.DataFrame:
        """One row per model: `model, revenue_usd, revenue_ci95_low_usd, revenue_ci95_high_usd, revenue_bound_low_usd,
        revenue_bound_high_usd, value_usd, open_usd, whole_usd, share, coverage, task_acceptance,
        deliverable_acceptance, n_tasks, n, n_accepted, n_unscored, cost_usd, profit_usd, n_without_inputs`.

        `ci95` are the ends of the 95 % interval for tasks like these, `bound` the revenue if none and if all unscored
        images were accepted; `whole_usd` is the price of the fully accepted tasks, which ServImage's tables print as
        revenue; `n_without_inputs` counts images generated without all of their task's input images.
        exports/settlement.csv and .parquet have the same values (`scope` run)."""
        money = accounting(self._run.store, self._run.config.settlement)
        names = ["model", *AMOUNTS, "whole_usd", *_TOTALS, "cost_usd", "profit_usd", "n_without_inputs"]
        rows = [row for row in settlement_rows(self._run, money) if row["scope"] == "run"]
        return pd.DataFrame([in_usd(row, names) for row in rows], columns=names)

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

    def _of_candidates(self, name: str, where: str = "TRUE", *values: str) -> pd.DataFrame:
        images = self._run.store.frame("candidates", _CANDIDATE)
        return self._run.store.frame(name, (), where, *values).merge(images, on="work_id")


_CANDIDATE = ("work_id", "model", "task_id", "deliverable", "attempt")
_CANDIDATES = (
    *("work_id", "model", "task_id", "category", "deliverable", "attempt", "prompt", "seed", "width", "height"),
    *("state", "unscored", "image", "pixels_sha256", "cost_usd", "price_usd", "task_price_usd", "accepted"),
    "without_inputs",
)
AMOUNTS = (
    "revenue_usd",
    *(f"revenue_{kind}_{end}_usd" for kind in ("ci95", "bound") for end in ("low", "high")),
    *("value_usd", "open_usd"),
)
"""Of a sum of tasks."""
_TOTALS = (
    *("share", "coverage", "task_acceptance", "deliverable_acceptance"),
    *("n_tasks", "n", "n_accepted", "n_unscored"),
)


def settlement_rows(run: RunDir, money: Accounting) -> Iterator[dict[str, Any]]:
    """Of each model, the row of all tasks (`scope` run), that of the tasks that all models support (`supported_by_all`)
    and those of the categories."""
    imported = {m.label for m in run.config.models if m.imported is not None}
    unseen, n_made = unseen_inputs(run), run.store.n_candidates(made=True)
    common = {s.model: s.total for s in unseen.common}
    for s in money.settlements:
        without = "the cost of its images is not stated" if s.model in n_made else "no image of it was imported"
        reason = None if s.cost_micro_usd is not None else without if s.model in imported else money.no_cost
        costs = {"cost_micro_usd": s.cost_micro_usd, "profit_micro_usd": s.profit_micro_usd, "cost_unscored": reason}
        named_run = {"model": s.model, "scope": "run", "category": "all"}
        yield named_run | named(s.total) | costs | {"n_without_inputs": unseen.n_images.get(s.model, 0)}
        part: dict[str, Any] = {"model": s.model, "cost_micro_usd": None, "profit_micro_usd": None}
        part["cost_unscored"] = "costs are counted by model"
        if s.model in common:
            yield (
                part | named(common[s.model]) | {"scope": "supported_by_all", "category": "all", "n_without_inputs": 0}
            )
        for category, total in sorted(s.by_category.items()):
            yield part | named(total) | {"scope": "category", "category": category, "n_without_inputs": None}


def named(total: Total) -> dict[str, Any]:
    """A sum of tasks by the names of the exports, money in micro-dollars."""
    low, high = total.revenue_interval_micro_usd or (None, None)
    return vars(total) | {
        "revenue_ci95_low_micro_usd": low,
        "revenue_ci95_high_micro_usd": high,
        "revenue_bound_low_micro_usd": total.bounds_micro_usd[0],
        "revenue_bound_high_micro_usd": total.bounds_micro_usd[1],
        "deliverable_acceptance_ci95_low": total.deliverable_acceptance_low,
        "deliverable_acceptance_ci95_high": total.deliverable_acceptance_high,
    }


def in_usd(row: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """These of `row`, amounts of money in US dollars."""
    cells = {name: row[name.replace("_usd", "_micro_usd")] for name in names}
    return {n: value if value is None or not n.endswith("_usd") else usd_number(value) for n, value in cells.items()}


def _inferred(rows: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Columns of Python objects with the types that pandas infers from them."""
    return pd.DataFrame(rows[list(names)].to_dict("records"), columns=list(names))
