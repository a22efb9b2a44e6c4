"""ServImage's tables 3 and 7 and the break-even: the page, the JSON and the exports show the same numbers."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from local_bench.analysis.settlement import accounting
from local_bench.cli.tables import outcome_json
from local_bench.report.exports import write_exports
from local_bench.report.sections import sections
from local_bench.runs.rundir import RunDir
from local_bench.runs.stages import Outcome

MakeRun = Callable[..., Path]


def cells(path: Path, name: str) -> list[dict[str, str]]:
    with (path / "exports" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def values(row: dict[str, Any]) -> dict[str, Any]:
    """A CSV row as JSON has it."""
    texts = ("model", "api")
    return {k: v if k in texts else None if v == "" else float(v) for k, v in row.items()}


def outcome(run: RunDir) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        json.dumps(outcome_json(run, Outcome(run.path, 0, 0, 0, 0, 0, 0), run.path / "report"))
    )
    return found


def test_json_and_exports_have_the_tables_of_the_page(make_run: MakeRun) -> None:
    with RunDir.open(make_run(on_gpus=True)) as run:
        run.config.settlement.api_usd_per_image["alpha"] = "0.1"
        result = outcome(run)
        view = sections(run, accounting(run.store, run.config.settlement), None)
        write_exports(run)
    found = result["economics"]
    for name in ("competition", "cost_reduction"):
        by_model = {
            row["model"]: {k.replace("_bound", ""): v for k, v in row.items() if k != "model"}
            for row in cells(run.path, name)
        }
        assert {m: values(row) for m, row in by_model.items()} == found[name]
    assert [values(row) for row in cells(run.path, "break_even")] == found["break_even"]
    (table, *_) = next(section.tables for section in view if section.name == "scenarios")
    shown = {str(row[0]): dict(zip(table.keys, row, strict=True)) for row in table.rows}
    assert list(shown) == list(found["competition"])
    for model, row in shown.items():
        assert row["placed.revenue_usd"] == found["competition"][model]["revenue_usd"]
        assert row["placed.rank"] == found["competition"][model]["rank"]
    by_model = result["benchmark"]["all"]["models"]
    for model, reduced in found["cost_reduction"].items():
        for name in ("cost_usd", "cost_savings", "model_contribution", "contribution_ratio"):
            assert reduced[name] == pytest.approx(by_model[model][name])
    # three images at 0.1 each, and all orders (135) done
    assert found["cost_reduction"]["alpha"]["api_cost_savings"] == pytest.approx(1 - 0.3 / 135)
    assert found["cost_reduction"]["alpha"]["api_contribution_ratio"] == pytest.approx(135 / 0.3)
    assert found["cost_reduction"]["beta"]["api_cost_usd"] is None
    # alpha: three images in 4.4 s each, 51 s besides, at 1.80 an hour
    least = next(row for row in found["break_even"] if (row["model"], row["api"][:6]) == ("alpha", "gemini"))
    assert least["usd_per_image"] == pytest.approx(0.0107)
    assert least["marginal_usd_per_image"] == pytest.approx(0.0022)
    assert least["break_even_usd_per_hour"] == pytest.approx(0.015947911 * 3 * 3600 / 64.2)
    assert least["break_even_images"] == 2


def test_unpriced_tasks_give_null_and_tables_without_rows(make_run: MakeRun) -> None:
    with RunDir.open(make_run()) as run:
        run.store.write("UPDATE tasks SET price_micro_usd = 0")
        assert outcome(run)["economics"] is None
        write_exports(run)
    assert cells(run.path, "competition") == []
