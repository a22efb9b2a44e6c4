"""A run in every scenario, on a run directory written by hand."""

from decimal import Decimal
from fractions import Fraction as F

from local_bench.analysis.economics import economics
from local_bench.analysis.sensitivity import over_prices
from local_bench.analysis.settlement import accounting
from local_bench.report.economics import economics_view
from local_bench.report.page import render as page
from local_bench.runs.rundir import RunDir
from tests.report.conftest import make_run  # noqa: F401

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
        found = economics_view(run, accounting(run.store, run.config.settlement))
        html = page(run)
    assert [(row.model, row.rank) for row in found.rows] == [("alpha", "1"), ("some-api", "2"), ("beta", "3")]
    assert sum(Decimal(row.won[0].strip("$")) for row in found.rows) == 135, "all orders are paid in full"
    cheapest, middle, dearest = (row for row in found.break_even if row.model == "alpha")
    assert (cheapest.api, dearest.api) == (
        ("$0.015948", "gemini-2.5-flash-image"), ("$0.137406", "gpt-image-1")
    )  # fmt: skip
    # three images in 4.4 s each, 51 s besides, at 1.80 an hour
    assert middle.local == ("$0.010700", "one more $0.002200")
    assert cheapest.images == "2", "0.0255 once, and 0.0137 saved an image"
    assert [curve.model for curve in found.curves] == ["alpha", "beta"]
    assert html.count("<polyline") == 2
    assert "Hour up to" in html


def test_the_cost_curve_falls_to_the_marginal_cost(make_run):  # noqa: F811
    with RunDir.open(make_run(on_gpus=True)) as run:
        (first, *_) = economics_view(run, accounting(run.store, run.config.settlement)).curves
    across, heights = zip(*((float(n) for n in pair.split(",")) for pair in first.line.split()), strict=True)
    assert across[0] == 0
    assert across[-1] == 100
    assert list(across) == sorted(across)
    assert list(heights) == sorted(heights), "dear above, cheap below"
    levels = [height for height, _ in first.apis]
    assert levels == sorted(levels, reverse=True)


def test_the_report_has_the_api_price_of_a_local_model(make_run):  # noqa: F811
    path = make_run(on_gpus=True)
    with RunDir.open(path) as run:
        run.config.settlement.api_usd_per_image["alpha"] = "0.1"
        found = economics_view(run, accounting(run.store, run.config.settlement))
        html = page(run)
    alpha, beta = (next(row for row in found.rows if row.model == model) for model in ("alpha", "beta"))
    assert alpha.api[0] == "$0.300000"
    assert beta.api is None
    assert "At an API" in html
    assert "no price" in html


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
        found = economics_view(run, money)
        by_price = over_prices(run, money)
        html = page(run)
    assert found.thresholds.settings == ["2.0", "2.5", "3.0", "3.5", "4.0", "4.5", "5.0"]
    revenues = dict(found.thresholds.rows)["alpha"]
    dollars = [float(text.strip("$").replace(",", "")) for text in revenues]
    assert dollars == sorted(dollars, reverse=True), "a higher threshold never pays more"
    assert len(by_price.points) == 5
    base, dear = by_price.points[2], by_price.points[4]
    for model, value in base.values.items():
        assert dear.values[model] <= value
    assert "t-thresholds" in html
    assert "t-prices" in html
