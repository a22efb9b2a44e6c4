"""`score` in this process: (exit status, JSON or text, what stderr says)."""

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
        told = capsys.readouterr()
        return status, json.loads(told.out) if as_json and status == 0 else told.out, told.err

    return run
