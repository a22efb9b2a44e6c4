"""The run's tables as CSV and Parquet, for further analysis."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from local_bench.analysis.agreement import judge_labels
from local_bench.analysis.candidate_table import candidate_table
from local_bench.analysis.economics import economics_of
from local_bench.analysis.official import derived
from local_bench.analysis.performance import GenerationStats, generation_stats, prompt_truncations
from local_bench.analysis.settlement import Accounting, accounting
from local_bench.analysis.unseen_inputs import unseen_inputs
from local_bench.core.errors import LedgerError
from local_bench.core.files import atomic_file
from local_bench.core.money import MICRO
from local_bench.core.table import FORMULA
from local_bench.report import columns
from local_bench.report.judging import Judge, judges
from local_bench.report.scenarios import break_even_rows, competition_rows, cost_reduction_rows
from local_bench.report.view import model_order
from local_bench.runs.rundir import RunDir
from local_bench.runs.store import plain
from local_bench.settle.settlement import Settlement, Total

_BYTES_AT_ONCE = 64_000_000


def write_exports(run: RunDir, money: Accounting | None = None) -> list[Path]:
    """Write every table to `<run>/exports/`, as CSV and as Parquet, and return the paths. `money` is the run's
    accounting, if it is computed already.

    Rows are in the order of identities, so equal ledgers give equal files. LedgerError if the ledger has values that
    do not fit, ConfigError if the price table lacks the config's row, StorageError if writing fails.
    """
    money = money or accounting(run.store, run.config.settlement)
    scenarios = economics_of(run, money)
    small: dict[str, tuple[Any, Iterable[Mapping[str, Any]]]] = {
        "settlement": (columns.SETTLEMENT, _settlement(run, money)),
        "costs": (columns.COSTS, _costs(money)),
        "making": (columns.MAKING, map(_making, generation_stats(run.store, money, model_order(run)))),
        "judges": (columns.JUDGES, map(_judge, judges(run))),
        "cuts": (columns.CUTS, map(vars, prompt_truncations(run.store))),
        "competition": (columns.COMPETITION, map(_placed, competition_rows(scenarios)) if scenarios else ()),
        "cost_reduction": (columns.COST_REDUCTION, cost_reduction_rows(scenarios) if scenarios else ()),
        "break_even": (columns.BREAK_EVEN, break_even_rows(scenarios) if scenarios else ()),
    }
    schemas = {"candidates": columns.CANDIDATES, "verdicts": columns.VERDICTS, "scores": columns.SCORES}
    schemas |= {name: schema for name, (schema, _) in small.items()}
    paths = []
    with ExitStack() as replaced, ExitStack() as opened:  # files replace earlier ones after all have been written
        tables = {}
        for name, schema in schemas.items():
            of_table = [run.path / "exports" / f"{name}.{ending}" for ending in ("csv", "parquet")]
            files = [replaced.enter_context(atomic_file(path)) for path in of_table]
            tables[name] = opened.enter_context(closing(TableWriter(name, schema, *files)))
            paths += of_table
        titles: dict[str, str] = {}
        labels = judge_labels(run)
        for first in "0123456789abcdef":
            where = "work_id GLOB ?", f"{first}*"
            candidates = plain(candidate_table(run, money, *where))
            tables["candidates"].add({**candidates, "title": _titles(run, candidates["task_id"], titles)})
            images = candidates[["work_id", "model", "task_id", "category", "deliverable", "attempt"]]
            verdicts = plain(run.store.frame("verdicts", (), *run.store.counted(*where)).merge(images, on="work_id"))
            named = [labels.get(judge, judge) for judge in verdicts["judge"]]
            tables["verdicts"].add({**verdicts, "judge": named, "judge_id": verdicts["judge"]})
            tables["scores"].add(plain(run.store.frame("scores", (), *where).merge(images, on="work_id")))
        small["scores"] = (columns.SCORES, _derived(run))
        for name, (schema, rows) in small.items():
            listed = list(rows)
            sources = {_source(field) for field in schema}
            tables[name].add({source: [row[source] for row in listed] for source in sources})
    return paths


def _derived(run: RunDir) -> Iterator[dict[str, Any]]:
    """The scores that follow from an image's other scores, after those."""
    scores = derived(run)
    images = {row.candidate.work_id: row for row in run.store.outcomes()} if scores else {}
    for work_id, score in scores:
        candidate = vars(images[work_id].candidate) | {"category": images[work_id].category}
        yield candidate | vars(score) | {"kind": "benchmark"}


class TableWriter:
    """Writes a table as CSV and as Parquet, in parts, so that memory does not grow with its rows."""

    def __init__(self, name: str, schema: Any, csv: BinaryIO, parquet: BinaryIO) -> None:
        self._name, self._schema, self._files = name, schema, (csv, parquet)
        self._csv = pyarrow.csv.CSVWriter(csv, schema)
        self._parquet = pq.ParquetWriter(parquet, schema, compression="zstd")
        self._parts, self._n_bytes = [schema.empty_table()], 0

    def add(self, values: Mapping[str, Sequence[Any]]) -> None:
        """Add rows, as columns by name; dollars follow from micro-dollars. LedgerError if a value does not fit."""
        try:
            arrays = [pa.array(_values(field, values[_source(field)]), field.type) for field in self._schema]
            self._parts.append(pa.Table.from_arrays(arrays, schema=self._schema))
            self._n_bytes += self._parts[-1].nbytes
        except (pa.ArrowException, TypeError, ValueError) as e:
            raise LedgerError(
                f"the ledger's {self._name} contain a value that does not fit ({e}): repeat the run"
            ) from e
        if self._n_bytes > _BYTES_AT_ONCE:
            self._write()
            self._parts, self._n_bytes = [], 0

    def close(self) -> None:
        """Write the remaining rows. The files stay open."""
        try:
            if self._parts:
                self._write()
            self._csv.close()
            self._parquet.close()
            for file in self._files:
                file.flush()
        finally:
            self._parquet.is_open = False  # else its destructor tries again, and prints a traceback

    def _write(self) -> None:
        table = pa.concat_tables(self._parts).combine_chunks()
        self._csv.write_table(_guarded(table))
        self._parquet.write_table(table)


def _guarded(table: Any) -> Any:
    """A pyarrow table for CSV: text that a spreadsheet would run as a formula begins with `'`."""
    for i, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            text = table.column(i)
            guarded = pc.binary_join_element_wise("'", text, "")
            table = table.set_column(i, field, pc.if_else(pc.match_substring_regex(text, FORMULA), guarded, text))
    return table


def _source(field: Any) -> str:
    """The name of the values from which a column is computed."""
    return str(field.name).replace("_usd", "_micro_usd") if field.type == columns.USD else str(field.name)


def _values(field: Any, values: Sequence[Any]) -> Sequence[Any]:
    if field.type == columns.USD:
        return [None if value is None else _usd(value) for value in values]
    return [None if value is None else bool(value) for value in values] if field.type == columns.YES_NO else values


@lru_cache(100_000)
def _usd(micro_usd: int) -> Decimal:
    return Decimal(micro_usd) / MICRO


def _titles(run: RunDir, task_ids: Sequence[str], titles: dict[str, str]) -> list[str]:
    """The titles of tasks; `titles` are those that have been read already."""
    for task in run.store.tasks_of(list(dict.fromkeys(task_id for task_id in task_ids if task_id not in titles))):
        titles[task.task_id] = task.title.encode(errors="replace").decode()
    return [titles[task_id] for task_id in task_ids]


def _settlement(run: RunDir, money: Accounting) -> Iterator[dict[str, Any]]:
    imported = {m.label for m in run.config.models if m.imported is not None}
    unseen, n_made = unseen_inputs(run), run.store.n_candidates(made=True)
    common = {s.model: s for s in unseen.common}
    for s in sorted(money.settlements, key=lambda s: s.model):
        without = "the cost of its images is not stated" if s.model in n_made else "no image of it was imported"
        reason = None if s.cost_micro_usd is not None else without if s.model in imported else _no_cost(money)
        costs = {"cost_micro_usd": s.cost_micro_usd, "profit_micro_usd": s.profit_micro_usd, "cost_unscored": reason}
        n = unseen.n_images.get(s.model, 0)
        yield _total(s, s.total) | {"scope": "run", "category": "all", "n_without_inputs": n} | costs
        costs = {"cost_micro_usd": None, "profit_micro_usd": None, "cost_unscored": "costs are counted by model"}
        costs |= {"n_without_inputs": None}
        if s.model in common:
            total = common[s.model].total
            yield _total(s, total) | costs | {"scope": "supported_by_all", "category": "all", "n_without_inputs": 0}
        for category, total in sorted(s.by_category.items()):
            yield _total(s, total) | {"scope": "category", "category": category} | costs


def _total(settlement: Settlement, total: Total) -> dict[str, Any]:
    low, high = total.revenue_interval_micro_usd or (None, None)
    bounds = total.bounds_micro_usd
    ends = {"revenue_ci95_low_micro_usd": low, "revenue_ci95_high_micro_usd": high}
    ends |= {"revenue_bound_low_micro_usd": bounds[0], "revenue_bound_high_micro_usd": bounds[1]}
    rates = {
        "deliverable_acceptance_ci95_low": total.deliverable_acceptance_low,
        "deliverable_acceptance_ci95_high": total.deliverable_acceptance_high,
    }
    return {"model": settlement.model} | _named(columns.SETTLEMENT, total) | ends | rates


def _placed(row: Mapping[str, Any]) -> dict[str, Any]:
    ends = {f"revenue_bound_{end}_usd": row[f"revenue_{end}_usd"] for end in ("low", "high")}
    return {**row, **ends}


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
    sizes = {f"{width}x{height}": n for (height, width), n in m.sizes.items()}
    texts = {"batch_sizes": json.dumps(m.batch_sizes), "sizes": json.dumps(sizes)}
    timing = {"s_per_image": m.timing.seconds_per_image, "mfu": m.timing.utilisation}
    no_floor = "made elsewhere" if m.imported else m.timing.no_floor
    return _named(columns.MAKING, m, m.timing) | texts | timing | {"no_floor": no_floor}


def _named(schema: Any, *parts: Any) -> dict[str, Any]:
    """The attributes with the names of columns, of the first part that has each."""
    return {n: getattr(part, n) for part in reversed(parts) for n in schema.names if hasattr(part, n)}


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
