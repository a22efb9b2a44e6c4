"""A damaged ledger: every command refuses it, its backup is unchanged, and `recover` restores the backup."""

import os
import shutil
import signal
import sqlite3

import pytest

from local_bench.analysis.digest import digests
from local_bench.cli.main import main
from local_bench.core.errors import LedgerDamaged, LedgerError, StorageError, UserError
from local_bench.runs.config import ModelConfig, RunConfig
from local_bench.runs.rundir import RunDir, read_run_config, recover
from local_bench.runs.store import Store
from local_bench.runs.store import store as stores
from tests.stages import run_stages

from . import two_orders

CONFIG = """
name: t
suite: {name: servimage, path: orders.jsonl}
models:
  - {card: imported, name: theirs, imported: {images: images}}
  - {card: imported, name: nothing, imported: {images: empty}}
metrics: [entropy]
engine: {device: cpu}
"""


def empty(store):
    store.write_bytes(b"")


def missing(store):
    store.unlink()


def truncated(store):
    os.truncate(store, store.stat().st_size // 2)


def no_database(store):
    store.write_bytes(b"no database, but long enough to hold a header of one hundred bytes" * 20)


def after(statement):
    def damage(store):
        with sqlite3.connect(store) as db:
            db.execute(statement)

    return damage


DAMAGES = {"empty": empty, "missing": missing, "truncated": truncated, "no database": no_database} | {
    "table missing": after("DROP TABLE decisions"),
    "column missing": after("ALTER TABLE verdicts DROP COLUMN labels"),
    "version missing": after("DELETE FROM meta WHERE key = 'version'"),
}
every_damage = pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    """Two orders of two images each; one model delivered all of them, another nothing."""
    folder = tmp_path_factory.mktemp("finished")
    two_orders(folder, "It is red")
    (folder / "empty").mkdir()
    (folder / "run.yaml").write_text(CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["generate", str(folder / "run.yaml"), "--run-dir", str(folder / "run")]) == 0
        assert main(["measure", str(folder / "run")]) == 0
        assert main(["settle", str(folder / "run")]) == 0
        with RunDir.open(folder / "run") as run:
            run.store.backup()
            assert run.store.committed() == (8, 0, 0, 4)
        yield folder


@pytest.fixture
def run_dir(finished_run, tmp_path):
    return shutil.copytree(finished_run / "run", tmp_path / "run")


def commands(finished_run, run_dir):
    config, run = str(finished_run / "run.yaml"), str(run_dir)
    for name in ("run", "generate", "measure", "judge", "settle"):
        yield [name, config, "--run-dir", run]
    for name in ("generate", "measure", "judge", "settle", "report", "digest", "agreement", "verify"):
        yield [name, run]
    yield from (["compare", str(finished_run / "run"), run], ["export", "--format", "servimage", run])
    yield ["import", "servimage", config, "--labels", str(run_dir.parent / "labels"), "--run", run]


@every_damage
def test_every_command_refuses_a_damaged_ledger_and_does_not_change_its_backup(finished_run, run_dir, damage, capsys):
    store, backup = run_dir / "ledger.sqlite", run_dir / "ledger.backup.sqlite"
    damage(store)

    def content():
        return {p: p.read_bytes() for p in (store, backup, run_dir / "run.yaml") if p.exists()}

    before = content()
    for command in commands(finished_run, run_dir):
        status = main(command)
        captured = capsys.readouterr()
        assert status == 1, (command, captured)
        assert captured.err.count("\n") == 1, (command, captured.err)
        assert f"local-bench: {store} is " in captured.err
        assert f"`local-bench recover {run_dir}`" in captured.err
        assert not captured.out
        assert content() == before


@every_damage
def test_recover_restores_the_backup_and_retains_the_damaged_ledger(finished_run, run_dir, damage, capsys):
    store = run_dir / "ledger.sqlite"
    damage(store)
    damaged = store.read_bytes() if store.exists() else None
    (run_dir / "ledger.sqlite-journal").write_bytes(b"of the damaged ledger")
    assert main(["recover", str(run_dir), "--json"]) == 0
    output = capsys.readouterr().out
    assert '"n_finished": 8' in output
    assert '"n_scores": 4' in output
    damaged_copy = run_dir / "ledger.damaged.1.sqlite"
    assert (damaged_copy.read_bytes() if damaged_copy.exists() else None) == damaged
    assert not (run_dir / "ledger.sqlite-journal").exists()
    with RunDir.open(run_dir) as run, RunDir.open(finished_run / "run") as other:
        assert digests(run) == digests(other)
    shrunk = ["run", str(finished_run / "run.yaml"), "--run-dir", str(run_dir), "--set", "metrics=[]"]
    assert main(shrunk) == 2  # still refused
    assert main(["measure", str(run_dir)]) == 0


def test_the_backup_of_one_session_has_its_provenance(finished_run, tmp_path, monkeypatch):
    monkeypatch.chdir(finished_run)
    path = tmp_path / "run"
    assert main(["run", "run.yaml", "--run-dir", str(path), "--set", "judge=null"]) == 0
    with RunDir.open(path) as run:
        before = run.store.json_meta("provenance")
    empty(path / "ledger.sqlite")
    recover(path)
    with RunDir.open(path) as run:
        assert run.store.json_meta("provenance") == before is not None


def test_a_backup_that_a_full_disk_cut_off_does_not_hold_its_space(run_dir, monkeypatch):
    config, before = read_run_config(run_dir), {path.name for path in run_dir.iterdir()}
    with RunDir.begin(run_dir, config) as run, monkeypatch.context() as patched:
        patched.setattr(stores, "put_in_place", lambda *_: (_ for _ in ()).throw(StorageError("full")))
        with pytest.raises(StorageError):
            run.store.backup()
    assert len({path.name for path in run_dir.iterdir()} - before - {".lock"}) == 1
    with RunDir.begin(run_dir, config):
        assert {path.name for path in run_dir.iterdir()} - {".lock"} == before - {".lock"}


def test_results_missing_from_the_backup_are_computed_again(finished_run, run_dir):
    with sqlite3.connect(run_dir / "ledger.backup.sqlite") as db:
        db.execute("DELETE FROM scores WHERE name = 'entropy'")
    empty(run_dir / "ledger.sqlite")
    assert recover(run_dir).committed.scores == 0
    assert main(["measure", str(run_dir)]) == 0
    assert main(["settle", str(run_dir)]) == 0
    with RunDir.open(run_dir) as run, RunDir.open(finished_run / "run") as other:
        assert digests(run) == digests(other)


def test_recover_does_not_change_an_intact_ledger(run_dir, capsys):
    before = (run_dir / "ledger.sqlite").read_bytes()
    assert main(["recover", str(run_dir)]) == 2
    assert "is intact (8 finished candidates, 0 verdicts): there is nothing to recover" in capsys.readouterr().err
    assert (run_dir / "ledger.sqlite").read_bytes() == before
    with pytest.raises(UserError, match="is not a run directory"):
        recover(run_dir / "images")


@pytest.mark.parametrize("backup", [missing, empty, truncated])
def test_recover_without_a_usable_backup_changes_nothing(run_dir, backup):
    truncated(run_dir / "ledger.sqlite")
    backup(run_dir / "ledger.backup.sqlite")
    before = {p.name for p in run_dir.iterdir()}
    with pytest.raises(LedgerError, match="has no usable backup"):
        recover(run_dir)
    assert {p.name for p in run_dir.iterdir()} - {".lock"} == before - {".lock"}


def test_recover_is_refused_while_another_process_writes_the_run(run_dir):
    with RunDir.begin(run_dir, read_run_config(run_dir)):
        empty(run_dir / "ledger.sqlite")
        with pytest.raises(LedgerError, match="another local-bench process is writing"):
            recover(run_dir)


def test_an_empty_ledger_of_an_unplanned_run_is_damaged(tmp_path):
    config = RunConfig(name="x", models=[ModelConfig(card="tiny-flux")])
    with RunDir.begin(tmp_path / "run", config):
        pass
    empty(tmp_path / "run" / "ledger.sqlite")
    with pytest.raises(LedgerDamaged, match="there is no backup of it: move the folder away"):
        run_stages(config, tmp_path / "run", ("settle",))


def test_a_ledger_of_another_release_is_not_replaced(run_dir):
    with sqlite3.connect(run_dir / "ledger.sqlite") as db:
        db.execute("UPDATE meta SET value = '99' WHERE key = 'version'")
    with pytest.raises(LedgerError, match="of version 99"):
        recover(run_dir)
    with pytest.raises(LedgerError, match="of version 99"):
        RunDir.open(run_dir)


def test_a_backup_with_fewer_results_does_not_replace_one_with_more(run_dir):
    with RunDir.open(run_dir) as run:
        run.store.backup()
        assert not (run_dir / "ledger.backup.1.sqlite").exists()  # as much as before
        run.store.write("DELETE FROM scores")
        run.store.backup()
        run.store.backup()
    earlier, latest = Store(run_dir / "ledger.backup.1.sqlite"), Store(run_dir / "ledger.backup.sqlite")
    assert (earlier.committed().scores, latest.committed().scores) == (4, 0)
    assert not (run_dir / "ledger.backup.2.sqlite").exists()
    truncated(run_dir / "ledger.sqlite")
    truncated(run_dir / "ledger.backup.sqlite")
    assert recover(run_dir).backup.name == "ledger.backup.1.sqlite"  # the latest that is usable


BEGINNING = {
    "before the ledger": "local_bench.runs.rundir.Store",
    "in the ledger's transaction": "local_bench.runs.store.database.Database.write",
    "before run.yaml": "local_bench.runs.rundir.write_atomic",
    "in run.yaml": "local_bench.core.files.os.replace",
    "before planning": "local_bench.runs.stages.make_plan",
}
"""What is called at a moment."""


@pytest.mark.parametrize("moment", BEGINNING)
def test_a_run_killed_at_its_start_continues_with_the_same_command(finished_run, tmp_path, moment):
    config, run_dir = str(finished_run / "run.yaml"), tmp_path / "run"
    pid = os.fork()
    if pid == 0:
        pytest.MonkeyPatch().setattr(BEGINNING[moment], lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
        main(["generate", config, "--run-dir", str(run_dir)])
        os._exit(1)  # not reached
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert (run_dir / "run.yaml").exists() == (moment == "before planning")
    assert main(["generate", config, "--run-dir", str(run_dir)]) == 0
    with RunDir.open(run_dir) as run:
        assert run.store.committed().candidates == 8


def test_a_planned_ledger_without_run_yaml_is_not_started_again(finished_run, run_dir, capsys):
    (run_dir / "run.yaml").unlink()
    for name in ("images", "logs", "report", "exports"):
        shutil.rmtree(run_dir / name, ignore_errors=True)
    for name in ("provenance.json", "ledger.backup.sqlite"):
        (run_dir / name).unlink(missing_ok=True)
    before = (run_dir / "ledger.sqlite").read_bytes()
    assert main(["generate", str(finished_run / "run.yaml"), "--run-dir", str(run_dir)]) == 1
    assert "run.yaml is missing although its run has started" in capsys.readouterr().err
    assert (run_dir / "ledger.sqlite").read_bytes() == before
