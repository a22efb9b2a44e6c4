"""The candidates of a run as one table, which `load_run` and the exports share."""

from decimal import Decimal
from fractions import Fraction

import pandas as pd

from local_bench.analysis.economics import usd_per_image
from local_bench.analysis.settlement import Accounting
from local_bench.analysis.unseen_inputs import unseen_inputs
from local_bench.core.money import MICRO, part_of
from local_bench.runs.rundir import RunDir

_DIGITS = 18
"""Decimals of a cost: a mean over images is no whole number of micro-dollars."""


def candidate_table(run: RunDir, money: Accounting, where: str = "TRUE", *values: str) -> pd.DataFrame:
    """The candidates (that satisfy an SQL condition), by work id, with their task and decision (the frame `outcomes`);
    `money` is the run's accounting. Further columns, and changed ones:

    - `price_micro_usd`: the deliverable's part of the task's price, `task_price_micro_usd`;
    - `cost_usd`: the cost of an imported image, else the model's mean metered cost per image; missing without an image,
      or if the cost is not known. `cost_micro_usd` is that of imported images only;
    - `image`: the image's path in the run directory; missing without an image;
    - `without_inputs`: whether the model does not take all of the task's input images; missing for imported models.
    """
    rows = run.store.frame("outcomes", (), where, *values)
    counts = run.store.frame("candidates", ["model", "task_id", "deliverable"])
    n = counts.groupby(["model", "task_id"], sort=False)["deliverable"].nunique().rename("n").reset_index()
    n_of = rows[["model", "task_id"]].merge(n, how="left")["n"]
    imported = {model.label for model in run.config.models if model.imported is not None}
    unseen = unseen_inputs(run).pairs
    mean = {model: _rounded(usd) for model, usd in usd_per_image(run.store, money).items()}
    digests, costs = rows["pixels_sha256"], rows["cost_micro_usd"]
    return rows.assign(
        price_micro_usd=[
            part_of(int(price), int(n), int(i) - 1)
            for price, n, i in zip(rows["task_price_micro_usd"], n_of, rows["deliverable"], strict=True)
        ],
        cost_usd=[
            None if pd.isna(sha) else mean.get(model) if pd.isna(cost) else Decimal(int(cost)) / MICRO
            for sha, model, cost in zip(digests, rows["model"], costs, strict=True)
        ],
        image=[None if pd.isna(sha) else run.image(sha).relative_to(run.path).as_posix() for sha in digests],
        without_inputs=[
            None if model in imported else (model, task_id) in unseen
            for model, task_id in zip(rows["model"], rows["task_id"], strict=True)
        ],
    )


def _rounded(usd: Fraction) -> Decimal:
    return Decimal(round(usd * 10**_DIGITS)).scaleb(-_DIGITS)
