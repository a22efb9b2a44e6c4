"""A run in every scenario, on a run directory written by hand."""

from decimal import Decimal
from fractions import Fraction as F

import pytest

from local_bench.analysis.economics import economics
from local_bench.analysis.sensitivity import over_prices
from local_bench.analysis.settlement import accounting
from local_bench.runs.rundir import RunDir
from tests.report.conftest import make_run  # noqa: F401
from tests.report.written import section_rows

COMPETITION = "The same images in competition, and as a first attempt at the measured cost"
APIS = {"some": Decimal("0.04"), "cheap": Decimal("0.0025"), "free": Decimal("0")}


def of(path, **more):
    with RunDir.open(path) as run:
        return economics(
            run.store, accounting(run.store, run.config.settlement), {"alpha": Decimal("0.1")}, APIS, **more
        )


def test_scenarios_use_the_rows_of_the_run(make_run):  # noqa: F811
    found = of(make_run())
    alpha, beta = found.earnings
    assert found.table.models == ("alpha", "beta")
    assert (alpha.revenue_usd, beta.revenue_usd, beta.revenue_high_usd) == (135, 0, 50)
    assert [p.revenue_usd for p in found.competition.placed.values()] == [135, 0]
    assert found.competition.n_open == 0, "whatever beta's last image is, alpha has two of that order's"


def test_metered_cost_and_api_cost(make_run):  # noqa: F811
    found = of(make_run())
    store, api = found.by_ledger[0], found.by_api[0]
    assert store.cost_usd == F(6000, 10**6)  # 12 s at 1.80 an hour
    assert api.cost_usd == F("0.3")
    assert (store.cost_savings, api.cost_savings) == (1 - F("0.006") / 135, 1 - F("0.3") / 135)
    assert found.by_api[1].cost_savings is None
    assert found.by_ledger[1].contribution_ratio == 0


def test_break_even_of_local_and_api_cost(make_run):  # noqa: F811
    """`alpha`: three images in 4.4 s each, 51 s besides, at 1.80 an hour."""
    against = {(a.model, a.api): a for a in of(make_run(on_gpus=True)).against}
    assert set(against) == {(model, api) for model in ("alpha", "beta") for api in APIS}, "some-api was not timed here"
    some = against["alpha", "some"]
    assert some.usd_per_hour == F("0.04") * 3 * 3600 / F("64.2")
    assert some.usd_per_hour_endless == F("0.04") * 3600 / F("4.4")
    assert some.images == 1
    assert against["alpha", "cheap"].images == 85, "0.0255 for what is done once, 0.0003 saved an image"
    assert against["alpha", "free"].images is None
    assert against["alpha", "free"].usd_per_hour == 0


def test_untimed_images_have_no_break_even(make_run):  # noqa: F811
    assert of(make_run()).against == [], "its meter has no decoding"


def test_the_report_has_scenarios_and_break_even(make_run):  # noqa: F811
    with RunDir.open(make_run(on_gpus=True)) as run:
        found = section_rows(run, "scenarios")
    rows = found[COMPETITION]
    assert [(row["model"], row["placed.rank"]) for row in rows] == [("alpha", 1), ("some-api", 2), ("beta", 3)]
    assert sum(row["placed.revenue_usd"] for row in rows) == 135, "all orders are paid in full"
    cheapest, middle, dearest = (row for row in found["Break-even with an API"] if row["model"] == "alpha")
    assert (cheapest["api"], dearest["api"]) == ("gemini-2.5-flash-image", "gpt-image-1")
    assert (cheapest["api_usd"], dearest["api_usd"]) == (pytest.approx(0.015947911), pytest.approx(0.137406))
    # three images in 4.4 s each, 51 s besides, at 1.80 an hour
    assert (middle["usd_here"], middle["usd_one_more"]) == (pytest.approx(0.0107), pytest.approx(0.0022))
    assert cheapest["images"] == 2, "0.0255 once, and 0.0137 saved an image"


def test_the_report_has_the_api_price_of_a_local_model(make_run):  # noqa: F811
    path = make_run(on_gpus=True)
    with RunDir.open(path) as run:
        run.config.settlement.api_usd_per_image["alpha"] = "0.1"
        rows = {row["model"]: row for row in section_rows(run, "scenarios")[COMPETITION]}
    assert rows["alpha"]["api.cost_usd"] == pytest.approx(0.3)
    assert rows["beta"]["api.cost_usd"] is None


def test_energy_is_paid_where_it_was_measured(make_run):  # noqa: F811
    with RunDir.open(make_run(on_gpus=True)) as run:
        money = accounting(run.store, run.config.settlement)
        free, dear = (economics(run.store, money, {}, APIS, usd_per_kwh=kwh) for kwh in (F(0), F(3600)))
    joules = free.timed["alpha"].each_j
    before, after = ({a.model: a.usd_one_more for a in found.against}["alpha"] for found in (free, dear))
    assert joules > 0
    assert after - before == joules * F(3600) / 3_600_000


def test_sensitivity_to_thresholds_and_prices(make_run):  # noqa: F811
    with RunDir.open(make_run(on_gpus=True)) as run:
        money = accounting(run.store, run.config.settlement)
        found = section_rows(run, "scenarios")
        by_price = over_prices(run, money)
    (alpha, *_) = found["Revenue at a common threshold of all deciding scores"]
    assert list(alpha) == ["model", "2.0", "2.5", "3.0", "3.5", "4.0", "4.5", "5.0"]
    dollars = [value for name, value in alpha.items() if name != "model"]
    assert dollars == sorted(dollars, reverse=True), "a higher threshold never pays more"
    assert len(by_price.points) == 5
    base, dear = by_price.points[2], by_price.points[4]
    for model, value in base.values.items():
        assert dear.values[model] <= value
    profits = {row["model"]: list(row.values())[1:] for row in found["Profit at other prices of a device-hour"]}
    assert profits == {model: [float(p.values[model]) for p in by_price.points] for model in base.values}
