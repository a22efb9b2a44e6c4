"""ServImage's tables 3 and 7 and the break-even of a run as rows, for JSON and for the exports.

The page shows the same `Economics`; money is in US dollars and shares are fractions of 1. None: unknown, or the
denominator is 0.
"""

from typing import Any

from local_bench.analysis.economics import Economics, economics_of
from local_bench.analysis.settlement import Accounting
from local_bench.runs.rundir import RunDir
from local_bench.suites.published import number
from local_bench.suites.servimage.published import figures_json, placed_json

Row = dict[str, Any]


def competition_rows(economics: Economics) -> list[Row]:
    """Table 3: one row per model, by rank."""
    rows = [{"model": model} | placed_json(placed) for model, placed in economics.competition.placed.items()]
    return sorted(rows, key=lambda row: (row["rank"], row["model"]))


def cost_reduction_rows(economics: Economics) -> list[Row]:
    """Table 7: one row per model with the metered cost, and with an API's price (`api_`) if the config has one."""
    rows = []
    for model, here, at_api in zip(economics.table.models, economics.by_ledger, economics.by_api, strict=True):
        api = {f"api_{name}": value for name, value in figures_json(at_api).items() if "model_contribution" not in name}
        rows.append({"model": model} | figures_json(here) | api)
    return rows


def break_even_rows(economics: Economics) -> list[Row]:
    """One row per timed model and API: the price of a GPU-hour up to which, and the number of images from
    which, the run's devices cost no more than the API."""
    return [
        {
            "model": a.model,
            "api": a.api,
            "api_usd_per_image": number(a.api_usd),
            "usd_per_image": number(a.usd_here),
            "marginal_usd_per_image": number(a.usd_one_more),
            "break_even_usd_per_hour": number(a.usd_per_hour),
            "break_even_usd_per_hour_endless": number(a.usd_per_hour_endless),
            "break_even_images": a.images,
        }
        for a in economics.against
    ]


def economics_json(run: RunDir, money: Accounting) -> dict[str, Any] | None:
    """All three, by model; None if nothing is settled or no task has a price."""
    economics = economics_of(run, money)
    if economics is None:
        return None
    return {
        "competition": _by_model(competition_rows(economics)),
        "n_competition_open": economics.competition.n_open,
        "cost_reduction": _by_model(cost_reduction_rows(economics)),
        "break_even": break_even_rows(economics),
        **({"notes": economics.notes} if economics.notes else {}),
    }


def _by_model(rows: list[Row]) -> dict[str, Row]:
    return {row["model"]: {name: value for name, value in row.items() if name != "model"} for row in rows}
