"""A model in the repository: copied completely and unchanged into the cache, and again where its files changed."""

import hashlib
import json

import pytest

from local_bench.core.errors import WeightsError
from local_bench.models import shipped
from local_bench.models.cards import SHIPPED, ModelCard
from local_bench.models.weights import resolve

FIELDS = {"name": "mini-something", "role": "judge", "source": {"build": SHIPPED}, "licence": "Apache-2.0"}
FIELDS |= {"family": "qwen2-vl", "title": "Small", "dtype": "float32", "parameters_b": 0.001, "vram_gb": 0.1}
CARD = ModelCard.model_validate(FIELDS)


@pytest.fixture
def ship(tmp_path, monkeypatch):
    """Ships files, path -> text, as the model's."""
    monkeypatch.setenv("LOCAL_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(shipped, "weights_dir", lambda: tmp_path)

    def lay(files):
        entries = {}
        for path, text in files.items():
            file = tmp_path / "kept" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            entries[path] = {"file": f"kept/{path}", "sha256": hashlib.sha256(text.encode()).hexdigest()}
        (tmp_path / shipped.INDEX).write_text(json.dumps({CARD.name: entries}))
        return tmp_path / "kept"

    return lay


def test_another_release_of_a_model_is_not_taken_from_the_cache(ship):
    """Which one is served is a matter of the files, not of a name or of a number that somebody has to raise."""
    ship({"config.json": "{}", "part/model.safetensors": "one"})
    first = resolve(CARD)
    assert resolve(CARD) == first
    ship({"config.json": "{}", "part/model.safetensors": "two"})
    second = resolve(CARD)
    assert [(folder / "part" / "model.safetensors").read_text() for folder in (first, second)] == ["one", "two"]


def test_a_changed_file_is_refused_and_nothing_is_left(ship, tmp_path):
    folder = ship({"config.json": "{}"})
    (folder / "config.json").write_text("{ }")
    with pytest.raises(WeightsError, match="has changed: check out the repository again"):
        resolve(CARD)
    (folder / "config.json").unlink()
    with pytest.raises(WeightsError, match="is missing: check out the repository again"):
        resolve(CARD)
    assert list((tmp_path / "cache" / "models").iterdir()) == []
    (tmp_path / shipped.INDEX).write_text("{}")
    with pytest.raises(WeightsError, match="has no model mini-something"):
        resolve(CARD)
