"""`score` in this process: (exit status, JSON or text, stderr)."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from local_bench.cli.main import main

Score = Callable[..., tuple[int, Any, str]]


@pytest.fixture
def score(capsys: pytest.CaptureFixture[str]) -> Score:
    def run(*arguments: object, as_json: bool = True) -> tuple[int, Any, str]:
        status = main(["score", *map(str, arguments), *(["--json"] if as_json else [])])
        captured = capsys.readouterr()
        return status, json.loads(captured.out) if as_json and status == 0 else captured.out, captured.err

    return run
