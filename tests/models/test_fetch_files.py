"""`models fetch` of single files from a Hub on loopback: those that a card names, and those that pyiqa requests."""

import importlib
from pathlib import Path

import torch

from local_bench.judges.metrics.pyiqa_store import COMMITS
from local_bench.models.convert import read_converted

from .hub import Hub, Repo
from .test_fetch import COMMIT, flip, lab, refused  # noqa: F401
from .test_pull import TREE, checkpoint


def test_only_the_files_that_a_card_names_come_from_the_hub_and_pickled_ones_are_converted(lab):  # noqa: F811
    lab.serve(
        "served",
        {"a.pth": checkpoint(TREE), "b.onnx": b"a graph of a network", "c.pth": b"never", "modeling.py": "code"},
    )
    lab.card("tiny-clip", source={"repo": "lab/served", "revision": COMMIT, "files": ["b.onnx", "a.pth"]})
    missing = lab.run("models", "show", "served")
    assert "b.onnx of served is not on this machine; its source is lab/served" in missing.stderr
    assert "local-bench models fetch served" in missing.stderr
    got = lab.fetched()["served"]
    assert set(got["manifest"]["files"]) == {"a.safetensors", "b.onnx"}
    assert [(o["url"], o["checked_by"]) for o in got["manifest"]["origins"]] == [
        (f"lab/served@{COMMIT}/b.onnx", "the Hub"),
        (f"lab/served@{COMMIT}/a.pth", "the Hub"),
    ]
    assert not [path for path in lab.hub.requests if path.endswith(("c.pth", ".py"))]
    assert got["revision"] == COMMIT
    folder = Path(got["folder"])
    assert torch.equal(read_converted(folder / "a.safetensors")["params"]["a"], torch.ones(2))
    lab.hub.__exit__()
    assert lab.show()["weights_sha256"] == got["weights_sha256"]
    assert "already on this machine" in lab.fetch().stderr
    flip(folder / "a.safetensors")
    assert "a.safetensors has changed since it was fetched" in lab.run("models", "show", "served").stderr
    lab.hub = Hub(lab.hub.repos)
    with lab.hub:
        assert lab.fetched()["served"]["weights_sha256"] == got["weights_sha256"]


def test_a_tokenizer_is_a_part_without_weights(lab):  # noqa: F811
    """As that of `image-reward`: its digest counts, and the model itself still needs weights."""
    lab.serve("served", {"a.onnx": b"a graph"})
    lab.serve("words", {"vocab.txt": "[PAD]\n[UNK]\n", "model.safetensors": b"never"})
    source = {"repo": "lab/served", "revision": COMMIT, "files": ["a.onnx"]}
    words = {"repo": "lab/words", "revision": COMMIT, "files": ["vocab.txt"]}
    lab.card("tiny-image-reward", source=source, parts={"tokenizer": words})
    got = lab.fetched()["served"]
    assert set(got["manifest"]["parts"]["tokenizer"]["files"]) == {"vocab.txt"}
    assert lab.show()["weights_sha256"] == got["weights_sha256"]
    assert not [path for path in lab.hub.requests if path.endswith("model.safetensors")]


def test_a_file_that_the_repository_lacks_and_one_of_another_digest_are_refused(lab):  # noqa: F811
    lab.serve("served", {"a.pth": checkpoint(TREE)})
    for change, message in (
        ({"files": ["b.pth"]}, "lab/served has no file b.pth"),
        ({"files": ["a.pth"], "sha256": {"a.pth": "0" * 64}}, "a.pth is not the file that served expects"),
    ):
        lab.card("tiny-clip", source={"repo": "lab/served", "revision": COMMIT} | change)
        refused(lab.fetch(), message)
    assert not lab.show()["here"]


def test_files_of_a_pyiqa_metric_are_fetched_converted_and_pinned(lab):  # noqa: F811
    """BRISQUE: one small pickled file in pyiqa's own repository."""
    for metric in ("brisque", "cnniqa"):  # their addresses are made at import, with the Hub that is set then
        importlib.import_module(f"pyiqa.archs.{metric}_arch")

    commit = COMMITS["chaofengc/IQA-PyTorch-Weights"]
    support = (torch.randn(8) * 100, torch.rand(8, 36))
    folder = lab.place / "weights"
    folder.mkdir()
    (folder / "brisque_svm_weights.pth").write_bytes(checkpoint(support))
    (folder / "CNNIQA_koniq10k-e6f14c91.pth").write_bytes(checkpoint({"params": TREE}))
    lab.hub.repos["chaofengc/IQA-PyTorch-Weights"] = Repo(folder, commit)
    refused(
        lab.fetch("pyiqa:brisque", "pyiqa:cnniqa"),
        "CNNIQA_koniq10k-e6f14c91.pth is not the file that pyiqa:cnniqa expects",
    )
    lab.hub.__exit__()
    got = lab.show("pyiqa:brisque")
    assert got["here"]
    (origin,) = got["manifest"]["origins"]
    assert origin["url"] == f"chaofengc/IQA-PyTorch-Weights@{commit}/brisque_svm_weights.pth"
    assert set(got["manifest"]["files"]) == {"brisque_svm_weights.safetensors", "pyiqa.json"}
    assert got["manifest"]["weights_sha256"] == got["weights_sha256"]
    back = read_converted(Path(got["folder"]) / "brisque_svm_weights.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(back, support, strict=True))
