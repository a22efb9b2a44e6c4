"""Numbers: no reader accepts one that is not finite, and no size, price, probability or count is negative."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.harness import Case, assert_none, campaign, run
from tests.hostile.inputs import Input, base, inputs
from tests.hostile.test_files import NAMES, finished_run  # noqa: F401
from tests.hostile.values import places_of, with_literal

NOT_FINITE = ["NaN", "Infinity", "-Infinity", ".nan", "-.inf", "1e999", "-1e400"]
LISTED = {"config of a run", "idea meta"}
"""Commands that list what is wrong and go on."""
NOT_READ = {"subtask_idx", "ms", "score"}
"""Numbers that are not used, or have no bounds."""
REFUSED = {"config generate"}
"""Would load a model if it were accepted."""
NEGATIVE = ["-1", "-0.5", "-1e300", "-9223372036854775809"]


def numbers(data: Any) -> Iterator[tuple[Any, ...]]:
    for at, value in places_of(data):
        if isinstance(value, int | float) and not isinstance(value, bool) and at[-1] not in NOT_READ:
            yield at


def cases(entry: Input) -> Iterator[Case]:
    before, after = entry.frame
    for at in numbers(entry.data):
        for literal in (*NOT_FINITE, *NEGATIVE):
            text = before + with_literal(entry.data, at, literal) + after

            def put(text: str = text) -> None:
                Path(entry.file).parent.mkdir(parents=True, exist_ok=True)
                Path(entry.file).write_text(text)

            yield Case(f"{entry.name}: {'.'.join(map(str, at))} = {literal}", entry.argv, put, (1, 2))


@pytest.mark.parametrize("name", [name for name in NAMES if name not in LISTED])
def test_numbers_out_of_range_are_refused(name, finished_run, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    base(finished_run)
    entry = next(e for e in inputs(finished_run) if e.name == name)
    assert_none(campaign(cases(entry)), at_least=0)


@pytest.mark.parametrize("name", NAMES)
def test_unchanged_inputs_are_accepted(name, finished_run, tmp_path, monkeypatch):  # noqa: F811
    """Else every change of them would be refused for another reason than the change."""
    monkeypatch.chdir(tmp_path)
    base(finished_run)
    entry = next(e for e in inputs(finished_run) if e.name == name)
    Path(entry.file).parent.mkdir(parents=True, exist_ok=True)
    Path(entry.file).write_text(entry.frame[0] + json.dumps(entry.data) + entry.frame[1])
    outcome = run(entry.argv)
    assert outcome.status == 0 or (name in REFUSED and "tasks.jsonl/x" in outcome.err), outcome.err
