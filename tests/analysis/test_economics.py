"""A run in every scenario, on a run directory written by hand."""

from decimal import Decimal
from fractions import Fraction as F

from local_bench.analysis.economics import economics
from local_bench.analysis.sensitivity import over_prices
from local_bench.analysis.settlement import accounting
from local_bench.runs.rundir import RunDir
from local_bench.settle.settlement import earnings
from tests.report.conftest import make_run  # noqa: F401
from tests.report.written import section_rows

APIS = {"some": Decimal("0.04"), "cheap": Decimal("0.0025"), "free": Decimal("0")}


def of(path, **more):
    with RunDir.open(path) as run:
        money = accounting(run.store, run.config.settlement)
        return economics(run.store, money, {"alpha": Decimal("0.1")}, APIS, **more)


def test_scenarios_use_the_rows_and_the_costs_of_the_run(make_run):  # noqa: F811
    found = of(make_run())
    alpha, beta = earnings(found.table)
    assert found.table.models == ("alpha", "beta")
    assert (alpha.revenue_usd, beta.revenue_usd, beta.revenue_high_usd) == (135, 0, 50)
    assert [p.revenue_usd for p in found.competition.placed.values()] == [135, 0]
    assert found.competition.n_open == 0, "whatever beta's last image is, alpha has two of that order's"
    store, api = found.by_ledger[0], found.by_api[0]
    assert (store.cost_usd, api.cost_usd) == (F(6000, 10**6), F("0.3"))  # 12 s at 1.80 an hour
    assert (store.cost_savings, api.cost_savings) == (1 - F("0.006") / 135, 1 - F("0.3") / 135)
    assert (found.by_api[1].cost_savings, found.by_ledger[1].contribution_ratio) == (None, 0)
    assert found.against == [], "its meter has no decoding"


def test_break_even_of_local_and_api_cost(make_run):  # noqa: F811
    """`alpha`: three images in 4.4 s each, 51 s besides, at 1.80 an hour."""
    path = make_run(on_gpus=True)
    free = of(path)
    against = {(a.model, a.api): a for a in free.against}
    assert set(against) == {(model, api) for model in ("alpha", "beta") for api in APIS}, "some-api was not timed here"
    some = against["alpha", "some"]
    assert some.break_even_usd_per_hour == F("0.04") * 3 * 3600 / F("64.2")
    assert some.break_even_usd_per_hour_endless == F("0.04") * 3600 / F("4.4")
    assert some.break_even_images == 1
    assert against["alpha", "cheap"].break_even_images == 85, "0.0255 for what is done once, 0.0003 saved an image"
    of_free = against["alpha", "free"]
    assert (of_free.break_even_images, of_free.break_even_usd_per_hour) == (None, 0)
    dear = {(a.model, a.api): a for a in of(path, usd_per_kwh=F(3600)).against}
    joules = free.timed["alpha"].each_j
    assert joules > 0
    assert dear["alpha", "some"].marginal_usd_per_image - some.marginal_usd_per_image == joules * F(3600) / 3_600_000


def test_sensitivity_to_thresholds_and_prices(make_run):  # noqa: F811
    with RunDir.open(make_run(on_gpus=True)) as run:
        found = section_rows(run, "scenarios")
        by_price = over_prices(run, accounting(run.store, run.config.settlement))
    (alpha, *_) = found["Revenue at a common threshold of all deciding scores"]
    assert list(alpha) == ["model", "2.0", "2.5", "3.0", "3.5", "4.0", "4.5", "5.0"]
    dollars = list(alpha.values())[1:]
    assert dollars == sorted(dollars, reverse=True), "a higher threshold never pays more"
    assert len(by_price.points) == 5
    base, dear = by_price.points[2], by_price.points[4]
    assert all(dear.values[model] <= value for model, value in base.values.items())
    assert base.values.keys() == {"alpha", "beta"}  # of images that were made here
    hours = F("64.2") / 3600
    assert base.values["alpha"] == 135 - hours * F("1.8")
    assert dear.values["alpha"] == 135 - hours * F("7.2")
    profits = {row["model"]: list(row.values())[1:] for row in found["Profit at other prices of a device-hour"]}
    assert profits == {model: [float(p.values[model]) for p in by_price.points] for model in base.values}
