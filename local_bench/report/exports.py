"""The run's tables as CSV and Parquet, for further analysis."""

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from local_bench.analysis.economics import economics_of
from local_bench.analysis.performance import GenerationStats, generation_stats, prompt_truncations
from local_bench.analysis.settlement import Accounting, accounting
from local_bench.core.errors import LedgerError
from local_bench.core.money import MICRO
from local_bench.core.storage import write_atomic
from local_bench.core.tables import FORMULA
from local_bench.report import columns
from local_bench.report.judging import Judge, judges
from local_bench.report.scenarios import break_even_rows, competition_rows, cost_reduction_rows
from local_bench.report.view import model_order
from local_bench.runs.roofline import check_floors
from local_bench.runs.rundir import RunDir
from local_bench.runs.store import OutcomeRow
from local_bench.settle.settlement import Settlement, Total


def write_exports(run: RunDir, money: Accounting | None = None) -> list[Path]:
    """Write every table to `<run>/exports/`, as CSV and as Parquet, and return the paths. `money` is the run's
    accounting, if it is computed already.

    Rows are in the order of identities, so equal ledgers give equal files. LedgerError if the ledger has values that
    do not fit, ConfigError if the price table lacks the config's row, StorageError if writing fails; LocalBenchError,
    and nothing is written, if generation times are impossibly short.
    """
    check_floors(run.store)
    money = money or accounting(run.store, run.config.settlement)
    scenarios = economics_of(run, money)
    outcomes = {row.candidate.work_id: row for row in run.store.outcomes()}
    tables = {
        "candidates": (columns.CANDIDATES, _candidates(run, outcomes)),
        "verdicts": (columns.VERDICTS, _verdicts(run, outcomes)),
        "scores": (columns.SCORES, _scores(run, outcomes)),
        "settlement": (columns.SETTLEMENT, _settlement(run, money)),
        "costs": (columns.COSTS, _costs(money)),
        "making": (columns.MAKING, map(_making, generation_stats(run.store, money, model_order(run)))),
        "judges": (columns.JUDGES, map(_judge, judges(run))),
        "cuts": (columns.CUTS, map(vars, prompt_truncations(run.store))),
        "competition": (columns.COMPETITION, competition_rows(scenarios) if scenarios else ()),
        "cost_reduction": (columns.COST_REDUCTION, cost_reduction_rows(scenarios) if scenarios else ()),
        "break_even": (columns.BREAK_EVEN, break_even_rows(scenarios) if scenarios else ()),
    }
    paths = []
    for name, (schema, rows) in tables.items():
        table = _table(name, schema, rows)
        for ending, data in (("csv", csv_bytes(table)), ("parquet", _parquet_bytes(table))):
            path = run.path / "exports" / f"{name}.{ending}"
            write_atomic(path, data)
            paths.append(path)
    return paths


def csv_bytes(table: Any) -> bytes:
    """The pyarrow table as CSV: nulls are empty and text that a spreadsheet would run as a formula begins with `'`."""
    for i, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            text = table.column(i)
            guarded = pc.binary_join_element_wise("'", text, "")
            table = table.set_column(i, field, pc.if_else(pc.match_substring_regex(text, FORMULA), guarded, text))
    buffer = io.BytesIO()
    pyarrow.csv.write_csv(table, buffer)
    return buffer.getvalue()


def _parquet_bytes(table: Any) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def _table(name: str, schema: Any, rows: Iterable[Mapping[str, Any]]) -> Any:
    try:
        return pa.Table.from_pylist([_with_usd(row, schema) for row in rows], schema=schema)
    except (pa.ArrowException, TypeError, ValueError) as e:
        raise LedgerError(f"the ledger's {name} contain a value that does not fit ({e}): repeat the run") from e


def _with_usd(row: Mapping[str, Any], schema: Any) -> dict[str, Any]:
    """The row's values by the schema's names, with dollars in addition to micro-dollars."""
    values: dict[str, Any] = {}
    for field in schema:
        usd = field.type == columns.USD
        value = row[field.name.replace("_usd", "_micro_usd") if usd else field.name]
        if value is not None and usd:
            value = Decimal(value) / MICRO
        elif value is not None and field.type == columns.YES_NO:
            value = bool(value)
        values[field.name] = value
    return values


def _of_candidate(row: OutcomeRow) -> dict[str, Any]:
    """The columns by which rows of other tables name their candidate."""
    names = ("work_id", "model", "task_id", "deliverable", "attempt")
    return {name: getattr(row.candidate, name) for name in names} | {"category": row.category}


def _candidates(run: RunDir, outcomes: Mapping[str, OutcomeRow]) -> Iterator[dict[str, Any]]:
    titles = {task.task_id: task.title for task in run.store.tasks()}
    for _, row in sorted(outcomes.items()):
        candidate, decision = row.candidate, row.decision
        yield vars(candidate) | {
            "work": candidate.work_json,
            "truncated": candidate.truncated_json,
            "category": row.category,
            "accepted": row.accepted,
            "decision_unscored": None if decision is None else decision.unscored,
            "price_micro_usd": None if decision is None else row.price_micro_usd,
            "title": titles[candidate.task_id].encode(errors="replace").decode(),
        }


def _verdicts(run: RunDir, outcomes: Mapping[str, OutcomeRow]) -> Iterator[dict[str, Any]]:
    for row in run.store.verdicts():
        yield vars(row) | {"answer": row.answer_json, "labels": row.labels_json} | _of_candidate(outcomes[row.work_id])


def _scores(run: RunDir, outcomes: Mapping[str, OutcomeRow]) -> Iterator[dict[str, Any]]:
    for row in run.store.scores():
        yield vars(row.score) | {"kind": row.kind} | _of_candidate(outcomes[row.work_id])


def _settlement(run: RunDir, money: Accounting) -> Iterator[dict[str, Any]]:
    imported = {m.label for m in run.config.models if m.imported is not None}
    for s in sorted(money.settlements, key=lambda s: s.model):
        no_cost = "the cost of its images is not stated" if s.model in imported else _no_cost(money)
        reason = None if s.cost_micro_usd is not None else no_cost
        costs = {"cost_micro_usd": s.cost_micro_usd, "profit_micro_usd": s.profit_micro_usd, "cost_unscored": reason}
        yield _total(s, s.total) | {"scope": "run", "category": "all"} | costs
        for category, total in sorted(s.by_category.items()):
            costs = {"cost_micro_usd": None, "profit_micro_usd": None, "cost_unscored": "costs are counted by model"}
            yield _total(s, total) | {"scope": "category", "category": category} | costs


def _total(settlement: Settlement, total: Total) -> dict[str, Any]:
    derived = ("share", "coverage", "task_acceptance", "deliverable_acceptance")
    low, high = total.revenue_interval_micro_usd or (None, None)
    ends = {"revenue_low_micro_usd": low, "revenue_high_micro_usd": high}
    return {"model": settlement.model} | vars(total) | ends | {name: getattr(total, name) for name in derived}


def _costs(money: Accounting) -> Iterator[dict[str, Any]]:
    price = money.price
    for row in money.costs:
        yield vars(row) | {
            "cost_micro_usd": row.cost_micro_usd if price else None,
            "cost_unscored": None if price else _no_cost(money),
            "gpu": price.gpu if price else None,
            "price_level": price.level if price else None,
            "hour_micro_usd": price.micro_usd_per_hour if price else None,
            "price_source": price.source if price else None,
            "price_date": price.date if price else None,
        }


def _making(m: GenerationStats) -> dict[str, Any]:
    t = m.timing
    sizes = {f"{width}x{height}": n for (height, width), n in m.sizes.items()}
    return {
        "model": m.model,
        "imported": m.imported,
        "n_images": m.n_images,
        "n_made": t.n_made,
        "batch_sizes": json.dumps(m.batch_sizes),
        "sizes": json.dumps(sizes),
        "held_ns": m.held_ns,
        "busy_ns": t.busy_ns,
        "s_per_image": t.seconds_per_image,
        "images_per_gpu_hour": m.images_per_gpu_hour,
        "image_micro_usd": m.image_micro_usd,
        "marginal_image_micro_usd": m.marginal_image_micro_usd,
        "wh_per_image": m.wh_per_image,
        "marginal_wh_per_image": m.marginal_wh_per_image,
        "flop_per_image": t.flop_per_image,
        "floor_s_per_image": t.floor_s_per_image,
        "mfu": t.utilisation,
        "no_floor": "made elsewhere" if m.imported else t.no_floor,
    }


def _judge(judge: Judge) -> dict[str, Any]:
    tried = judge.attacks
    return judge.model_dump(include={"judge_id", "name", "card", "protocol", "transport", "reproducible"}) | {
        "n_attacks": tried.n if tried else None,
        "n_fooled": tried.n_fooled if tried else None,
        "n_attacks_unscored": tried.n_unscored if tried else None,
        "fooled_by": json.dumps(tried.fooled_by) if tried else None,
    }


def _no_cost(money: Accounting) -> str:
    return "no time was metered for it" if money.price else "the price table has no row for the device"
