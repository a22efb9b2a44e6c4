"""ServImage's tables 3 and 7 and the break-even: the page, the JSON and the exports show the same numbers."""

import csv
import json

import pytest

from local_bench.analysis.settlement import accounting
from local_bench.cli.tables import outcome_json, outcome_text
from local_bench.report.exports import write_exports
from local_bench.report.sections import sections
from local_bench.report.site.run_figures import run_figures
from local_bench.runs.rundir import RunDir
from local_bench.runs.stages import Outcome
from local_bench.runs.store.rows import Counts

from .written import section_rows

COMPETITION = "The same images in competition, and as a first attempt at the measured cost"


def exported(path, name):
    """A CSV's rows as JSON has them."""
    with (path / "exports" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return [
            {k: v if k in ("model", "api") else None if v == "" else float(v) for k, v in row.items()}
            for row in csv.DictReader(file)
        ]


def outcome(run):
    return json.loads(json.dumps(outcome_json(run, Outcome(Counts(*[0] * 5)), run.path / "report")))


def test_json_and_exports_have_the_tables_of_the_page(make_run):
    with RunDir.open(make_run(on_gpus=True)) as run:
        run.config.settlement.api_usd_per_image["alpha"] = "0.1"
        result, page = outcome(run), section_rows(run, "scenarios")
        write_exports(run)
    found = result["economics"]
    for name in ("competition", "cost_reduction"):
        assert {
            row.pop("model"): {k.replace("_bound", ""): v for k, v in row.items()} for row in exported(run.path, name)
        } == found[name]
    assert exported(run.path, "break_even") == found["break_even"]
    placed = {row["model"]: (row["placed.revenue_usd"], row["placed.rank"]) for row in page[COMPETITION]}
    assert placed == {model: (row["revenue_usd"], row["rank"]) for model, row in found["competition"].items()}
    assert [(model, rank) for model, (_, rank) in placed.items()] == [("alpha", 1), ("some-api", 2), ("beta", 3)]
    assert sum(revenue for revenue, _ in placed.values()) == 135, "all orders are paid in full"
    by_model = result["benchmark"]["all"]["models"]
    for model, reduced in found["cost_reduction"].items():
        names = ("cost_usd", "cost_savings", "model_contribution", "contribution_ratio")
        assert [reduced[name] for name in names] == pytest.approx([by_model[model][name] for name in names])
    # three images at 0.1 each, and all orders (135) done
    alpha = found["cost_reduction"]["alpha"]
    assert alpha["api_cost_savings"] == pytest.approx(1 - 0.3 / 135)
    assert alpha["api_contribution_ratio"] == pytest.approx(135 / 0.3)
    api_usd = {row["model"]: row["api.cost_usd"] for row in page[COMPETITION]}
    assert (api_usd["alpha"], api_usd["beta"]) == (pytest.approx(0.3), None)
    assert found["cost_reduction"]["beta"]["api_cost_usd"] is None
    # alpha: three images in 4.4 s each, 51 s besides, at 1.80 an hour
    cheapest, _, dearest = (row for row in page["Break-even with an API"] if row["model"] == "alpha")
    assert (cheapest["api"], dearest["api"]) == ("gemini-2.5-flash-image", "gpt-image-1")
    assert (cheapest["api_usd_per_image"], dearest["api_usd_per_image"]) == pytest.approx(
        (0.015947911, 0.137406), rel=1e-5
    )
    assert (cheapest["usd_per_image"], cheapest["marginal_usd_per_image"]) == pytest.approx((0.0107, 0.0022))
    least = next(row for row in found["break_even"] if (row["model"], row["api"][:6]) == ("alpha", "gemini"))
    assert (least["usd_per_image"], least["marginal_usd_per_image"]) == pytest.approx((0.0107, 0.0022))
    assert least["break_even_usd_per_hour"] == pytest.approx(0.015947911 * 3 * 3600 / 64.2)
    assert least["break_even_images"] == cheapest["break_even_images"] == 2, "0.0255 once, and 0.0137 saved an image"


def test_break_even_with_electricity_is_unknown_where_energy_is_not_measured(make_run):
    """Of `alpha`, one of two devices has no counter in one phase; `beta` is measured."""
    path = make_run(on_gpus=True)
    with RunDir.open(path) as run:
        run.store.write("UPDATE meter SET energy_mj = NULL WHERE session = 2 AND phase = 'decode'")
        assert "notes" not in outcome(run)["economics"], "electricity has no price"
    config = path / "run.yaml"
    config.write_text(config.read_text().replace("usd_per_kwh: null", "usd_per_kwh: '0.3'"))
    with RunDir.open(path) as run:
        found, text = outcome(run)["economics"], outcome_text(run, Outcome(Counts(*[0] * 5)), None, settled=True)
        money = accounting(run.store, run.config.settlement)
        tables = [table for section in sections(run, money, None) for table in section.tables]
        [of_site] = [table for table in tables if table.title == "Break-even with an API"]
        figure = run_figures(run, money, run.store.outcomes())["break_even"]
        write_exports(run)
    for row in (*found["break_even"], *exported(run.path, "break_even")):
        known = [value is not None for name, value in row.items() if name not in ("model", "api", "api_usd_per_image")]
        assert known[:4] == [row["model"] == "beta"] * 4
    [note] = found["notes"]
    assert note.startswith("The energy of alpha was not measured")
    assert note in text
    assert note in of_site.notes
    assert [line.name for line in figure.panels[0].lines] == ["beta"]


def test_unpriced_tasks_give_null_and_tables_without_rows(make_run):
    with RunDir.open(make_run()) as run:
        run.store.write("UPDATE tasks SET price_micro_usd = 0")
        assert outcome(run)["economics"] is None
        write_exports(run)
    assert exported(run.path, "competition") == []
