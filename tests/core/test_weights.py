import os

import pytest

from local_bench.core.cards import card
from local_bench.core.errors import WeightsError
from local_bench.core.weights import check_here, resolve, weights_digest


@pytest.fixture
def pipeline(tmp_path):
    for name in ("model_index.json", "transformer/config.json", "transformer/model.safetensors"):
        path = tmp_path / "model" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path / "model"


def test_the_digest_is_of_what_is_loaded_and_nothing_else(pipeline):
    before = weights_digest(pipeline)
    (pipeline / "README.md").write_text("words")
    (pipeline / "whole-model-again.safetensors").write_text("the same once more")
    (pipeline / "transformer" / "old.bin").write_text("a pickle")
    assert weights_digest(pipeline) == before
    weights = pipeline / "transformer" / "model.safetensors"
    weights.write_text("model.safetensors, but other words")
    assert weights_digest(pipeline) != before


def test_a_change_of_the_same_length_is_seen(pipeline):
    before = weights_digest(pipeline)
    weights = pipeline / "transformer" / "model.safetensors"
    stat = weights.stat()
    weights.write_text("TRANSFORMER/model.safetensors")
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1_000_000))
    assert weights_digest(pipeline) != before


def test_pickles_alone_are_refused(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02")
    with pytest.raises(WeightsError, match="only that format is loaded"):
        weights_digest(tmp_path)


def test_what_is_not_here_says_how_to_get_it():
    with pytest.raises(WeightsError, match="local-bench models fetch flux1-dev"):
        check_here(card("flux1-dev", "generator"))
    with pytest.raises(WeightsError, match="are not at /nowhere"):
        resolve(card("tiny-flux", "generator"), "/nowhere")


@pytest.mark.parametrize(
    ("name", "role"), [("tiny-flux", "generator"), ("tiny-qwen3-vl", "judge"), ("tiny-clip", "metric")]
)
def test_a_small_model_is_the_same_whenever_it_is_built(name, role, tmp_path, monkeypatch):
    digests = set()
    for i in range(2):
        monkeypatch.setenv("LOCAL_BENCH_CACHE", str(tmp_path / str(i)))
        folder = resolve(card(name, role))
        digests.add(weights_digest(folder))
        assert str(tmp_path) not in "".join(p.read_text("utf-8") for p in folder.rglob("*.json"))
    assert len(digests) == 1
