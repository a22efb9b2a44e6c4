"""The run's tables as CSV and Parquet, for further analysis; their columns with types and descriptions."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from decimal import Decimal
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from local_bench.analysis.agreement import judge_labels
from local_bench.analysis.economics import GenerationStats, candidate_table, generation_stats, prompt_truncations
from local_bench.analysis.loading import settlement_rows
from local_bench.analysis.official import derived
from local_bench.analysis.settlement import Accounting, accounting
from local_bench.core.errors import LedgerError
from local_bench.core.files import atomic_file
from local_bench.core.money import MICRO
from local_bench.core.table import FORMULA
from local_bench.report.judging import Judge, judges
from local_bench.report.settlement import economics_json
from local_bench.report.view import model_order
from local_bench.runs.rundir import RunDir
from local_bench.runs.store import plain

_BYTES_AT_ONCE = 64_000_000


def write_exports(run: RunDir, money: Accounting | None = None) -> list[Path]:
    """Write every table to `<run>/exports/`, as CSV and as Parquet, and return the paths. `money` is the run's
    accounting, if it is computed already.

    Rows are in the order of identities, so equal ledgers give equal files. LedgerError if the ledger has values that
    do not fit, ConfigError if the price table lacks the config's row, StorageError if writing fails.
    """
    money = money or accounting(run.store, run.config.settlement)
    scenarios = economics_json(run, money) or {}
    small: dict[str, tuple[Any, Iterable[Mapping[str, Any]]]] = {
        "settlement": (SETTLEMENT, sorted(settlement_rows(run, money), key=itemgetter("model"))),
        "costs": (COSTS, _costs(money)),
        "making": (MAKING, map(_making, generation_stats(run.store, money, model_order(run)))),
        "judges": (JUDGES, map(_judge, judges(run))),
        "cuts": (CUTS, prompt_truncations(run.store)),
        "competition": (COMPETITION, map(_placed, scenarios.get("competition", {}).items())),
        "cost_reduction": (COST_REDUCTION, [{"model": m} | r for m, r in scenarios.get("cost_reduction", {}).items()]),
        "break_even": (BREAK_EVEN, scenarios.get("break_even", ())),
    }
    schemas = {"candidates": CANDIDATES, "verdicts": VERDICTS, "scores": SCORES}
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
            tasks = run.store.tasks({*candidates["task_id"]} - titles.keys())
            titles |= {task.task_id: task.title.encode(errors="replace").decode() for task in tasks}
            tables["candidates"].add({**candidates, "title": [titles[task_id] for task_id in candidates["task_id"]]})
            images = candidates[["work_id", "model", "task_id", "category", "deliverable", "attempt"]]
            verdicts = plain(run.store.frame("verdicts", (), *run.store.counted(*where)).merge(images, on="work_id"))
            named = [labels.get(judge, judge) for judge in verdicts["judge"]]
            tables["verdicts"].add({**verdicts, "judge": named, "judge_id": verdicts["judge"]})
            tables["scores"].add(plain(run.store.frame("scores", (), *where).merge(images, on="work_id")))
        if run.config.suite.questions_from:
            tables["scores"].add(derived(run))
        for name, (schema, rows) in small.items():
            listed = list(rows)
            sources = {_source(field) for field in schema}
            tables[name].add({source: [row[source] for row in listed] for source in sources})
    return paths


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
        self._parquet.write_table(table)
        # In CSV, text that a spreadsheet would run as a formula begins with `'`.
        for i, field in enumerate(table.schema):
            if pa.types.is_string(field.type):
                text = table.column(i)
                guarded = pc.binary_join_element_wise("'", text, "")
                table = table.set_column(i, field, pc.if_else(pc.match_substring_regex(text, FORMULA), guarded, text))
        self._csv.write_table(table)


def _source(field: Any) -> str:
    """The name of the values from which a column is computed."""
    return str(field.name).replace("_usd", "_micro_usd") if field.type == USD else str(field.name)


def _values(field: Any, values: Sequence[Any]) -> Sequence[Any]:
    if field.type == USD:
        return [None if value is None else _usd(value) for value in values]
    return [None if value is None else bool(value) for value in values] if field.type == YES_NO else values


@lru_cache(100_000)
def _usd(micro_usd: int) -> Decimal:
    return Decimal(micro_usd) / MICRO


def _placed(of_model: tuple[str, Mapping[str, Any]]) -> dict[str, Any]:
    model, row = of_model
    ends = {f"revenue_bound_{end}_usd": row[f"revenue_{end}_usd"] for end in ("low", "high")}
    return {"model": model, **row, **ends}


def _costs(money: Accounting) -> Iterator[dict[str, Any]]:
    price = money.price
    for row in money.costs:
        yield vars(row) | {
            "cost_micro_usd": row.cost_micro_usd if price else None,
            "cost_unscored": None if price else money.no_cost,
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
    named = {n: getattr(part, n) for part in (m.timing, m) for n in MAKING.names if hasattr(part, n)}
    return named | texts | timing | {"no_floor": no_floor}


def _judge(judge: Judge) -> dict[str, Any]:
    row = dict.fromkeys(JUDGES.names) | judge.model_dump(include=set(JUDGES.names) - {"fooled_by"})
    if tried := judge.attacks:
        row |= {"n_attacks": tried.n, "n_fooled": tried.n_fooled, "n_attacks_unscored": tried.n_unscored}
        row["fooled_by"] = json.dumps(tried.fooled_by)
    return row


TEXT, INT, REAL, YES_NO = pa.string(), pa.int64(), pa.float64(), pa.bool_()
USD = pa.decimal128(19, 6)
"""US dollars, exact to the micro-dollar; every 64-bit number of micro-dollars fits."""
MEAN_USD = pa.decimal128(38, 18)
"""US dollars as a mean, which is no whole number of micro-dollars."""


def schema(**columns: Any) -> Any:
    """A pyarrow schema; every `<name>_micro_usd` column is followed by the same amount as `<name>_usd`, if that is not
    a column of its own."""
    fields = []
    for name, kind in columns.items():
        fields.append(pa.field(name, kind))
        if name.endswith("_micro_usd") and name.replace("_micro_usd", "_usd") not in columns:
            fields.append(pa.field(name.replace("_micro_usd", "_usd"), USD))
    return pa.schema(fields)


_WORK = {"work_id": TEXT, "model": TEXT, "task_id": TEXT, "category": TEXT, "deliverable": INT, "attempt": INT}

CANDIDATES = schema(
    **_WORK, title=TEXT, prompt=TEXT, seed=INT, height=INT, width=INT, state=TEXT, unscored=TEXT, identity=TEXT,
    pixels_sha256=TEXT, accepted=YES_NO, decision_unscored=TEXT, price_micro_usd=INT, work=TEXT, batch_size=INT,
    truncated=TEXT, cost_micro_usd=INT, cost_usd=MEAN_USD, task_price_micro_usd=INT, image=TEXT, without_inputs=YES_NO,
)  # fmt: skip
"""`price` is the deliverable's part of `task_price`; `cost_micro_usd` is stated for imported images, `cost_usd` is also
the model's mean metered cost per image; `image` is relative to the run directory; `without_inputs`: the model does not
take all of the task's input images."""
VERDICTS = schema(
    **_WORK, rubric=TEXT, point=INT, repeat=INT, answer=TEXT, labels=TEXT, unscored=TEXT, raw=TEXT, question_id=TEXT,
    rubric_sha256=TEXT, judge=TEXT, judge_id=TEXT,
)  # fmt: skip
"""`judge` is the judge's name, `judge_id` its id in the ledger and in `judges`."""
SCORES = schema(**_WORK, name=TEXT, kind=TEXT, value=REAL, unscored=TEXT, applies=YES_NO, spread=REAL)
SETTLEMENT = schema(
    model=TEXT, scope=TEXT, category=TEXT, value_micro_usd=INT, revenue_micro_usd=INT,
    revenue_ci95_low_micro_usd=INT, revenue_ci95_high_micro_usd=INT, revenue_bound_low_micro_usd=INT,
    revenue_bound_high_micro_usd=INT, open_micro_usd=INT, share=REAL, coverage=REAL, n_tasks=INT, n_tasks_accepted=INT,
    n_tasks_unscored=INT, task_acceptance=REAL, n=INT, n_accepted=INT, n_unscored=INT, deliverable_acceptance=REAL,
    deliverable_acceptance_ci95_low=REAL, deliverable_acceptance_ci95_high=REAL, whole_micro_usd=INT,
    n_tasks_decided=INT, cost_micro_usd=INT, profit_micro_usd=INT, cost_unscored=TEXT, n_without_inputs=INT,
)  # fmt: skip
"""By `scope`: all tasks (`run`), those of a category, those that all models support (`supported_by_all`). `ci95` are
the ends of the 95 % interval for tasks like these, `bound` what unscored images could change."""
COSTS = schema(
    phase=TEXT, model=TEXT, held_ns=INT, n_items=INT, energy_mj=INT, cost_micro_usd=INT, cost_unscored=TEXT, gpu=TEXT,
    price_level=TEXT, hour_micro_usd=INT, price_source=TEXT, price_date=TEXT,
)  # fmt: skip
MAKING = schema(
    model=TEXT, imported=YES_NO, n_images=INT, n_made=INT, batch_sizes=TEXT, sizes=TEXT, held_ns=INT, busy_ns=INT,
    s_per_image=REAL, images_per_gpu_hour=REAL, image_micro_usd=INT, marginal_image_micro_usd=INT, wh_per_image=REAL,
    marginal_wh_per_image=REAL, flop_per_image=REAL, floor_s_per_image=REAL, mfu=REAL, no_floor=TEXT,
)  # fmt: skip
"""One row per system. `busy` and the marginal values include denoising and decoding only; `mfu` is a fraction."""
JUDGES = schema(
    judge_id=TEXT, name=TEXT, card=TEXT, protocol=TEXT, transport=TEXT, reproducible=YES_NO, n_attacks=INT,
    n_fooled=INT, n_attacks_unscored=INT, fooled_by=TEXT,
)  # fmt: skip
"""One row per judge; null for tests that were not run; `fooled_by` is a JSON list."""
CUTS = schema(model=TEXT, encoder=TEXT, n_prompts=INT, n_cut=INT, most_tokens=INT)

COMPETITION = schema(
    model=TEXT, rank=INT, revenue_usd=REAL, revenue_bound_low_usd=REAL, revenue_bound_high_usd=REAL, n_won=INT,
    n_shared=INT,
)  # fmt: skip
"""ServImage's table 3: one row per model, by rank."""
_SAVED = ("cost_usd", "cost_savings", "cost_savings_high", "contribution_ratio", "contribution_ratio_high")
COST_REDUCTION = schema(
    model=TEXT, model_contribution=REAL, model_contribution_high=REAL,
    **dict.fromkeys(_SAVED, REAL), **dict.fromkeys((f"api_{name}" for name in _SAVED), REAL),
)  # fmt: skip
"""ServImage's table 7 with the metered cost, and with an API's price if the config has one."""
BREAK_EVEN = schema(
    model=TEXT, api=TEXT, api_usd_per_image=REAL, usd_per_image=REAL, marginal_usd_per_image=REAL,
    break_even_usd_per_hour=REAL, break_even_usd_per_hour_endless=REAL, break_even_images=INT,
)  # fmt: skip
"""One row per timed model and API."""
