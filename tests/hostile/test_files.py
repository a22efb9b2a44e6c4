"""Files: every reader with every value of the grammar in every place, and with files of another kind."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.harness import Case, assert_none, campaign
from tests.hostile.inputs import Input, base, inputs
from tests.hostile.values import RAW, texts_of

KEPT = Path(__file__).resolve().parent.parent / "data" / "kept_run"
NAMES = [entry.name for entry in inputs(KEPT)]


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kept") / "kept"
    shutil.copytree(KEPT, path)
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
def test_file(name, kept, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base()
    entry = next(e for e in inputs(kept) if e.name == name)
    assert_none(campaign(of_input(entry), unchanged=[kept]), at_least=60)
