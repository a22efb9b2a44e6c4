"""Files: every reader with every value of the grammar in every place, and with files of another kind."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from local_bench.cli.main import main
from tests.hostile.harness import Case, assert_none, campaign, run
from tests.hostile.inputs import CONFIG, ICE_METRICS, IDEA_CELLS, Input, base, ice_line, idea_sheet, inputs
from tests.hostile.values import LITERALS, RAW, texts_of

EARLIER_RUN = Path(__file__).resolve().parent.parent / "data" / "earlier_run"
NAMES = [entry.name for entry in inputs(EARLIER_RUN)]


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kept") / "kept"
    shutil.copytree(EARLIER_RUN, path)
    return path


def of_input(entry: Input) -> Iterator[Case]:
    before, after = entry.frame

    def put(data: str | bytes) -> None:
        path = Path(entry.file)
        if path.is_symlink() or path.is_file():
            path.unlink()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else (before + data + after).encode("utf-8", "surrogatepass"))

    for name, raw in RAW.items():
        yield Case(f"{entry.name}: {name}", entry.argv, lambda raw=raw: put(raw))
    for name, text in texts_of(entry.data, every=entry.every):
        yield Case(f"{entry.name}: {name}", entry.argv, lambda text=text: put(text))


@pytest.mark.parametrize("name", NAMES)
def test_file(name, finished_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base(finished_run)
    entry = next(e for e in inputs(finished_run) if e.name == name)
    unchanged = [] if "settle" in name else [finished_run]  # `settle` writes the report of its run
    assert_none(campaign(of_input(entry), unchanged), at_least=60)


def test_scores_that_are_continued(tmp_path, monkeypatch):
    """`measure --out` reads its own lines again and appends to them."""
    monkeypatch.chdir(tmp_path)
    base()
    argv = ("measure", "pictures", "--metrics", "entropy", "--out", "out.jsonl")
    assert main(list(argv)) == 0
    first, line = Path("out.jsonl").read_text().splitlines()
    assert main(list(argv)) == 0
    for data, frame in ((first, ("", f"\n{line}\n")), (line, (f"{first}\n", "\n"))):
        assert_none(campaign(of_input(Input("scores", "out.jsonl", argv, json.loads(data), 3, frame))), at_least=60)


def test_ice_results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def cases() -> Iterator[Case]:
        texts = [(name, ice_line(text)) for name, text in texts_of(ICE_METRICS)]
        texts += [(f"item {text[:40]}", ice_line("{}", item=text)) for text in LITERALS]
        texts += [(f"task {text[:40]}", ice_line("{}", task=text)) for text in LITERALS]
        texts += [("twice", ice_line("{}") * 2), ("separators", ice_line("{}") * 3 + "###" * 100)]
        for name, text in (*texts, *RAW.items()):
            yield Case(f"ice: {name}", ["score", "ice-bench", "f.txt", "--json"], writer("f.txt", text))

    assert_none(campaign(cases()), at_least=250)


def test_idea_results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def cases() -> Iterator[Case]:
        texts = [
            (f"cell {i} {text[:40]}", idea_sheet([*IDEA_CELLS[:i], text.strip('"'), *IDEA_CELLS[i + 1 :]]))
            for i in range(len(IDEA_CELLS))
            for text in LITERALS
        ]
        texts += [(f"{n} cells", idea_sheet(IDEA_CELLS[:n])) for n in range(len(IDEA_CELLS))]
        for name, text in (*texts, *RAW.items()):
            yield Case(f"idea: {name}", ["score", "idea-bench", "f.csv", "--json"], writer("f.csv", text))

    assert_none(campaign(cases()), at_least=600)


def writer(file: str, data: str | bytes) -> Callable[[], None]:
    """A function that writes the file."""

    def write() -> None:
        Path(file).write_bytes(data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass"))

    return write


SETTINGS = [
    "seed",
    "suite.limit",
    "suite.shard",
    "models.0.attempts",
    "settlement.usd_per_hour",
    "judge.max_tokens",
    "a.b",
    "",
]
SETTINGS += [
    "a.b",
    "",
    "models.9.name",
    "models.-1.name",
    "models.\N{SUPERSCRIPT TWO}.name",
    f"models.{'9' * 5000}.name",
    "engine.batch_size",
    "metrics",
    "metrics.0",
    "panel",
    "judge",
    "name.x",
]


@pytest.mark.parametrize("models", [None, [], {}, 3, "x", [None], [3], [[]], [{"card": None}], [{"card": {}}]])
@pytest.mark.parametrize("setting", ["models.0.name=x", "models.0.imported.images=x", "models=null", "seed=1"])
def test_models_of_another_kind(models, setting, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base()
    Path("c.yaml").write_text(json.dumps(CONFIG | {"models": models}))
    assert not run(["plan", "c.yaml", "--set", setting], statuses=(2,)).faults


def test_command_line(tmp_path, monkeypatch):
    """Values of options and names: numbers, settings, names of everything."""
    monkeypatch.chdir(tmp_path)
    base()

    def cases() -> Iterator[Case]:
        for literal in LITERALS:
            text = literal.strip('"')
            for key in SETTINGS:
                yield Case(f"--set {key}={text[:40]}", ["plan", "run.yaml", "--set", f"{key}={text}"])
            for argv in (
                ["plan", "run.yaml", "--gpu", text],
                ["plan", "run.yaml", "--gpus", text],
                ["plan", "run.yaml", "--limit", text],
                ["plan", "run.yaml", "--shard", text],
                ["plan", "run.yaml", "--model", text],
                ["plan", "run.yaml", "--seed", text],
                ["score", text, "judgements.json"],
                ["score", "hype-edit-1", "judgements.json", "--review-usd-per-hour", text, "--json"],
                ["score", "hype-edit-1", "judgements.json", "--review-seconds", text, "--json"],
                ["models", "show", text],
                ["suites", "show", text],
                ["suites", "show", "printshop", "--part", text],
                ["reproduce", text],
                ["reproduce", "hype-edit-1", text, "judgements.json"],
                ["export", str(EARLIER_RUN), "--format", text],
                ["measure", "pictures", "--metrics", text],
                [text],
            ):
                if not (argv == [text] and text in ("", " ")):
                    yield Case(f"{' '.join(argv)[:100]}", argv)

    assert_none(campaign(cases()), at_least=1500)
