import hashlib
import json
import os
import time

import pytest

from local_bench.core.errors import WeightsError
from local_bench.core.types import digest
from local_bench.models import manifest, shipped
from local_bench.models.cards import SHIPPED, ModelCard, card
from local_bench.models.weights import built, check_local, resolve, weights_digest


@pytest.fixture
def pipeline(tmp_path):
    for name in ("model_index.json", "transformer/config.json", "transformer/model.safetensors"):
        path = tmp_path / "model" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path / "model"


def test_the_digest_covers_the_loaded_files_only(pipeline):
    before = weights_digest(pipeline)
    (pipeline / "README.md").write_text("words")
    (pipeline / "whole-model-again.safetensors").write_text("the same once more")
    (pipeline / "transformer" / "old.bin").write_text("a pickle")
    (pipeline / "transformer" / "model.onnx").write_text("the same weights for another runtime")
    assert weights_digest(pipeline) == before
    weights = pipeline / "transformer" / "model.safetensors"
    weights.write_text("model.safetensors, but other words")
    assert weights_digest(pipeline) != before


def test_digests_need_no_cache_that_can_be_written(pipeline, tmp_path, monkeypatch):
    time.sleep(0.1)
    before = weights_digest(pipeline)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "weights").write_text("where the folder would be")
    monkeypatch.setenv("LOCAL_BENCH_CACHE", str(tmp_path / "cache"))
    assert weights_digest(pipeline) == before


@pytest.mark.parametrize("later_ns", [1_000_000, 0])
def test_a_change_of_the_same_length_is_detected_even_with_a_restored_time(pipeline, monkeypatch, later_ns):
    weights = pipeline / "transformer" / "model.safetensors"
    time.sleep(0.1)  # so that the first reading is remembered
    before = weights_digest(pipeline)
    with monkeypatch.context() as patch:
        patch.setattr(manifest, "file_sha256", pytest.fail)
        assert weights_digest(pipeline) == before
    stat = weights.stat()
    weights.write_text("TRANSFORMER/model.safetensors")
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns + later_ns))
    assert weights.stat().st_mtime_ns == stat.st_mtime_ns + later_ns
    assert weights_digest(pipeline) != before


def test_parts_count_in_the_digest_and_a_model_without_any_keeps_its_own(pipeline, tmp_path):
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "ip_adapter.safetensors").write_text("an adapter")
    files = [p for p in pipeline.rglob("*") if p.is_file()]
    expected = {p.relative_to(pipeline).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}
    alone = weights_digest(pipeline)
    assert weights_digest(pipeline, {}) == alone == digest(expected)
    assert len({alone, *(weights_digest(pipeline, {name: adapter}) for name in ("adapter", "other"))}) == 3


def test_graphs_are_weights_too_at_the_top_of_a_folder_and_pickles_alone_are_refused(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02")
    with pytest.raises(WeightsError, match="no other format is loaded"):
        weights_digest(tmp_path)
    (tmp_path / "detector.onnx").write_text("a graph")
    before = weights_digest(tmp_path)
    (tmp_path / "detector.onnx").write_text("another")
    assert weights_digest(tmp_path) != before


def test_missing_weights_name_the_fetch_command():
    with pytest.raises(WeightsError, match="local-bench models fetch flux1-dev"):
        check_local(card("flux1-dev", "generator"))
    with pytest.raises(WeightsError, match="/nowhere, the folder for the weights of"):
        resolve(card("tiny-flux", "generator"), "/nowhere")


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("tiny-flux", "generator"),
        ("tiny-qwen3-vl", "judge"),
        *((f"tiny-{name}", "metric") for name in ("clip", "nima", "niqe")),
    ],
)
def test_a_small_model_is_built_deterministically(name, role, tmp_path, monkeypatch):
    digests = set()
    for i in range(2):
        monkeypatch.setenv("LOCAL_BENCH_CACHE", str(tmp_path / str(i)))
        folder = resolve(card(name, role))
        digests.add(weights_digest(folder))
        assert str(tmp_path) not in "".join(p.read_text("utf-8") for p in folder.rglob("*.json"))
    assert len(digests) == 1


def test_a_model_that_two_processes_build_at_once_is_built(tmp_path, monkeypatch):
    described = card("tiny-niqe", "metric")
    real, folders = os.rename, []

    def second(source, target):
        """Another process renames its own folder just before."""
        if not folders:
            folders.append(target)
            folders.append(built(described))
        real(source, target)

    monkeypatch.setenv("LOCAL_BENCH_CACHE", str(tmp_path))
    monkeypatch.setattr(os, "rename", second)
    assert built(described) == folders[0] == folders[1]
    assert sorted(path.name for path in folders[0].parent.iterdir()) == [
        folders[0].name,
        f"{folders[0].name}.sizes.json",
    ]


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
