"""The columns of the exported tables: names, types, and descriptions."""

from typing import Any

import pyarrow as pa

TEXT, INT, REAL, YES_NO = pa.string(), pa.int64(), pa.float64(), pa.bool_()
USD = pa.decimal128(19, 6)
"""US dollars, exact to the micro-dollar; every 64-bit number of micro-dollars fits."""
MEAN_USD = pa.decimal128(38, 18)
"""US dollars as a mean, which is no whole number of micro-dollars."""


def schema(**columns: Any) -> Any:
    """A pyarrow schema; every `<name>_micro_usd` column is followed by the same amount as `<name>_usd`, if that is not
    a column of its own."""
    fields = []
    for name, kind in columns.items():
        fields.append(pa.field(name, kind))
        if name.endswith("_micro_usd") and name.replace("_micro_usd", "_usd") not in columns:
            fields.append(pa.field(name.replace("_micro_usd", "_usd"), USD))
    return pa.schema(fields)


_WORK = {"work_id": TEXT, "model": TEXT, "task_id": TEXT, "category": TEXT, "deliverable": INT, "attempt": INT}

CANDIDATES = schema(
    **_WORK, title=TEXT, prompt=TEXT, seed=INT, height=INT, width=INT, state=TEXT, unscored=TEXT, identity=TEXT,
    pixels_sha256=TEXT, accepted=YES_NO, decision_unscored=TEXT, price_micro_usd=INT, work=TEXT, batch_size=INT,
    truncated=TEXT, cost_micro_usd=INT, cost_usd=MEAN_USD, task_price_micro_usd=INT, image=TEXT, without_inputs=YES_NO,
)  # fmt: skip
"""`price` is the deliverable's part of `task_price`; `cost_micro_usd` is stated for imported images, `cost_usd` is also
the model's mean metered cost per image; `image` is relative to the run directory; `without_inputs`: the model does not
take all of the task's input images."""
VERDICTS = schema(
    **_WORK, rubric=TEXT, point=INT, repeat=INT, answer=TEXT, labels=TEXT, unscored=TEXT, raw=TEXT, question_id=TEXT,
    rubric_sha256=TEXT, judge=TEXT, judge_id=TEXT,
)  # fmt: skip
"""`judge` is the judge's name, `judge_id` its id in the ledger and in `judges`."""
SCORES = schema(**_WORK, name=TEXT, kind=TEXT, value=REAL, unscored=TEXT, applies=YES_NO, spread=REAL)
SETTLEMENT = schema(
    model=TEXT, scope=TEXT, category=TEXT, value_micro_usd=INT, revenue_micro_usd=INT,
    revenue_ci95_low_micro_usd=INT, revenue_ci95_high_micro_usd=INT, revenue_bound_low_micro_usd=INT,
    revenue_bound_high_micro_usd=INT, open_micro_usd=INT, share=REAL, coverage=REAL, n_tasks=INT, n_tasks_accepted=INT,
    n_tasks_unscored=INT, task_acceptance=REAL, n=INT, n_accepted=INT, n_unscored=INT, deliverable_acceptance=REAL,
    deliverable_acceptance_ci95_low=REAL, deliverable_acceptance_ci95_high=REAL, whole_micro_usd=INT,
    n_tasks_decided=INT, cost_micro_usd=INT, profit_micro_usd=INT, cost_unscored=TEXT, n_without_inputs=INT,
)  # fmt: skip
"""By `scope`: all tasks (`run`), those of a category, those that all models support (`supported_by_all`). `ci95` are
the ends of the 95 % interval for tasks like these, `bound` what unscored images could change."""
COSTS = schema(
    phase=TEXT, model=TEXT, held_ns=INT, n_items=INT, energy_mj=INT, cost_micro_usd=INT, cost_unscored=TEXT, gpu=TEXT,
    price_level=TEXT, hour_micro_usd=INT, price_source=TEXT, price_date=TEXT,
)  # fmt: skip
MAKING = schema(
    model=TEXT, imported=YES_NO, n_images=INT, n_made=INT, batch_sizes=TEXT, sizes=TEXT, held_ns=INT, busy_ns=INT,
    s_per_image=REAL, images_per_gpu_hour=REAL, image_micro_usd=INT, marginal_image_micro_usd=INT, wh_per_image=REAL,
    marginal_wh_per_image=REAL, flop_per_image=REAL, floor_s_per_image=REAL, mfu=REAL, no_floor=TEXT,
)  # fmt: skip
"""One row per system. `busy` and the marginal values include denoising and decoding only; `mfu` is a fraction."""
JUDGES = schema(
    judge_id=TEXT, name=TEXT, card=TEXT, protocol=TEXT, transport=TEXT, reproducible=YES_NO, n_attacks=INT,
    n_fooled=INT, n_attacks_unscored=INT, fooled_by=TEXT,
)  # fmt: skip
"""One row per judge; null for tests that were not run; `fooled_by` is a JSON list."""
CUTS = schema(model=TEXT, encoder=TEXT, n_prompts=INT, n_cut=INT, most_tokens=INT)

COMPETITION = schema(
    model=TEXT, rank=INT, revenue_usd=REAL, revenue_bound_low_usd=REAL, revenue_bound_high_usd=REAL, n_won=INT,
    n_shared=INT,
)  # fmt: skip
"""ServImage's table 3: one row per model, by rank."""
_SAVED = ("cost_usd", "cost_savings", "cost_savings_high", "contribution_ratio", "contribution_ratio_high")
COST_REDUCTION = schema(
    model=TEXT, model_contribution=REAL, model_contribution_high=REAL,
    **dict.fromkeys(_SAVED, REAL), **dict.fromkeys((f"api_{name}" for name in _SAVED), REAL),
)  # fmt: skip
"""ServImage's table 7 with the metered cost, and with an API's price if the config has one."""
BREAK_EVEN = schema(
    model=TEXT, api=TEXT, api_usd_per_image=REAL, usd_per_image=REAL, marginal_usd_per_image=REAL,
    break_even_usd_per_hour=REAL, break_even_usd_per_hour_endless=REAL, break_even_images=INT,
)  # fmt: skip
"""One row per timed model and API."""
