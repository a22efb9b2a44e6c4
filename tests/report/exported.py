"""Compares a run's exported tables with the data frames of `load_run`."""

import json

import pandas as pd
import pytest

from local_bench.analysis.loading import load_run
from local_bench.report.exports import write_exports
from local_bench.runs.rundir import RunDir

KEYS = {
    "candidates": ["work_id"],
    "scores": ["work_id", "name"],
    "verdicts": ["work_id", "judge", "rubric", "point", "repeat"],
    "settlement": ["model"],
}
LISTS = ("answer", "labels")


def assert_exports_are_those_of_load_run(path):
    """Every column of every frame of `load_run` is in the CSV and in the Parquet file of its name, with the same
    values."""
    with RunDir.open(path) as run:
        write_exports(run)
    with load_run(path) as loaded:
        for name, keys in KEYS.items():
            frame: pd.DataFrame = getattr(loaded, name)()
            file = path / "exports" / name
            texts = {column: str for column in frame if frame[column].dtype == object and column != "price_usd"}
            tables = {
                ".csv": pd.read_csv(file.with_suffix(".csv"), keep_default_na=False, na_values=[""], dtype=texts),
                ".parquet": pd.read_parquet(file.with_suffix(".parquet")),
            }
            for ending, table in tables.items():
                rows = table[table["scope"] == "run"] if name == "settlement" else table
                assert len(rows) == len(frame), (name, ending)
                ours = frame.sort_values(keys).reset_index(drop=True)
                theirs = rows.sort_values(keys).reset_index(drop=True)
                for column in ours:
                    left = [_plain(value, column, path) for value in ours[column]]
                    right = [_plain(value, column, path) for value in theirs[column]]
                    equal = pytest.approx(left, rel=1e-12, nan_ok=True) if _numbers(left) else left
                    assert right == equal, (name, ending, column)


def _numbers(values):
    return all(isinstance(value, float) for value in values)


def _plain(value, column, path):
    if column in LISTS and isinstance(value, dict):
        return value
    if pd.isna(value):
        return None
    if column in LISTS:
        return json.loads(value.removeprefix("'"))
    if column == "image":
        return str(path / value)
    if isinstance(value, str) and value in ("True", "False", "true", "false"):
        return value.lower() == "true"
    if isinstance(value, str):
        return value.removeprefix("'")
    return value if isinstance(value, bool) else float(value)
