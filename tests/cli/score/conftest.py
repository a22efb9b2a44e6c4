"""`score` in this process: (exit status, JSON or text, stderr)."""

import json

import pytest

from local_bench.cli.main import main


@pytest.fixture
def score(capsys):
    def run(*arguments, as_json=True):
        status = main(["score", *map(str, arguments), *(["--json"] if as_json else [])])
        captured = capsys.readouterr()
        return status, json.loads(captured.out) if as_json and status == 0 else captured.out, captured.err

    return run
