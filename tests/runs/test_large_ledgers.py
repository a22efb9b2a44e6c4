"""Ledgers that are too large to be checked by every command: what is checked, when, and what is refused."""

import sqlite3
from contextlib import closing

import pytest

from local_bench.analysis.settlement import deliverables
from local_bench.core.errors import LedgerDamaged, LedgerError
from local_bench.runs.rundir import RunDir
from local_bench.runs.scoring import decide
from local_bench.runs.verify import verify
from local_bench.settle.settlement import settle
from tests.lines import frame, lines
from tests.runs.random_run import decisions_by_row, random_run, stored_decisions


@pytest.mark.parametrize("large", [False, True])
def test_a_view_has_other_decisions_and_leaves_the_file_as_it_is(tmp_path, monkeypatch, large):
    path = tmp_path / "run"
    with random_run(path, 8) as run:
        decide(run)
        stored, config = run.store.frame("decisions"), run.config
    before = (path / "ledger.sqlite").read_bytes()
    if large:
        monkeypatch.setattr("local_bench.runs.store.database._CHECKED_BYTES", 0)
    lower = config.model_copy(update={"acceptance": config.acceptance.model_copy(update={"brf": 0.1, "veq": 0.1})})
    with RunDir.view(path, lower) as run:
        assert run.store.frame("decisions").equals(stored)
        decide(run)
        assert stored_decisions(run) == list(decisions_by_row(run))
        assert not run.store.frame("decisions").equals(stored)
        assert settle(deliverables(run.store), {}) == settle(frame(lines(run.store)), {})
        with pytest.raises(AssertionError):
            run.store.set_meta("planned", "2")
    assert (path / "ledger.sqlite").read_bytes() == before


def test_a_large_damaged_ledger_is_opened_and_verify_reports_the_damage(tmp_path, monkeypatch):
    """A small one is refused when it is opened."""
    with random_run(tmp_path / "run", 0):
        pass
    ledger = tmp_path / "run" / "ledger.sqlite"
    data = bytearray(ledger.read_bytes())
    page = ledger.read_bytes().index(b"brf") // 4096 * 4096
    data[page : page + 8] = b"\xff" * 8
    ledger.write_bytes(data)
    with pytest.raises(LedgerDamaged):
        RunDir.open(tmp_path / "run")
    monkeypatch.setattr("local_bench.runs.store.database._CHECKED_BYTES", 0)
    with RunDir.open(tmp_path / "run") as run:
        assert any(finding.check == "database" for finding in verify(run))


def edited(path, *statements):
    """A run whose ledger another program changed."""
    with random_run(path, 4):
        pass
    with closing(sqlite3.connect(path / "ledger.sqlite", isolation_level=None)) as db:
        for statement in statements:
            db.execute(statement)
    return path


@pytest.mark.parametrize("value", ["upper(pixels_sha256)", "substr(pixels_sha256, 2)", "'../../secret'"])
def test_a_candidate_that_no_release_writes_is_refused(tmp_path, value):
    sentence = r"damaged or forged \(the table 'candidates' has values that no release writes\)"
    with pytest.raises(LedgerDamaged, match=sentence):
        RunDir.open(edited(tmp_path / "run", f"UPDATE candidates SET pixels_sha256 = {value}"))


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        (",\n  UNIQUE (task_id, deliverable, model, attempt)", "", "'candidates' has other columns, types or keys"),
        ("model TEXT", "model TEXT COLLATE NOCASE", "'candidates' compares texts in another way"),
    ],
)
def test_a_ledger_with_other_definitions_is_refused(tmp_path, before, after, fault):
    with random_run(tmp_path / "template", 4) as run:
        sql = run.store.rows("SELECT sql FROM sqlite_master WHERE name = 'candidates'")[0]["sql"]
    assert before in sql
    path = edited(
        tmp_path / "run",
        *("PRAGMA foreign_keys = OFF", "PRAGMA legacy_alter_table = ON", "ALTER TABLE candidates RENAME TO c"),
        *(sql.replace(before, after), "INSERT INTO candidates SELECT * FROM c", "DROP TABLE c"),
    )
    with pytest.raises(LedgerDamaged, match=fault):
        RunDir.open(path)


def test_a_task_that_no_release_writes_is_refused_where_its_images_are_counted(tmp_path):
    with random_run(tmp_path / "run", 8) as run:
        whole = run.store.rows("SELECT content FROM tasks")[0]["content"]
        for content in ('{"source_sha256": 5}', '{"reference_sha256": 3}', '{"mask_sha256": [1]}', "[]", "1"):
            run.store.write("UPDATE tasks SET content = json_patch(?, ?)", whole, content)
            with pytest.raises(LedgerError, match="invalid"):
                run.store.input_digests()


@pytest.mark.parametrize("change", ["UPDATE tasks SET task_id = '../x'", "UPDATE candidates SET task_id = 'lost'"])
def test_names_and_tasks_of_a_large_ledger_are_checked(tmp_path, monkeypatch, change):
    """A candidate of no task would be left out of every frame of outcomes."""
    path = edited(tmp_path / "run", f"{change} WHERE rowid = 1")
    monkeypatch.setattr("local_bench.runs.store.database._CHECKED_BYTES", 0)
    with pytest.raises(LedgerDamaged, match="forged"):
        RunDir.open(path)
