"""A stranger's run directory: forged ledgers and files under every command that reads a run."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_bench.cli.main import main
from local_bench.core.types import LEAST_PROBABILITY, MAX_SCORE
from local_bench.runs.rundir import RunDir
from tests.hostile import harness
from tests.hostile.forge import Forgery, edit, upgraded
from tests.hostile.harness import EVERY, Case, assert_none, campaign, run
from tests.hostile.inputs import ANNOTATION

EARLIER_RUN = Path(__file__).resolve().parent.parent / "data" / "earlier_run"
COMMANDS: dict[str, tuple[list[str], int]] = {
    "digest": (["digest", "run", "--json"], 4),
    "ls": (["ls", ".", "--json"], 3),
    "settle": (["settle", "run", "--json"], 6),
    "verify": (["verify", "run", "--json"], 3),
    "agreement": (["agreement", "run", "--people", "run", "--json"], 5),
    "judges": (["judges", "compare", "run", "--people", "run", "--json"], 5),
    "compare": (["compare", "run", "run", "--json"], 9),
    "export servimage": (["export", "run", "--format", "servimage", "--out", "out"], 5),
    "reproduce": (["reproduce", "servimage", "table-2", "run"], 9),
    "merge": (["merge", "merged", "run", "other"], 9),
    "report": (["report", "run"], 13),
    "site": (["report", "run", "--out", "site"], 23),
    "status": (["annotate", "status", "run", "--json"], 9),
    "revise": (["revise", "write", "run", "--out", "revised"], 13),
    "recover": (["recover", "run", "--json"], 11),
    "judge": (["judge", "run", "--set", "judge.transport=local"], 31),
}


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
def forged(original, tmp_path, monkeypatch) -> Forgery:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "mine").write_text("mine")
    shutil.copytree(original, tmp_path / "other")
    return Forgery(original, tmp_path / "run")


def cases(forged: Forgery, argv: list[str], every: int) -> Iterator[Case]:
    def changed(change):
        def prepare() -> None:
            change()
            for name in ("out", "merged", "site", "revised"):
                shutil.rmtree(name, ignore_errors=True)

        return prepare

    for name, change in forged.columns(loose=False, every=every):
        yield Case(name, argv, changed(change))
    for name, change in forged.columns(loose=True, every=every * 7):
        yield Case(f"{name}, loose", argv, changed(change))
    for name, change in forged.json(every):
        yield Case(name, argv, changed(change))
    for n, (name, change) in enumerate(forged.statements()):
        if n % (1 + every // 20) == 0:
            yield Case(name, argv, changed(change))
    for n, (name, change) in enumerate(forged.files(Path("outside").resolve())):
        if n % (1 + every // 20) == 0:
            yield Case(name, argv, changed(change))


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "site"])
def test_the_unchanged_run_is_read(command, forged):
    """Else every forgery would be refused for another reason."""
    forged.restore()
    outcome = run(COMMANDS[command][0])
    assert outcome.status == 0 or (command == "recover" and "is intact" in outcome.err), outcome.err


@pytest.mark.parametrize("command", COMMANDS)
def test_forged_run(command, forged, monkeypatch):
    monkeypatch.setattr(harness, "LIMIT_S", 60.0)  # libraries are imported at the first case
    argv, every = COMMANDS[command]
    if command == "site" and EVERY > 1:
        pytest.skip("ten seconds a case: in the long campaign")
    every = every if EVERY == 1 else 5 * every  # the harness leaves out more
    assert_none(campaign(cases(forged, argv, every), unchanged=[Path("outside")]), at_least=6 * EVERY)
    assert not any(path.name == "escape" for path in Path.cwd().parent.rglob("escape"))


@pytest.mark.parametrize("value", [1e308, -1e308, 1e15, -1e15, 5e-324, -5e-324])
@pytest.mark.parametrize("command", ["settle", "report", "compare"])
def test_scores_at_the_limits_of_floats(command, value, forged):
    """Of all candidates, so that sums and squares of them are formed."""
    edit(forged.restore(), "UPDATE scores SET value = ? WHERE value IS NOT NULL", value)
    status = 1 if abs(value) > MAX_SCORE else 0
    outcome = run(COMMANDS[command][0], statuses=(status,))
    assert not outcome.faults
    assert "Warning" not in outcome.err
    assert ("the table 'scores' has values that no release writes" in outcome.err) == bool(status)


@pytest.mark.parametrize("name", ["idea-bench", "hype-edit-1", "ice-bench"])
@pytest.mark.parametrize("command", [*COMMANDS, "measure"])
def test_run_yaml_with_another_suite(command, name, forged):
    forged.restore()
    config = forged.run / "run.yaml"
    config.write_text(config.read_text().replace("name: printshop", f"name: {name}").replace("path: null", "path: x"))
    before = (forged.run / "ledger.sqlite").read_bytes()
    outcome = run(COMMANDS[command][0] if command in COMMANDS else ["measure", "run"])
    assert not outcome.faults
    if command not in ("ls", "status", "recover"):  # which do not open the run
        assert outcome.status == 2
        assert f"suite.name is '{name}', but the run's task 'print-01' is of another suite" in outcome.err
    assert (forged.run / "ledger.sqlite").read_bytes() == before


@pytest.mark.parametrize("probability", ["0", "-1", "5e-324", "1e-308", "1e-31", "1e-30", "1e-9"])
def test_annotations_of_improbable_images(probability, forged):
    """An annotation is weighted by the inverse of its image's probability."""
    forged.restore()
    with RunDir.open(forged.run) as opened:
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
