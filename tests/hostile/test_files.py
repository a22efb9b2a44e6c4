"""Files: every reader with values of the grammar in every place, and with files of another kind."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from local_bench.cli.main import main
from tests.hostile.harness import Case, faults_of, run, sampled
from tests.hostile.inputs import CONFIG, EARLIER_RUN, ICE_METRICS, IDEA_CELLS, INPUTS, Input, base, ice_line, idea_sheet
from tests.hostile.values import LITERALS, RAW, places_of, texts_of, with_literal


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base()


def writing(write: Callable[[Any], object], data: str | bytes) -> Callable[[], None]:
    return lambda: write(data) and None


def files(entry: Input) -> Iterator[Case]:
    for name, data in (*RAW.items(), *texts_of(entry.data)):
        yield Case(f"{entry.name}: {name}", entry.command.split(), writing(entry.write, data))


NOT_FINITE = ["NaN", "Infinity", "-Infinity", ".nan", "-.inf", "1e999", "-1e400"]
NEGATIVE = ["-1", "-0.5", "-1e300", "-9223372036854775809"]
LISTED = {"config of a run", "idea meta"}
"""Commands that list what is wrong and go on."""
NOT_READ = {"subtask_idx", "ms", "score"}
"""Numbers that are not used, or have no bounds."""


def numbers_out_of_range(entry: Input) -> Iterator[Case]:
    for at, value in places_of(entry.data):
        if isinstance(value, int | float) and not isinstance(value, bool) and at[-1] not in NOT_READ:
            for literal in (*NOT_FINITE, *NEGATIVE):
                text = with_literal(entry.data, at, literal)
                yield Case(f"{at} = {literal}", entry.command.split(), writing(entry.write, text), (1, 2))


@pytest.mark.parametrize("entry", INPUTS, ids=[entry.name for entry in INPUTS])
def test_file(entry):
    """An unchanged input is accepted, or every change would be refused for another reason than the change."""
    entry.write(json.dumps(entry.data))
    outcome = run(entry.command.split())
    assert outcome.status == 0 or (entry.name == "config generate" and "tasks.jsonl/x" in outcome.err), outcome.err
    unchanged = [] if "settle" in entry.name or entry.file.startswith("own") else [Path("own")]
    assert not faults_of(sampled(files(entry)), unchanged)
    numbers = [] if entry.name in LISTED else list(numbers_out_of_range(entry))
    assert not numbers or not faults_of(sampled(numbers))


def test_scores_that_are_continued():
    """`measure --out` reads its own lines again and appends to them."""
    command = "measure pictures --metrics entropy --out out.jsonl"
    assert main(command.split()) == 0
    first, line = Path("out.jsonl").read_text().splitlines()
    assert main(command.split()) == 0
    for data, frame in ((first, ("", f"\n{line}\n")), (line, (f"{first}\n", "\n"))):
        assert not faults_of(sampled(files(Input("scores", "out.jsonl", command, json.loads(data), frame))))


def ice_results() -> Iterator[tuple[str, str]]:
    yield from ((name, ice_line(text)) for name, text in texts_of(ICE_METRICS))
    yield from ((f"item {text[:40]}", ice_line("{}", item=text)) for text in LITERALS)
    yield from ((f"task {text[:40]}", ice_line("{}", task=text)) for text in LITERALS)
    yield from (("twice", ice_line("{}") * 2), ("separators", ice_line("{}") * 3 + "###" * 100))


def idea_results() -> Iterator[tuple[str, str]]:
    for i in range(len(IDEA_CELLS)):
        yield f"{i} cells", idea_sheet(IDEA_CELLS[:i])
        for text in LITERALS:
            yield f"cell {i} {text[:40]}", idea_sheet([*IDEA_CELLS[:i], text.strip('"'), *IDEA_CELLS[i + 1 :]])


@pytest.mark.parametrize(("suite", "texts"), [("ice-bench", ice_results), ("idea-bench", idea_results)])
def test_official_results(suite, texts):
    sheet = Input(suite, "f.txt", f"score {suite} f.txt --json", None)
    for table in (RAW.items(), texts()):
        cases = [Case(f"{suite}: {name}", sheet.command.split(), writing(sheet.write, data)) for name, data in table]
        assert not faults_of(sampled(cases, 20))


@pytest.mark.parametrize("setting", ["models.0.name=x", "models.0.imported.images=x", "models=null", "seed=1"])
def test_models_of_another_kind(setting):
    for models in (None, [], {}, 3, "x", [None], [3], [[]], [{"card": None}], [{"card": {}}]):
        Path("c.yaml").write_text(json.dumps(CONFIG | {"models": models}))
        assert not run(["plan", "c.yaml", "--set", setting], statuses=(2,)).faults, models


AT = "\ufffe"
"""Placeholder of a value."""
SETTINGS = ["seed", "suite.limit", "suite.shard", "models.0.attempts", "settlement.usd_per_hour", "judge.max_tokens"]
SETTINGS += [*(f"models.{i}.name" for i in ("9", "-1", "\N{SUPERSCRIPT TWO}", "9" * 5000)), "a.b", ""]
SETTINGS += ["engine.batch_size", "metrics", "metrics.0", "panel", "judge", "name.x"]
OPTIONS = [
    *(f"plan run.yaml --set {key}={AT}" for key in SETTINGS),
    *(f"plan run.yaml {option} {AT}" for option in ("--gpu", "--gpus", "--limit", "--shard", "--model", "--seed")),
    f"score {AT} judgements.json",
    f"score hype-edit-1 judgements.json --review-usd-per-hour {AT} --json",
    f"score hype-edit-1 judgements.json --review-seconds {AT} --json",
    f"models show {AT}",
    f"suites show {AT}",
    f"suites show printshop --part {AT}",
    f"reproduce {AT}",
    f"reproduce hype-edit-1 {AT} judgements.json",
    f"export {EARLIER_RUN} --format {AT}",
    f"measure pictures --metrics {AT}",
    AT,
]


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.replace(AT, "VALUE")[:60])
def test_value_on_the_command_line(option):
    values = [literal.strip('"') for literal in LITERALS if option != AT or literal.strip('" ')]
    cases = [Case(value[:40], [part.replace(AT, value) for part in option.split()]) for value in values]
    assert not faults_of(sampled(cases, 4))
