"""The exported tables: the ledger's values, typed, in a fixed order, and harmless in a spreadsheet."""

import csv
import json
from decimal import Decimal

import pyarrow.parquet as pq
import pytest

from local_bench.analysis.loading import load_run
from local_bench.analysis.settlement import accounting
from local_bench.core.money import MICRO, NS_PER_HOUR
from local_bench.report.exports import write_exports
from local_bench.runs.prices import price_of
from local_bench.runs.rundir import RunDir

from .conftest import FORMULA, Writer, write_run
from .exported import assert_exports_are_those_of_load_run
from .written import change

NAMES = (
    *("candidates", "verdicts", "scores", "settlement", "costs", "making", "judges", "cuts", "competition"),
    *("cost_reduction", "break_even"),
)


def export(path):
    with RunDir.open(path) as run:
        return write_exports(run)


def parquet(path, name):
    return pq.read_table(path / "exports" / f"{name}.parquet").to_pylist()


def csv_rows(path, name):
    with (path / "exports" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """An exported run that no test changes."""
    path = write_run(tmp_path_factory.mktemp("plain") / "run")
    export(path)
    return path


def test_every_table_is_written_in_two_formats_and_always_the_same(plain):
    written = [plain / "exports" / f"{name}.{ending}" for name in NAMES for ending in ("csv", "parquet")]
    first = {path: path.read_bytes() for path in written}
    assert sorted((plain / "exports").iterdir()) == sorted(written)
    assert {path: path.read_bytes() for path in export(plain)} == first


def test_exported_rows_equal_the_ledger_and_judges_have_their_checks(make_run):
    path = make_run(no_source=True, panel=True)
    export(path)
    keys = {"candidates": "work_id", "verdicts": "work_id, judge, rubric, point, repeat", "scores": "work_id, name"}
    with RunDir.open(path) as run:
        for name, key in keys.items():
            stored = [dict(row) for row in run.store.rows(f"SELECT * FROM {name} ORDER BY {key}")]
            read = [row | {"judge": row["judge_id"]} if "judge_id" in row else row for row in parquet(path, name)]
            assert [{k: row[k] for k in stored[0] if k != "position"} for row in read] == [
                {k: v for k, v in row.items() if k != "position"} for row in stored
            ]
    gamma, delta = parquet(path, "judges")
    assert (gamma["name"], gamma["card"], gamma["protocol"]) == ("gamma", "gamma", "json-2")
    tried = ("reproducible", "n_attacks", "n_fooled", "n_attacks_unscored", "fooled_by")
    assert [gamma[name] for name in tried] == [None] * 5  # not run
    assert [delta[name] for name in tried[:4]] == [False, 15, 2, 1]
    assert json.loads(delta["fooled_by"])[0] == "painted-json"
    verdicts = {(r["judge"], r["judge_id"]) for r in parquet(path, "verdicts")}
    assert verdicts == {(judge["name"], judge["judge_id"]) for judge in (gamma, delta)}


def test_unscored_is_null_with_a_reason_and_no_cell_is_a_formula(plain):
    [row] = [r for r in parquet(plain, "scores") if r["unscored"]]
    assert (row["value"], row["applies"]) == (None, True)
    assert row["unscored"].startswith("the answer was cut off")
    assert all(r["value"] is None and not r["applies"] for r in parquet(plain, "scores") if r["name"] == "veq_text")
    assert [r["accepted"] for r in parquet(plain, "candidates") if r["decision_unscored"]] == [None]
    assert [r["value"] for r in csv_rows(plain, "scores") if r["unscored"]] == [""]
    cells = [(name, k, cell) for name in NAMES for row in csv_rows(plain, name) for k, cell in row.items()]
    numbers = {"profit_micro_usd", "profit_usd", "cost_savings", "cost_savings_high"}
    assert [c for c in cells if c[2].startswith(("=", "+", "-", "@", "\t", "\r")) and c[1] not in numbers] == []
    assert {
        ("candidates", "title", "'" + FORMULA),
        ("verdicts", "raw", "'-1+" + FORMULA),
        ("settlement", "profit_micro_usd", "-3500"),  # a number stays one
    } <= set(cells)
    assert {r["title"] for r in parquet(plain, "candidates")} >= {FORMULA}  # and Parquet has the text unchanged


def test_settlement_and_costs_equal_the_accounting(plain):
    with RunDir.open(plain) as run:
        money = accounting(run.store, run.config.settlement)
    rows = {(r["model"], r["scope"], r["category"]): r for r in parquet(plain, "settlement")}
    assert len(rows) == 2 * 3
    for s in money.settlements:
        row = rows[s.model, "run", "all"]
        assert row["revenue_micro_usd"] == s.total.revenue_micro_usd
        assert row["revenue_usd"] == Decimal(s.total.revenue_micro_usd) / 1_000_000
        assert (row["cost_micro_usd"], row["profit_micro_usd"]) == (s.cost_micro_usd, s.profit_micro_usd)
        assert row["coverage"] == s.total.coverage
        parts = [r for r in rows.values() if r["model"] == s.model and r["scope"] == "category"]
        assert sum(r["revenue_micro_usd"] for r in parts) == s.total.revenue_micro_usd
        assert all(r["cost_usd"] is None and r["cost_unscored"] for r in parts)
    costs = parquet(plain, "costs")
    assert sum(r["cost_micro_usd"] for r in costs) == money.cost_micro_usd
    assert [r["model"] for r in costs] == ["alpha", "alpha", "beta", None, None]
    assert next(r["cost_usd"] for r in csv_rows(plain, "costs")) == "0.001000"


def test_every_device_has_its_own_price(make_run):
    """An hour each: alpha on a CPU, beta on an H100 and its judge on another device."""
    path = make_run(price=None)
    with RunDir.open(path) as run, run.store.transaction():
        to = Writer(run)
        before = {row.model: row.cost_micro_usd for row in accounting(run.store, run.config.settlement).costs}
        to.meter([("denoise", "alpha", NS_PER_HOUR, 1, None)], "cpu")
        to.meter([("denoise", "beta", NS_PER_HOUR, 1, None)], "NVIDIA H100 80GB HBM3")
        settings = run.config.settlement
        cpu, h100 = (price_of(settings, name).micro_usd_per_hour for name in ("cpu", "NVIDIA H100 80GB HBM3"))
        money = accounting(run.store, settings)
        cost = {s.model: s.cost_micro_usd for s in money.settlements}
        assert cost["beta"] - h100 == pytest.approx(before["beta"], abs=cpu / 10)
        assert cost["alpha"] < h100 / 10
        assert money.cost_micro_usd == sum(row.cost_micro_usd for row in money.costs) > cpu + h100
        assert money.price.gpu == "cpu and h100"
        assert cpu < money.price.micro_usd_per_hour < h100
        assert float(money.usd_per_hour("alpha")) == pytest.approx(cpu / MICRO, rel=1e-3)
        assert float(money.usd_per_hour("beta")) == pytest.approx(h100 / MICRO, rel=0.01)
        own = settings.model_copy(update={"usd_per_hour": "2"})
        assert accounting(run.store, own).price.micro_usd_per_hour == 2 * MICRO
        to.meter([("judge", None, NS_PER_HOUR, 1, None)], "an unknown device")
        unknown = accounting(run.store, settings)
        assert (unknown.price, unknown.cost_micro_usd) == (None, None)


@pytest.mark.parametrize("on_gpus", [False, True])
def test_the_exports_are_the_frames_of_load_run(make_run, on_gpus):
    path = make_run(on_gpus=on_gpus, planned=not on_gpus, gap=on_gpus)
    assert_exports_are_those_of_load_run(path)
    with load_run(path) as run:
        loaded = run.candidates()
    prices = loaded.groupby(["model", "task_id"])["price_usd"].sum().unstack().to_dict("index")["alpha"]
    assert prices == {"t1": 35, "t2": 100}
    assert set(loaded["task_price_usd"]) == {35, 100}
    assert loaded["cost_usd"].notna().equals(loaded["image"].notna())


def test_generation_and_its_costs_are_those_of_the_meter(make_run):
    path = make_run(on_gpus=True)
    export(path)
    rows = {(r["model"], r["task_id"], r["deliverable"]): r for r in parquet(path, "candidates")}
    image, elsewhere = rows["alpha", "t2", 2], rows["some-api", "t1", 1]
    assert (image["batch_size"], image["truncated"], image["cost_micro_usd"]) == (4, '{"clip": 6, "t5": 0}', None)
    assert elsewhere["cost_usd"] == Decimal("0.137406")
    assert [elsewhere[name] for name in ("batch_size", "truncated", "height", "width")] == [None] * 4
    alpha, beta, elsewhere = parquet(path, "making")
    names = ("n_images", "n_made", "batch_sizes", "sizes")
    assert [alpha[name] for name in names] == [3, 3, '{"4": 3}', '{"320x240": 3}']
    assert alpha["s_per_image"] == pytest.approx(13.2 / 3)
    assert alpha["images_per_gpu_hour"] == pytest.approx(3 * 3600 / 64.2)
    assert alpha["image_micro_usd"] == round(64.2 * 500 / 3)  # 1.80 an hour is 500 micro-dollars a second
    assert alpha["marginal_image_usd"] == Decimal("0.0022")
    assert alpha["wh_per_image"] == pytest.approx(64.2 * 500 / 3600 / 3)
    assert alpha["floor_s_per_image"] == pytest.approx(2100 / 790)
    assert alpha["mfu"] == pytest.approx(2100 / 790 / 4.4)
    assert (beta["s_per_image"], beta["no_floor"]) == (pytest.approx(2), "no floor: its cache skips work")
    assert [beta[name] for name in ("mfu", "floor_s_per_image", "flop_per_image")] == [None] * 3
    assert elsewhere["image_micro_usd"] == 137_406
    assert [elsewhere[name] for name in ("s_per_image", "wh_per_image", "mfu", "images_per_gpu_hour")] == [None] * 4
    cut = {(r["model"], r["encoder"]): (r["n_prompts"], r["n_cut"], r["most_tokens"]) for r in parquet(path, "cuts")}
    assert cut == {(model, e): (2, n, 3 * n) for model in ("alpha", "beta") for e, n in (("clip", 2), ("t5", 0))}


def test_absent_counters_and_prices_are_null_and_not_zero(make_run):
    path = change(
        make_run(on_gpus=True, price=None),
        "UPDATE meter SET energy_mj = NULL WHERE phase = 'encode'",
        "UPDATE sessions SET device = 'an unheard-of device'",
        "UPDATE candidates SET cost_micro_usd = NULL",
    )
    export(path)
    alpha, beta, elsewhere = parquet(path, "making")
    assert alpha["wh_per_image"] is None  # a part of its time has no counter
    assert None not in (alpha["marginal_wh_per_image"], beta["wh_per_image"])
    assert {row["image_micro_usd"] for row in (alpha, beta, elsewhere)} == {None}
    assert alpha["no_floor"] == "no floor for this device"
    for row in [*parquet(path, "costs"), *parquet(path, "settlement")]:
        assert (row["cost_micro_usd"], row["cost_usd"], bool(row["cost_unscored"])) == (None, None, True)
    rows = {r["model"]: r["cost_unscored"] for r in parquet(path, "settlement") if r["scope"] == "run"}
    assert rows["some-api"] == "the cost of its images is not stated"
    assert rows["alpha"] == "the price table has no row for the device"
    change(path, "UPDATE candidates SET state = 'unscored', pixels_sha256 = NULL WHERE model = 'some-api'")
    export(path)
    rows = {r["model"]: r["cost_unscored"] for r in parquet(path, "settlement") if r["scope"] == "run"}
    assert rows["some-api"] == "no image of it was imported"
