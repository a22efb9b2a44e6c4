"""Ledgers that are too large to be checked by every command: what is checked, when, and what is refused."""

import sqlite3

import pytest

from local_bench.analysis.settlement import deliverables
from local_bench.core.errors import LedgerDamaged, LedgerError
from local_bench.runs.acceptance import decide
from local_bench.runs.rundir import RunDir
from local_bench.runs.verify import verify
from local_bench.settle.settlement import settle
from tests.lines import frame, lines
from tests.runs.random_run import decisions_by_row, random_run


@pytest.mark.parametrize("large", [False, True])
def test_a_view_has_other_decisions_and_leaves_the_file_as_it_is(tmp_path, monkeypatch, large):
    path = tmp_path / "run"
    with random_run(path, 8) as run:
        decide(run)
        stored, config = run.store.decisions(), run.config
    before = (path / "ledger.sqlite").read_bytes()
    if large:
        monkeypatch.setattr("local_bench.runs.store.database._CHECKED_BYTES", 0)
    lower = config.model_copy(update={"acceptance": config.acceptance.model_copy(update={"brf": 0.1, "veq": 0.1})})
    with RunDir.view(path, lower) as run:
        assert run.store.decisions() == stored
        decide(run)
        assert [(row.work_id, row.decision) for row in run.store.decisions()] == list(decisions_by_row(run))
        assert run.store.decisions() != stored
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


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("UPDATE candidates SET pixels_sha256 = upper(pixels_sha256)", "has values"),
        ("UPDATE candidates SET pixels_sha256 = substr(pixels_sha256, 2)", "has values"),
    ],
)
def test_a_candidate_that_no_release_writes_is_refused(tmp_path, change, fault):
    path = tmp_path / "run"
    with random_run(path, 4):
        pass
    db = sqlite3.connect(path / "ledger.sqlite")
    db.execute(change)
    db.commit()
    db.close()
    with pytest.raises(LedgerDamaged, match=fault):
        RunDir.open(path)


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        (",\n  UNIQUE (task_id, deliverable, model, attempt)", "", "'candidates' has other columns, types or keys"),
        ("model TEXT", "model TEXT COLLATE NOCASE", "'candidates' compares texts in another way"),
    ],
)
def test_a_ledger_with_other_definitions_is_refused(tmp_path, before, after, fault):
    path = tmp_path / "run"
    with random_run(path, 4):
        pass
    db = sqlite3.connect(path / "ledger.sqlite")
    sql = db.execute("SELECT sql FROM sqlite_master WHERE name = 'candidates'").fetchone()[0]
    assert before in sql
    db.execute("PRAGMA foreign_keys = OFF")
    db.execute("PRAGMA legacy_alter_table = ON")
    db.execute("ALTER TABLE candidates RENAME TO c")
    db.execute(sql.replace(before, after))
    db.execute("INSERT INTO candidates SELECT * FROM c")
    db.execute("DROP TABLE c")
    db.commit()
    db.close()
    with pytest.raises(LedgerDamaged, match=fault):
        RunDir.open(path)


@pytest.mark.parametrize(
    "content", ['{"source_sha256": 5}', '{"reference_sha256": 3}', '{"mask_sha256": [1]}', "[]", "1"]
)
def test_a_task_that_no_release_writes_is_refused_where_its_images_are_counted(tmp_path, content):
    with random_run(tmp_path / "run", 8) as run:
        run.store.write("UPDATE tasks SET content = json_patch(content, ?)", content)
        with pytest.raises(LedgerError, match="invalid"):
            run.store.input_digests()


@pytest.mark.parametrize("change", ["UPDATE tasks SET task_id = '../x'", "UPDATE candidates SET task_id = 'lost'"])
def test_names_and_tasks_of_a_large_ledger_are_checked(tmp_path, monkeypatch, change):
    """A candidate of no task would be left out of every frame of outcomes."""
    with random_run(tmp_path / "run", 0):
        pass
    db = sqlite3.connect(tmp_path / "run" / "ledger.sqlite")
    db.execute(f"{change} WHERE rowid = 1")
    db.commit()
    db.close()
    monkeypatch.setattr("local_bench.runs.store.database._CHECKED_BYTES", 0)
    with pytest.raises(LedgerDamaged, match="forged"):
        RunDir.open(tmp_path / "run")
