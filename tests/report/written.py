"""A report as it was written: its texts, and the cells of its tables by title."""

import json
import re
from typing import Any

import pytest

from local_bench.analysis.ground_truth import check_ground_truth
from local_bench.analysis.settlement import accounting
from local_bench.report.sections import sections
from local_bench.report.site.build import write_report
from local_bench.runs.rundir import RunDir


class Report:
    def __init__(self, folder):
        self.html = (folder / "index.html").read_text("utf-8")
        self.raw = "".join(path.read_text("utf-8") for path in sorted((folder / "data").iterdir()))
        self.data: dict[str, Any] = {
            name: json.loads(text) for name, text in re.findall(r'^LB\("([^"]*)",(.*)\);$', self.raw, re.M)
        }
        summary, sections = self.data["summary"], self.data["0-sections"]
        written = [summary["about"], *(table for part in (*summary["overview"], *sections) for table in part["tables"])]
        self.headings = {table["title"]: [name for name, *_ in table["columns"]] for table in written}
        self.tables = {table["title"]: [list(map(cell, row)) for row in table["rows"]] for table in written}
        self.sections = [section["name"] for section in sections]
        self.warnings: list[str] = summary["warnings"]
        self.text = " ".join(texts(self.data))

    def rows(self, title, *columns):
        """Some columns of a table."""
        at = [self.headings[title].index(column) for column in columns]
        return [[row[i] for i in at] for row in self.tables[title]]

    def candidate(self, task, model):
        """What a task's page has of a model's first image."""
        columns, run = self.data["0-candidates-0"], self.data["summary"]["runs"][0]
        ids = [
            work_id
            for work_id, m, t in zip(columns["id"], columns["model"], columns["task"], strict=True)
            if run["models"][m] == model and self.data["0-tasks"]["id"][t] == task
        ]
        (first,) = (one for one in self.data["0-tasks-0"][task]["candidates"] if one["id"] == ids[0])
        return dict(first)


def section_rows(run, name):
    """The values of a section's tables by title, as rows by the columns' keys."""
    found = sections(run, accounting(run.store, run.config.settlement), check_ground_truth(run))
    return {
        table.title: [dict(zip(table.keys, row, strict=True)) for row in table.rows]
        for section in found
        if section.name == name
        for table in section.tables
    }


def cell(value):
    """Text and small print."""
    return value if isinstance(value, str) else " ".join(filter(None, (value["t"], value.get("s"))))


def texts(value):
    if isinstance(value, dict):
        return [text for pair in value.items() for text in texts(list(pair))]
    return [text for one in value for text in texts(one)] if isinstance(value, list) else [str(value)]


def change(path, *statements):
    with RunDir.open(path) as run:
        for statement in statements:
            run.store.write(statement)
    return path


def report(path):
    """Without its figures: those are drawn for the tests of the site and of the figures."""
    with RunDir.open(path) as run, pytest.MonkeyPatch.context() as patch:
        patch.setattr("local_bench.report.site.build.write_figures", lambda *_: [])
        assert write_report(run) == path / "report" / "index.html"
    return Report(path / "report")
