"""A stranger's run directory: forged ledgers and files under every command that reads a run."""

import json
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from local_bench.cli.main import main
from local_bench.core.types import LEAST_PROBABILITY, MAX_SCORE
from local_bench.runs.rundir import RunDir
from tests.hostile.forge import Change, edit, forgeries, upgraded
from tests.hostile.harness import Case, faults_of, run, sampled
from tests.hostile.inputs import ANNOTATION, EARLIER_RUN

COMMANDS = {
    "digest": "digest run --json",
    "ls": "ls . --json",
    "settle": "settle run --json",
    "verify": "verify run --json",
    "agreement": "agreement run --people run --json",
    "judges": "judges compare run --people run --json",
    "compare": "compare run run --json",
    "export servimage": "export run --format servimage --out out",
    "reproduce": "reproduce servimage table-2 run",
    "merge": "merge merged run other",
    "report": "report run",
    "status": "annotate status run --json",
    "revise": "revise write run --out revised",
    "recover": "recover run --json",
    "judge": "judge run --set judge.transport=local",
}
SLOW = ("report", "judge")
"""Commands that take seconds."""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of an earlier release in the present schema, with annotations, a backup and a record of its contents."""
    path = tmp_path_factory.mktemp("original") / "kept"
    shutil.copytree(EARLIER_RUN, path)
    upgraded(path)
    people = path.with_name("people.jsonl")
    people.write_text(json.dumps(ANNOTATION) + "\n")
    assert main(["annotate", "import", str(path), str(people), "--protocol", "accept"]) == 0
    assert main(["settle", str(path)]) == 0
    shutil.copyfile(path / "ledger.sqlite", path / "ledger.backup.sqlite")
    return path


@pytest.fixture
def run_dir(original, tmp_path, monkeypatch) -> Path:
    """A copy of the run, `run`; beside it another one, and a folder that no command may change."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "mine").write_text("mine")
    shutil.copytree(original, tmp_path / "other")
    return Path(shutil.copytree(original, tmp_path / "run"))


@pytest.mark.parametrize("command", COMMANDS)
def test_forged_run(command, original, run_dir):
    """The unchanged run is read, or every forgery would be refused for another reason."""
    outcome = run(COMMANDS[command].split())
    assert outcome.status == 0 or (command == "recover" and "is intact" in outcome.err), outcome.err

    def cases() -> Iterator[Case]:
        for kind in forgeries(original, Path("outside").resolve()):
            table = [Case(name, COMMANDS[command].split(), partial(prepare, change)) for name, change in kind]
            yield from sampled(table, 1 if command in SLOW else 3)

    def prepare(change: Change) -> None:
        for name in ("run", "out", "merged", "revised"):
            shutil.rmtree(name, ignore_errors=True)
        shutil.copytree(original, run_dir)
        change(run=run_dir)

    assert not faults_of(cases(), unchanged=[Path("outside")])
    assert not any(path.name == "escape" for path in Path.cwd().parent.rglob("escape"))


@pytest.mark.parametrize(
    ("command", "value"),
    [
        *(("settle", value) for value in (1e308, -1e308, 1e15, -1e15, 5e-324, -5e-324)),
        *(("compare", value) for value in (-1e308, 1e15, 5e-324)),
        *(("report", value) for value in (1e308, -1e15, -5e-324)),
    ],
)
def test_scores_at_the_limits_of_floats(command, value, run_dir):
    """Of all candidates, so that sums and squares of them are formed."""
    edit(run_dir / "ledger.sqlite", "UPDATE scores SET value = ? WHERE value IS NOT NULL", value)
    status = 1 if abs(value) > MAX_SCORE else 0
    outcome = run(COMMANDS[command].split(), statuses=(status,))
    assert not outcome.faults
    assert "Warning" not in outcome.err
    assert ("the table 'scores' has values that no release writes" in outcome.err) == bool(status)


@pytest.mark.parametrize("column", ["scores.work_id", "scores.name", "verdicts.judge", "tasks.task_id"])
def test_a_key_with_a_nul_is_refused(column, run_dir):
    """SQLite ends JSON values of a query there."""
    table, _, name = column.partition(".")
    edit(run_dir / "ledger.sqlite", f"UPDATE {table} SET {name} = {name} || char(0) || 'x'")
    for command in ("settle", "report"):
        outcome = run(COMMANDS[command].split(), statuses=(1,))
        assert not outcome.faults
        assert f"the table '{table}' has values that no release writes" in outcome.err


@pytest.mark.parametrize(
    ("command", "name"),
    [
        *((command, "idea-bench") for command in (*COMMANDS, "measure")),
        ("settle", "hype-edit-1"),
        ("settle", "ice-bench"),
    ],
)
def test_run_yaml_with_another_suite(command, name, run_dir):
    config = run_dir / "run.yaml"
    config.write_text(config.read_text().replace("name: printshop", f"name: {name}").replace("path: null", "path: x"))
    before = (run_dir / "ledger.sqlite").read_bytes()
    outcome = run(COMMANDS.get(command, "measure run").split())
    assert not outcome.faults
    if command not in ("ls", "status", "recover"):  # which do not open the run
        assert outcome.status == 2
        assert f"suite.name is '{name}', but the run's task 'print-01' is of another suite" in outcome.err
    assert (run_dir / "ledger.sqlite").read_bytes() == before


@pytest.mark.parametrize("probability", ["0", "-1", "5e-324", "1e-308", "1e-31", "1e-30", "1e-9"])
def test_annotations_of_improbable_images(probability, run_dir):
    """An annotation is weighted by the inverse of its image's probability."""
    with RunDir.open(run_dir) as opened:
        lines = [
            ANNOTATION
            | {"model": row.model, "task_id": row.task_id, "deliverable": row.deliverable, "overall": bool(n % 2)}
            for n, row in enumerate(opened.store.candidates())
            if row.attempt == 1
        ]
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    Path("people.jsonl").write_text(text.replace('"probability": 0.5', f'"probability": {probability}'))
    status = 2 if float(probability) < LEAST_PROBABILITY else 0
    for argv in (["settle", "run", "--people", "people.jsonl"], ["agreement", "run", "--people", "people.jsonl"]):
        outcome = run(argv, statuses=(status,))
        assert not outcome.faults
        assert "Warning" not in outcome.err
