"""Paths: every option and argument that takes one, with every kind of place that is no ordinary file."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.harness import Case, assert_none, campaign, run, tree
from tests.hostile.inputs import CONFIG, base, write
from tests.hostile.places import places
from tests.hostile.test_files import finished_run  # noqa: F401
from tests.suites.benchmarks import layouts

AT = "\ufffe"
"""Placeholder of the path."""
SHEET = ["score", "servimage", "sheet/annotations.jsonl", "--tasks", "sheet/tasks.jsonl"]
READERS: list[list[str]] = [
    ["plan", AT],
    ["doctor", AT],
    ["generate", AT, "--run-dir", "x"],
    ["slurm", AT, "--nodes", "1", "--run-dir", "s"],
    ["models", "fetch", f"{AT}.yaml"],
    ["models", "show", AT],
    ["suites", "show", "servimage", "--path", AT],
    ["suites", "show", "ice-bench", "--path", AT],
    ["suites", "show", "hype-edit-1", "--path", AT],
    ["suites", "show", "idea-bench", "--path", AT],
    ["score", "ice-bench", AT],
    ["score", "idea-bench", AT],
    ["score", "hype-edit-1", AT],
    ["score", "hype-edit-1", "judgements.json", "--costs", AT],
    ["score", "servimage", AT, "--tasks", "sheet/tasks.jsonl"],
    [*SHEET[:4], AT],
    [*SHEET, "--scores", AT],
    [*SHEET, "--costs", AT],
    ["reproduce", "hype-edit-1", "table-2", AT],
    ["digest", AT],
    ["ls", AT],
    ["verify", AT],
    ["settle", AT],
    ["settle", "RUN", "--people", AT],
    ["agreement", AT],
    ["agreement", "RUN", "--people", AT],
    ["judges", "compare", AT],
    ["judges", "compare", "RUN", "--people", AT],
    ["compare", AT, "RUN"],
    ["merge", "merged", AT],
    ["recover", AT],
    ["report", AT],
    ["judge", AT],
    ["measure", AT],
    ["measure", AT, "--metrics", "entropy"],
    ["measure", "pictures", "--metrics", "entropy", "--captions", AT],
    ["measure", "pictures", "--metrics", "l1_raw", "--sources", AT],
    ["import", "ice-bench", AT],
    ["import", "servimage", AT, "--run", "RUN", "--labels", "l.jsonl"],
    ["import", "servimage", "sheet/annotations.jsonl", "--run", AT, "--labels", "l.jsonl"],
    ["annotate", "status", AT],
    ["annotate", "import", AT, "people.jsonl", "--protocol", "accept"],
    ["revise", "write", AT, "--out", "revised"],
    ["export", AT, "--format", "servimage", "--out", "out"],
    ["--config-dir", AT, "models", "list"],
]
WRITERS: list[list[str]] = [
    ["export", "RUN", "--format", "servimage", "--out", AT],
    ["export", "RUN", "--format", "hype-edit-1", "--out", AT],
    ["merge", AT, "RUN"],
    ["measure", "pictures", "--metrics", "entropy", "--out", AT],
    ["import", "servimage", "sheet/annotations.jsonl", "--run", "RUN", "--labels", AT],
    ["revise", "write", "RUN", "--out", AT],
    ["reproduce", "hype-edit-1", "table-2", "judgements.json", "--out", AT],
    ["slurm", "run.yaml", "--nodes", "1", "--run-dir", AT],
    ["generate", "run.yaml", "--run-dir", AT],
    ["extract", "run.yaml", "--out", AT],
]
DOMAINS = ["suite.path", "suite.written", "models.0.imported.images", "models.0.weights", "judge.weights"]


def cases(commands: list[list[str]], found: dict[str, str], run: Path) -> Iterator[Case]:
    for command in commands:
        for name, place in found.items():
            if place == "/" and command[0] in ("measure", "suites"):
                continue  # every file of the machine
            argv = [part.replace(AT, place).replace("RUN", str(run)) for part in command]
            yield Case(f"{' '.join(command).replace(AT, 'PLACE')}: {name}", argv, clear)


def clear() -> None:
    for name in ("out", "merged", "revised", "l.jsonl", "x", "s"):
        shutil.rmtree(name, ignore_errors=True) if Path(name).is_dir() else Path(name).unlink(missing_ok=True)


@pytest.fixture
def here(tmp_path, monkeypatch):
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    base()
    write("people.jsonl", "")
    return folder


@pytest.mark.parametrize("command", [*READERS, *WRITERS], ids=" ".join)
def test_the_command_line_is_complete(command, here, finished_run):  # noqa: F811
    """Else the place would never be reached."""
    outcome = run([part.replace(AT, "nowhere").replace("RUN", str(finished_run)) for part in command])
    assert "Missing" not in outcome.err
    assert "No such" not in outcome.err
    assert "Usage" not in outcome.err
    clear()


def test_places_that_are_read(here, finished_run):  # noqa: F811
    found = places(Path("odd"))
    assert_none(
        campaign(cases(READERS, found, finished_run), unchanged=[Path("pictures"), Path("sheet"), Path("odd")]),
        at_least=1200,
    )


def test_places_that_are_written(here, finished_run):  # noqa: F811
    """Nothing is written outside the working folder, and devices keep their kind."""
    found = {name: place for name, place in places(Path("odd")).items() if place not in ("/", "..", ".")}
    parent = tree(here.parent)
    before = {path: os.lstat(path).st_mode for path in ("/dev/zero", "/dev/null", "/dev/full")}
    assert_none(campaign(cases(WRITERS, found, finished_run)), at_least=250)
    assert {path: os.lstat(path).st_mode for path in before} == before
    ours = {path for path in tree(here.parent) if not path.startswith("work")}
    assert ours == {path for path in parent if not path.startswith("work")}


def test_places_in_a_config(here, finished_run):  # noqa: F811
    found = places(Path("odd"))

    def config_cases() -> Iterator[Case]:
        for key in DOMAINS:
            for name, place in found.items():

                def put(key=key, place=place) -> None:
                    import copy

                    data = copy.deepcopy(CONFIG)
                    at = data
                    *parents, last = key.split(".")
                    for step in parents:
                        at = at[int(step)] if isinstance(at, list) else at[step]
                    at[last] = place
                    write("c.yaml", data)

                yield Case(f"{key}: {name}", ["plan", "c.yaml"], put)
                yield Case(f"--set {key}: {name}", ["plan", "run.yaml", "--set", f"{key}={place}"])

    assert_none(campaign(config_cases()), at_least=300)


LINKED = {
    "idea/relight_0001/0001.jpg": ["idea-bench", "--path", "idea"],
    "idea/plain_0001/instruction.txt": ["idea-bench", "--path", "idea"],
    "idea/plain_0001/more.png": ["idea-bench", "--path", "idea"],
    "ice/images/i5.png": ["ice-bench", "--path", "ice/data.jsonl"],
    "hype/mug-1/001.png": ["hype-edit-1", "--path", "hype/public.json"],
}
"""Files of benchmarks that are loops of links, and what reads them."""


@pytest.mark.parametrize("file", LINKED)
def test_a_loop_of_links_in_a_benchmark_is_a_missing_file(file, here):
    Path(file).unlink(missing_ok=True)
    Path(file).symlink_to(Path(file).name)
    outcome = run(["suites", "show", *LINKED[file]], statuses=(0,))
    assert not outcome.faults
    assert str(here) not in outcome.err


@pytest.mark.parametrize("more", [{"source_image": "loop/x"}, {"reference_images": ["loop"]}])
def test_a_loop_of_links_in_an_order_is_a_missing_file(more, here):
    Path("loop").symlink_to("loop")
    write("tasks.jsonl", json.loads(Path("tasks.jsonl").read_text()) | more)
    assert not run(["plan", "run.yaml"], statuses=(0,)).faults


def test_names_that_are_not_utf_8_are_read_and_written(here):
    name = os.fsdecode(b"caf\xe9")
    layouts.write_image(Path(f"pictures/{name}.png"))
    shutil.copytree("idea/plain_0001", f"cases/{name}_0001")
    idea = CONFIG | {"suite": {"name": "idea-bench", "path": "cases"}}
    write("idea.yaml", idea | {"models": [CONFIG["models"][0] | {"imported": {"images": "made"}}]})
    measured = ["measure", "pictures", "--metrics", "entropy", "--out", f"{name}.jsonl", "--json"]
    for argv in (
        measured,
        measured,
        ["generate", "run.yaml", "--run-dir", name],
        ["measure", name],
        ["settle", name, "--json"],
        ["verify", name, "--json"],
        ["report", name, "--out", f"{name}-site"],
        ["suites", "show", "idea-bench", "--path", "cases", "--json"],
    ):
        assert not run(argv, statuses=(0,)).faults, argv
    assert Path(f"{name}.jsonl").read_text().count('"image": "caf\\\\xe9.png"') == 1
    assert not run(["generate", "idea.yaml", "--run-dir", "idea-run"], statuses=(0, 1)).faults
