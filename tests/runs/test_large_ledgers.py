"""Ledgers that are too large to be checked by every command: what is checked, when, and what is refused."""

import shutil
import sqlite3

import pytest

from local_bench.analysis.settlement import line_table
from local_bench.core.errors import LedgerDamaged, LedgerError
from local_bench.runs.acceptance import decide
from local_bench.runs.rundir import RunDir
from local_bench.runs.store import checked, constraints
from local_bench.runs.verify import verify
from local_bench.settle.settlement import settle
from tests.lines import lines
from tests.runs.random_run import decisions_by_row, random_run


def test_a_large_ledger_read_by_several_connections_gives_equal_results(tmp_path, monkeypatch):
    with random_run(tmp_path / "run", 3) as run:
        decide(run)
        expected, columns = run.store.decisions(), line_table(run.store)
        run.store.write("DELETE FROM decisions")
    monkeypatch.setattr("local_bench.runs.store.database._CHECKED_BYTES", 0)
    with RunDir.begin(tmp_path / "run", run.config) as run:
        decide(run)
        assert run.store.decisions() == expected
        assert str(line_table(run.store)) == str(columns)
        monkeypatch.setattr("local_bench.runs.store.columns._DIGITS_BY_CANDIDATES", {})
        assert str(line_table(run.store)) == str(columns)
        run.store.written.clear()
        decide(run)
        assert not run.store.written


@pytest.mark.parametrize("large", [False, True])
def test_decisions_computed_while_earlier_ones_are_written_are_those_of_single_rows(tmp_path, monkeypatch, large):
    """Some are stored already, some have changed, one is on no candidate, and one row is written at a time."""
    with random_run(tmp_path / "run", 8) as run:
        decide(run)
        if large:  # else it is not opened
            run.store.write("PRAGMA foreign_keys = OFF")
            run.store.write("INSERT INTO decisions VALUES ('0', 1, NULL, 5)")
        run.store.write("DELETE FROM decisions WHERE work_id LIKE '%3'")
        run.store.write("UPDATE decisions SET accepted = NULL, unscored = 'x' WHERE work_id LIKE '%5'")
    if large:
        monkeypatch.setattr("local_bench.runs.store.database._CHECKED_BYTES", 0)
    monkeypatch.setattr("local_bench.runs.store.columns._DIGITS_BY_CANDIDATES", {})
    monkeypatch.setattr("local_bench.runs.store.database._VALUES_AT_ONCE", 1)
    monkeypatch.setattr("local_bench.runs.store.database._CACHE_KIB", 8)
    with RunDir.begin(tmp_path / "run", run.config) as run:
        decide(run)
        assert [(row.work_id, row.decision) for row in run.store.decisions()] == list(decisions_by_row(run))
        assert settle(line_table(run.store), {}) == settle(lines(run.store), {})
        assert all(run.store.rows(f"PRAGMA {name}")[0][0] for name in ("foreign_keys", "cache_spill"))


def test_decisions_that_cannot_be_completed_are_not_stored(tmp_path, monkeypatch):
    monkeypatch.setattr("local_bench.runs.store.database._CHECKED_BYTES", 0)
    monkeypatch.setattr("local_bench.runs.store.columns._DIGITS_BY_CANDIDATES", {})
    with random_run(tmp_path / "run", 8) as run:
        run.store.write("PRAGMA foreign_keys = OFF")
        (lost,) = run.store.rows("SELECT task_id FROM candidates ORDER BY work_id DESC LIMIT 1")[0]
        run.store.write("DELETE FROM tasks WHERE task_id = ?", lost)
    with RunDir.begin(tmp_path / "run", run.config) as run:
        with pytest.raises(LedgerDamaged, match=f"a candidate of the task '{lost}'"):
            decide(run)
        assert run.store.decisions() == []
        with pytest.raises(sqlite3.IntegrityError):
            run.store.write("INSERT INTO decisions VALUES ('0', 1, NULL, 5)")


def test_results_are_kept_for_the_next_opening_of_a_large_ledger(tmp_path, monkeypatch):
    monkeypatch.setattr("local_bench.runs.store.database._CHECKED_BYTES", 0)
    path = tmp_path / "run"
    with random_run(path, 8):
        pass
    computed = []

    def result(run):
        return run.store.once("n", lambda: computed.append(1) or len(computed), ("decisions",))

    with RunDir.begin(path, RunDir.open(path).config) as run:
        decide(run)
        assert result(run) == 1
        run.store.set_meta("provenance", "{}")
    with RunDir.open(path) as run:
        assert result(run) == 1
        other = run.config.model_copy(update={"acceptance": run.config.acceptance.model_copy(update={"brf": 4.9})})
    with RunDir.view(path, other) as run:
        assert result(run) == 1
        run.store.write("DELETE FROM decisions")
        assert result(run) == 2
    with RunDir.open(path) as run:
        assert result(run) == 1
    db = sqlite3.connect(path / "ledger.sqlite")
    db.execute("DELETE FROM decisions")
    db.commit()
    db.close()
    with RunDir.open(path) as run:
        assert result(run) == 3


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
        assert settle(line_table(run.store), {}) == settle(lines(run.store), {})
        if large:
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


def test_a_large_ledger_is_checked_once_and_again_after_every_change(tmp_path, monkeypatch):
    monkeypatch.setattr("local_bench.runs.store.database._CHECKED_BYTES", 0)
    read = []
    fault = constraints._fault_of_rows
    monkeypatch.setattr(constraints, "_fault_of_rows", lambda db, table: read.append(table) or fault(db, table))
    path = tmp_path / "run"
    with random_run(path, 8) as run:
        decide(run)
    read.clear()
    for expected in (["candidates", "decisions", "scores", "tasks", "verdicts"], []):
        with RunDir.open(path):
            assert sorted(read) == expected  # first the tables that this process has written, then none
            read.clear()
    with RunDir.begin(path, RunDir.open(path).config) as run:
        run.store.write("UPDATE decisions SET price_micro_usd = -1")
    with pytest.raises(LedgerDamaged, match="'decisions' has values"):
        RunDir.open(path)
    assert read == ["decisions"]
    db = sqlite3.connect(path / "ledger.sqlite")
    db.execute("UPDATE decisions SET price_micro_usd = 1")
    db.commit()
    RunDir.open(path)
    db.execute("UPDATE candidates SET position = -1")
    db.commit()
    db.close()
    with pytest.raises(LedgerDamaged, match="'candidates' has values"):
        RunDir.open(path)


def test_what_was_checked_is_remembered_between_processes(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL_BENCH_CACHE", str(tmp_path / "cache"))
    read = []
    fault = constraints._fault_of_rows
    monkeypatch.setattr(constraints, "_fault_of_rows", lambda db, table: read.append(table) or fault(db, table))
    path = tmp_path / "run"

    def tables_read_by_another_process():
        checked._checked.clear()
        read.clear()
        RunDir.open(path).store.close()
        return set(read)

    with random_run(path, 8):
        pass
    monkeypatch.setattr("local_bench.runs.store.database._CHECKED_BYTES", 0)
    assert tables_read_by_another_process() == set(constraints.CONDITIONS)
    assert tables_read_by_another_process() == set()
    with RunDir.begin(path, RunDir.open(path).config) as run:
        decide(run)
    assert tables_read_by_another_process() == {"decisions"}
    assert tables_read_by_another_process() == set()
    data = (path / "ledger.sqlite").read_bytes()
    (path / "ledger.sqlite").write_bytes(data)
    assert tables_read_by_another_process() == set(constraints.CONDITIONS)
    (entry,) = (tmp_path / "cache" / "ledgers").iterdir()
    for text in ("[]", "{", '{"rules": "other"}', entry.read_text().replace('"rules": "', '"rules": "0')):
        entry.write_text(text)
        assert tables_read_by_another_process() == set(constraints.CONDITIONS)
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "cache").write_text("no folder")
    for _ in range(2):
        assert tables_read_by_another_process() == set(constraints.CONDITIONS)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("UPDATE candidates SET pixels_sha256 = upper(pixels_sha256)", "has values"),
        ("UPDATE candidates SET pixels_sha256 = substr(pixels_sha256, 2)", "has values"),
        ("UPDATE candidates SET deliverable = deliverable + 10", "not numbered from 1"),
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


def test_verify_checks_all_rows_of_a_ledger_that_seems_to_have_been_checked(tmp_path, monkeypatch):
    monkeypatch.setattr("local_bench.runs.store.database._CHECKED_BYTES", 0)
    path = tmp_path / "run"
    with random_run(path, 8):
        pass
    RunDir.open(path).store.close()
    state = checked.file_state(path / "ledger.sqlite")
    db = sqlite3.connect(path / "ledger.sqlite")
    db.execute("UPDATE tasks SET position = -1")
    db.commit()
    db.close()
    for module in ("checked", "database"):  # as if the file system had not noted the change
        monkeypatch.setattr(f"local_bench.runs.store.{module}.file_state", lambda path: state)
    with RunDir.open(path) as run:
        faults = [finding.fault for finding in verify(run) if finding.check == "database"]
    assert faults == ["the table 'tasks' has values that no release writes"]


@pytest.mark.parametrize(
    "content",
    ['{"source_sha256": 5}', '{"reference_sha256": 3}', '{"mask_sha256": [1]}', "[]", "1"],
)
def test_a_task_that_no_release_writes_is_refused_where_its_images_are_counted(tmp_path, content):
    with random_run(tmp_path / "run", 8) as run:
        run.store.write("UPDATE tasks SET content = json_patch(content, ?)", content)
        with pytest.raises(LedgerError, match="invalid"):
            run.store.input_digests()
