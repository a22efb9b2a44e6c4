"""A run directory that an earlier release wrote (tests/data/earlier_run) opens, settles and continues with this one."""

import json
import re
import shlex
import shutil
import sqlite3
from pathlib import Path

import pytest

from local_bench.analysis.digest import digests
from local_bench.cli.main import main
from local_bench.core.errors import LedgerError
from local_bench.runs.rundir import RunDir
from local_bench.runs.store import Store
from local_bench.runs.store.database import VERSION, _definitions, tables

EARLIER_RUN = Path(__file__).resolve().parent.parent / "data" / "earlier_run"
DIGESTS = {
    "candidates": "52835721eea3246f38589055089174e808c639fe0c02d93b9f58fc89c47a4235",
    "verdicts": "90e27ff660a03ea4faf00aa0101768ef8840aef0edff2907b43e91c66ea2e1dd",
    "scores": "4c19850a47e80fae242ca6a617f51607235db32efbc13dc50c3a50eac8a8c099",
    "settlement": "2813f2d2a09053795a94168260c97948c135ff73ba97f6413b3bb10ce293236f",
}
"""As printed by the release that wrote it."""
TO_VERSION_2 = """
CREATE TABLE v AS SELECT * FROM verdicts;
DROP TABLE verdicts;
CREATE TABLE verdicts (
  work_id TEXT NOT NULL REFERENCES candidates, rubric TEXT NOT NULL, point INTEGER NOT NULL,
  question_id TEXT NOT NULL, rubric_sha256 TEXT NOT NULL, judge TEXT NOT NULL,
  answer TEXT, unscored TEXT, raw TEXT NOT NULL,
  PRIMARY KEY (work_id, rubric, point), CHECK ((answer IS NULL) <> (unscored IS NULL))) STRICT;
INSERT INTO verdicts SELECT work_id, rubric, point, question_id, rubric_sha256, judge, answer, unscored, raw FROM v
  WHERE repeat = 0;
DROP TABLE v;
DROP TABLE retests;
ALTER TABLE scores DROP COLUMN spread;
UPDATE meta SET value = '2' WHERE key = 'version';
"""


@pytest.fixture
def run_dir(tmp_path):
    return shutil.copytree(EARLIER_RUN, tmp_path / "earlier")


def test_a_run_of_an_earlier_release_continues(run_dir, cli):
    """A score that is missing is computed again; nothing else is computed, and settling gives equal revenues."""
    with sqlite3.connect(run_dir / "ledger.sqlite") as db:
        db.execute("DELETE FROM scores WHERE name = 'entropy' AND work_id = (SELECT min(work_id) FROM candidates)")
    ended = cli("run", run_dir / "run.yaml", "--run-dir", run_dir, "--json")
    assert ended.returncode == 0, ended.stderr
    with RunDir.open(run_dir) as run:
        assert digests(run) == DIGESTS
    revenues = {name: model["revenue_usd"] for name, model in json.loads(ended.stdout)["models"].items()}
    assert revenues == {"mini-kontext": 60.5, "mini-flux-early": 19.0}


def test_version_2_is_migrated(run_dir):
    path = run_dir / "ledger.sqlite"
    with sqlite3.connect(path) as db:
        db.executescript(TO_VERSION_2)
    before = path.read_bytes()
    with RunDir.open(run_dir) as run:  # in memory
        assert digests(run)["verdicts"] == DIGESTS["verdicts"]
    assert path.read_bytes() == before
    Store(path, write=True).close()  # in place
    with sqlite3.connect(path) as db:
        assert "spread" in tables(_definitions(db))["scores"]
        assert db.execute("SELECT value FROM meta WHERE key = 'version'").fetchone()[0] == VERSION
    with RunDir.open(run_dir) as run:
        assert digests(run) == DIGESTS


def test_a_row_that_no_release_writes_is_an_error(run_dir):
    with sqlite3.connect(run_dir / "ledger.sqlite") as db:
        db.executescript("CREATE TABLE s AS SELECT * FROM scores; DROP TABLE scores; ALTER TABLE s RENAME TO scores")
        db.execute("UPDATE scores SET unscored = 'both' WHERE value IS NOT NULL")
    with pytest.raises(LedgerError, match="damaged or forged"):
        RunDir.open(run_dir)


def test_it_can_be_merged_after_the_command_that_the_refusal_names(tmp_path, capsys):
    run = shutil.copytree(EARLIER_RUN, tmp_path / "earlier run")
    merge = ["merge", str(tmp_path / "merged"), str(run)]
    assert main(merge) == 2
    named = re.search(r"enter `local-bench (.+?)` once", capsys.readouterr().err)
    assert main(shlex.split(named[1])) == 0
    assert main(merge) == 0
