"""Two judged runs of each benchmark, of different models, and the command in this process."""

import json
from pathlib import Path

import pytest

from local_bench.cli.main import main
from tests.analysis.simulated import LAYOUTS, config, draw, judged
from tests.suites.benchmarks import layouts

USD = {"one": "0.04", "two": "0.07"}


class _Runs(dict[str, tuple[Path, Path]]):
    """Made when they are first read."""

    def __init__(self, factory):
        self.factory = factory

    def __missing__(self, name):
        folder = self.factory.mktemp(name)
        path = getattr(layouts, LAYOUTS[name])(folder / "data")
        attempts = 10 if name == "hype-edit-1" else 1
        made = {m: draw(name, path, folder / m, 7 * i, attempts) for i, m in enumerate(("one", "two", "three"))}
        of_run = {"first": {m: made[m] for m in ("one", "two")}, "second": {"three": made["three"]}}
        for run, models in of_run.items():
            judged(folder / run, config(name, path, models, attempts, USD), 3)
        self[name] = (folder / "first", folder / "second")
        return self[name]


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Benchmark -> a run with the models `one` and `two`, and one with `three`, of the same tasks."""
    return _Runs(tmp_path_factory)


@pytest.fixture
def reproduce(capsys):
    """The JSON of `reproduce`, or with `status` its stderr."""

    def run(*arguments, status=0, form="json"):
        parts = [*map(str, arguments), *(["--format", form] if status == 0 else [])]
        assert main(["reproduce", *parts]) == status
        out, err = capsys.readouterr()
        if status:
            return err
        return json.loads(out) if form == "json" else out

    return run
