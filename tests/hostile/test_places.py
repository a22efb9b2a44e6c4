"""Paths: every option and argument that takes one, with every kind of place that is no ordinary file."""

import contextlib
import copy
import json
import os
import shutil
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.hostile.harness import Case, faults_of, run, sampled, tree
from tests.hostile.inputs import CONFIG, base, write
from tests.suites.benchmarks import layouts

LONG = "n" * 300


def places(folder: Path) -> dict[str, str]:
    """Make every kind of unusual path in `folder`; (name -> path). None of them is a readable regular file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "file").write_text("text")
    (folder / "dir").mkdir()
    os.mkfifo(folder / "fifo")
    os.symlink(folder / "fifo", folder / "link-to-fifo")
    os.symlink("loop", folder / "loop")
    os.symlink("nowhere", folder / "dangling")
    os.symlink("/dev/zero", folder / "zero")
    with socket.socket(socket.AF_UNIX) as server, contextlib.chdir(folder):
        server.bind("socket")  # by a relative path, as that of a socket is at most 107 bytes long
    here = {"missing": "missing", "folder": "dir", "below a file": "file/x", "fifo": "fifo"}
    here |= {"link to a fifo": "link-to-fifo", "socket": "socket", "link loop": "loop", "below a loop": "loop/x"}
    here |= {"dangling": "dangling", "link to zeros": "zero"}
    paths = {name: str(folder / path) for name, path in here.items()}
    paths |= {path: path for path in ("/dev/zero", "/dev/full", "/dev/null")}
    paths |= {"/dev/random": "/dev/urandom", "/dev/tty": "/dev/tty"}
    paths |= {"procfs": "/proc/self/mem", "procfs text": "/proc/self/environ"}
    paths |= {"nul": "a\0b", "surrogate": "a\udcffb", "lone surrogate": "a\ud800b", "long name": str(folder / LONG)}
    paths |= {"long path": "/".join(["d" * 200] * 30), "empty": "", "blank": " ", "dot": ".", "parent": ".."}
    paths |= {"root": "/", "control": "\x1b[31m\u202ex", "newline": "a\nb", "option": "--", "no home": "~nobody-here/x"}
    return paths | {"url": "http://user:secret@host/x"}


AT = "\ufffe"
"""Placeholder of the path."""
SHEET = "score servimage sheet/annotations.jsonl --tasks"
READERS = [
    *(
        f"{command} {AT}"
        for command in ("plan", "doctor", "models show", "digest", "ls", "verify", "settle", "agreement")
    ),
    *(f"{command} {AT}" for command in ("judges compare", "merge merged", "recover", "report", "judge", "measure")),
    *(f"suites show {suite} --path {AT}" for suite in ("servimage", "ice-bench", "hype-edit-1", "idea-bench")),
    *(f"score {suite} {AT}" for suite in ("ice-bench", "idea-bench", "hype-edit-1")),
    f"generate {AT} --run-dir x",
    f"slurm {AT} --nodes 1 --run-dir s",
    f"models fetch {AT}.yaml",
    f"score hype-edit-1 judgements.json --costs {AT}",
    f"score servimage {AT} --tasks sheet/tasks.jsonl",
    f"{SHEET} {AT}",
    f"{SHEET} sheet/tasks.jsonl --scores {AT}",
    f"{SHEET} sheet/tasks.jsonl --costs {AT}",
    f"reproduce hype-edit-1 table-2 {AT}",
    f"settle own --people {AT}",
    f"agreement own --people {AT}",
    f"judges compare own --people {AT}",
    f"compare {AT} own",
    f"measure {AT} --metrics entropy",
    f"measure pictures --metrics entropy --captions {AT}",
    f"measure pictures --metrics l1_raw --sources {AT}",
    f"import ice-bench {AT}",
    f"import servimage {AT} --run own --labels l.jsonl",
    f"import servimage sheet/annotations.jsonl --run {AT} --labels l.jsonl",
    f"annotate status {AT}",
    f"annotate import {AT} people.jsonl --protocol accept",
    f"revise write {AT} --out revised",
    f"export {AT} --format servimage --out out",
    f"--config-dir {AT} models list",
]
WRITERS = [
    f"export own --format servimage --out {AT}",
    f"export own --format hype-edit-1 --out {AT}",
    f"merge {AT} own",
    f"measure pictures --metrics entropy --out {AT}",
    f"import servimage sheet/annotations.jsonl --run own --labels {AT}",
    f"revise write own --out {AT}",
    f"reproduce hype-edit-1 table-2 judgements.json --out {AT}",
    f"slurm run.yaml --nodes 1 --run-dir {AT}",
    f"generate run.yaml --run-dir {AT}",
    f"extract run.yaml --out {AT}",
]
SETTINGS = ["suite.path", "suite.written", "models.0.imported.images", "models.0.weights", "judge.weights"]


def filled(command: str, place: str) -> list[str]:
    return [part.replace(AT, place) for part in command.split()]


def cases(commands: Iterable[str], paths: dict[str, str]) -> Iterator[Case]:
    for command in commands:
        for name, place in paths.items():
            if place != "/" or command.split()[0] not in ("measure", "suites"):  # every file of the machine
                yield Case(f"{command.replace(AT, 'PLACE')}: {name}", filled(command, place), clear)


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


@pytest.mark.parametrize("command", [*READERS, *WRITERS], ids=lambda command: command.replace(AT, "PLACE"))
def test_a_command_with_a_place(command, here):
    """Nothing is written outside the working folder, inputs are unchanged, and devices keep their kind."""
    outcome = run(filled(command, "nowhere"))
    assert not any(word in outcome.err for word in ("Missing", "No such", "Usage")), "the place is not reached"
    clear()
    writes = command in WRITERS
    paths = {name: place for name, place in places(Path("odd")).items() if not writes or place not in ("/", "..", ".")}
    before = {path: os.lstat(path).st_mode for path in ("/dev/zero", "/dev/null", "/dev/full")}
    outside = [path for path in tree(here.parent) if not path.startswith("work")]
    unchanged = [] if writes else [Path("pictures"), Path("sheet"), Path("odd")]
    assert not faults_of(sampled(cases([command], paths), 4), unchanged)
    assert {path: os.lstat(path).st_mode for path in before} == before
    assert [path for path in tree(here.parent) if not path.startswith("work")] == outside


def settings(paths: dict[str, str]) -> Iterator[Case]:
    for key in SETTINGS:
        for name, place in paths.items():
            data = copy.deepcopy(CONFIG)
            parent = data
            *parents, last = key.split(".")
            for step in parents:
                parent = parent[int(step)] if isinstance(parent, list) else parent[step]
            parent[last] = place
            yield Case(f"{key}: {name}", ["plan", "c.yaml"], lambda data=data: write("c.yaml", data))
            yield Case(f"--set {key}: {name}", ["plan", "run.yaml", "--set", f"{key}={place}"])


def test_places_in_a_config(here):
    assert not faults_of(sampled(settings(places(Path("odd"))), 40))


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
