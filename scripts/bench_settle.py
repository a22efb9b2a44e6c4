"""Settling a million candidate rows: the package's columns compared with pandas groupbys of the same tables.

    .venv/bin/python scripts/bench_settle.py [--models 16] [--orders 31250] [--repeats 3] [--out benchmarks/settle.json]

16 models x 31,250 orders x 2 images, seeded. A section is one scenario; `SECTIONS` has each as (ours, theirs), and both
must give the same figures. Each implementation runs in a separate process on one core, from the same rows; its seconds
are the median of the repeats, its memory the peak of the process, including the rows and the libraries. Seconds depend
on the machine; the ratios are the result.
"""

import argparse
import json
import multiprocessing
import os
import platform
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np

CATEGORIES = ("Digital", "Portrait", "Product")
USD_PER_IMAGE = "0.04"
IMAGES = 2


@dataclass(frozen=True)
class PrefixBatch:
    """One row an image, and the orders' own columns."""

    model: Any
    task: Any
    accepted: Any
    score: Any
    price_cents: Any
    """(T,)"""
    category: Any
    """(T,)"""
    models: int


def make_rows(models: int, orders: int) -> PrefixBatch:
    rng = np.random.default_rng(0)
    n = models * orders * IMAGES
    return PrefixBatch(
        model=np.repeat(np.arange(models), orders * IMAGES),
        task=np.tile(np.repeat(np.arange(orders), IMAGES), models),
        accepted=(rng.random(n) < 0.4).astype(np.int64),
        score=rng.integers(0, 151, n),
        price_cents=rng.integers(500, 100_000, orders),
        category=rng.integers(0, len(CATEGORIES), orders),
        models=models,
    )


Figures = list[float]


def our_cells(rows: PrefixBatch) -> Any:
    from local_bench.settle.table import Orders, outcome_table

    orders = Orders(
        tuple(map(str, range(len(rows.price_cents)))),
        CATEGORIES,
        rows.category,
        rows.price_cents * 10_000,
        np.full(len(rows.price_cents), IMAGES),
        1_000_000,
    )
    return outcome_table(orders, [str(m) for m in range(rows.models)], rows.model, rows.task, rows.accepted, rows.score)


def our_standard(rows: PrefixBatch, cells: Any) -> Figures:
    from local_bench.settle.settlement import by_category, earnings

    all_of = [earnings(cells), *by_category(cells).values()]
    return [
        float(x or 0) for of in all_of for e in of for x in (e.revenue_usd, e.task_acceptance, e.deliverable_acceptance)
    ]


def our_competition(rows: PrefixBatch, cells: Any) -> Figures:
    from local_bench.settle.competition import compete

    return [float(x) for p in compete(cells).placed.values() for x in (p.revenue_usd, p.rank)]


def our_savings(rows: PrefixBatch, cells: Any) -> Figures:
    from fractions import Fraction

    from local_bench.settle.savings import savings

    found = savings(cells, {model: Fraction(USD_PER_IMAGE) for model in cells.models})
    return [float(x or 0) for s in found for x in (s.cost_savings, s.model_contribution, s.contribution_ratio)]


def our_retries(rows: PrefixBatch, cells: Any) -> Figures:
    from fractions import Fraction

    from local_bench.settle.hype import count_attempts

    outcomes = rows.accepted.astype(np.int8).reshape(rows.models, -1, IMAGES)
    figures: Figures = []
    for of in outcomes:
        r = count_attempts(of).shown
        figures += [float(x or 0) for x in (r.pass_at(4), r.expected_attempts(), r.hype_gap)]
        figures.append(float(r.effective_cost_usd(Fraction(1, 3)) or 0))
    return figures


def our_intervals(rows: PrefixBatch, cells: Any) -> Figures:
    """95 % intervals of revenue share, images and orders accepted: by model, over all and by category."""
    from local_bench.settle.intervals import rate_interval, share_interval

    accepted = rows.accepted.reshape(rows.models, -1, IMAGES)
    masks = [np.ones(len(rows.price_cents), dtype=bool), *(rows.category == c for c in range(len(CATEGORIES)))]
    figures: Figures = []
    for of in accepted:
        for mask in masks:
            images, price = of[mask].sum(axis=1), rows.price_cents[mask]
            figures += share_interval(images * price / IMAGES, price) or ()
            figures += rate_interval(images, np.full(len(images), IMAGES)) or ()
            figures += rate_interval(of[mask].min(axis=1), np.ones(len(images))) or ()
    return figures


def their_cells(rows: PrefixBatch) -> Any:
    import pandas as pd

    frame = pd.DataFrame({"model": rows.model, "task": rows.task, "accepted": rows.accepted, "score": rows.score})
    frame["price"] = rows.price_cents[rows.task] / 100
    frame["category"] = rows.category[rows.task]
    return frame


def their_standard(rows: PrefixBatch, frame: Any) -> Figures:
    frame = frame.assign(earned=frame.accepted * frame.price / IMAGES)
    complete = (
        frame.groupby(["model", "task"]).agg(all=("accepted", "min"), category=("category", "first")).reset_index()
    )
    figures = []
    for by in (["model"], ["category", "model"]):
        revenue, images = frame.groupby(by).earned.sum(), frame.groupby(by).accepted.mean()
        orders = complete.groupby(by)["all"].mean()
        figures += [float(x) for row in zip(revenue, orders, images, strict=True) for x in row]
    return figures


def their_competition(rows: PrefixBatch, frame: Any) -> Figures:
    cells = frame.groupby(["task", "model"]).agg(
        accepted=("accepted", "sum"), score=("score", "sum"), price=("price", "first")
    )
    leads = cells[cells.accepted == cells.groupby("task").accepted.transform("max")]
    wins = leads[leads.score == leads.groupby("task").score.transform("max")]
    part = wins.price / wins.groupby("task").price.transform("size")
    revenue = part.groupby("model").sum().reindex(range(rows.models), fill_value=0.0)
    ranks = revenue.round(6).rank(ascending=False, method="min")
    return [float(x) for row in zip(revenue, ranks, strict=True) for x in row]


def their_savings(rows: PrefixBatch, frame: Any) -> Figures:
    complete = frame.groupby(["model", "task"]).agg(all=("accepted", "min"), price=("price", "first")).reset_index()
    budget = rows.price_cents.sum() / 100
    done = (complete["all"] * complete.price).groupby(complete.model).sum()
    cost = frame.groupby("model").size() * float(USD_PER_IMAGE)
    table = zip((done - cost) / budget, done / budget, done / (cost + budget - done), strict=True)
    return [float(x) for row in table for x in row]


def their_retries(rows: PrefixBatch, frame: Any) -> Figures:
    tasks = frame.groupby(["model", "task"]).accepted.agg(["mean", "max", "first"])
    p = tasks["mean"]
    tasks["success"] = 1 - (1 - p) ** 4
    tasks["tries"] = (tasks.success / p).where(p > 0, 4.0)
    means = tasks.groupby("model").mean()
    cost = means.tries / 3 / means.success
    table = zip(means.success, means.tries, means["max"] - means["first"], cost, strict=True)
    return [float(x) for row in table for x in row]


SECTIONS: dict[str, tuple[Callable[..., Figures], Callable[..., Figures] | None]] = {
    "standard": (our_standard, their_standard),
    "competition": (our_competition, their_competition),
    "savings": (our_savings, their_savings),
    "retries": (our_retries, their_retries),
    "intervals": (our_intervals, None),
}
"""Scenario -> (ours, theirs or None), both (rows, cells) -> figures."""
CELLS = (our_cells, their_cells)


def run_implementation(index: int, models: int, orders: int, repeats: int, out: Any) -> None:
    """All sections with one implementation, in this process: seconds per section, figures, peak memory."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rows = make_rows(models, orders)
    seconds: dict[str, list[float]] = {name: [] for name in ("cells", *SECTIONS)}
    figures = {}
    CELLS[index](make_rows(2, 10))  # imports are not timed
    for _ in range(repeats):
        began = time.perf_counter()
        cells = CELLS[index](rows)
        seconds["cells"].append(time.perf_counter() - began)
        for name, implementations in SECTIONS.items():
            run = implementations[index]
            if run is None:
                continue
            began = time.perf_counter()
            figures[name] = run(rows, cells)
            seconds[name].append(time.perf_counter() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    out.put(({name: statistics.median(s) for name, s in seconds.items() if s}, figures, peak))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=16)
    parser.add_argument("--orders", type=int, default=31_250)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    found = []
    for index in (0, 1):
        queue = context.Queue()
        child = context.Process(
            target=run_implementation, args=(index, given.models, given.orders, given.repeats, queue)
        )
        child.start()
        found.append(queue.get())
        child.join()
    (ours, our_figures, our_peak), (theirs, their_figures, their_peak) = found
    for name in their_figures:
        np.testing.assert_allclose(our_figures[name], their_figures[name], rtol=1e-9, atol=1e-9, err_msg=name)
    n = given.models * given.orders * IMAGES
    print(f"{n:,} rows; {platform.machine()}, one core; median of {given.repeats}; the same figures to 1e-9")
    print(f"{'':12}{'ours s':>10}{'pandas s':>10}{'pandas / ours':>15}")
    for name, s in ours.items():
        other = theirs.get(name)
        print(f"{name:12}{s:10.3f}" + (f"{other:10.3f}{other / s:15.1f}" if other is not None else f"{'-':>10}"))
    both = [sum(index[name] for name in theirs) for index in (ours, theirs)]
    print(f"{'all of these':12}{both[0]:10.3f}{both[1]:10.3f}{both[1] / both[0]:15.1f}")
    print(f"peak memory: ours {our_peak / 2**30:.2f} GiB, pandas {their_peak / 2**30:.2f} GiB")
    if given.out:
        result = {
            "rows": n,
            "repeats": given.repeats,
            "seconds": {"ours": ours, "pandas": theirs},
            "ratio": both[1] / both[0],
            "peak_bytes": {"ours": our_peak, "pandas": their_peak},
        }
        given.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
