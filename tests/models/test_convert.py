"""Checkpoints become safetensors in a process that can do no harm."""

import argparse
import os
import pickle
import subprocess
import sys
import warnings
import zipfile
from collections import OrderedDict

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from local_bench.core.errors import WeightsError
from local_bench.models import convert_child
from local_bench.models.convert import convert, converted_name, read_converted


def converted(folder, value, **settings):
    """Saves a value as a checkpoint, converts it, and gives the path of what came out."""
    torch.save(value, folder / "c.pth", **settings)
    convert(folder / "c.pth", folder / "c.safetensors", "c.pth")
    return folder / "c.safetensors"


def test_containers_tensors_and_scalars_are_converted_and_other_safetensors_read_as_they_are(tmp_path):
    shared = torch.arange(6.0).reshape(2, 3)
    tree = {
        "params": OrderedDict(a=shared, b=shared.T, half=torch.ones(2, dtype=torch.float16), n=torch.tensor(3)),
        "epoch": 7,
        "lr": float("inf"),
        "name": "x",
        "more": [1, (None, True), {0: torch.zeros(0)}],
        "array": np.arange(3.0),
        "number": np.float64(0.5),
        "args": argparse.Namespace(seed=1),
        "head": torch.nn.Parameter(torch.ones(1)),
    }
    path = converted(tmp_path, tree)
    data, back = path.read_bytes(), read_converted(path)
    assert list(back["params"]) == ["a", "b", "half", "n"]
    for name, tensor in tree["params"].items():
        assert back["params"][name].dtype == tensor.dtype
        assert torch.equal(back["params"][name], tensor)
    assert (back["epoch"], back["lr"], back["name"], back["number"]) == (7, float("inf"), "x", 0.5)
    assert back["more"][:2] == [1, (None, True)]
    assert back["more"][2][0].shape == (0,)
    assert np.array_equal(back["array"], tree["array"])
    assert back["args"] == {"seed": 1}
    assert torch.equal(back["head"], torch.ones(1))
    assert set(load_file(path)) == {"array", "head", "more.2.0", *(f"params.{name}" for name in tree["params"])}
    # The old format, in another process: the same bytes.
    assert converted(tmp_path, tree, _use_new_zipfile_serialization=False).read_bytes() == data
    assert [converted_name(name) for name in ("a/body.pth", "model.onnx")] == ["a/body.safetensors", "model.onnx"]
    # A tuple of tensors: tests/models/test_fetch.py
    assert torch.equal(read_converted(converted(tmp_path, torch.ones(2))), torch.ones(2))
    save_file({"a.b": torch.ones(1)}, tmp_path / "x.safetensors")
    assert set(read_converted(tmp_path / "x.safetensors")) == {"a.b"}
    (tmp_path / "x.safetensors").write_bytes(b"cut")
    with pytest.raises(WeightsError, match="is damaged"):
        read_converted(tmp_path / "x.safetensors")


class Tower(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)
        self.norm = torch.nn.BatchNorm1d(2)
        self.scale = torch.nn.Parameter(torch.ones([]))
        self.plain = torch.full((2,), 5.0)
        self.sizes = [1, 2]

    def forward(self, x):
        return self.norm(self.linear(x)) * self.scale + self.plain + len(self.sizes)


def test_an_archive_of_torchscript_gives_what_its_own_loader_gives(tmp_path):
    """Of a scripted module; that of a traced one: tests/judges/metrics/test_pyiqa.py."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(Tower().half().float().eval()).save(tmp_path / "t.pt")
        expected = torch.jit.load(tmp_path / "t.pt").state_dict()
    convert(tmp_path / "t.pt", tmp_path / "t.safetensors", "t.pt")
    back = read_converted(tmp_path / "t.safetensors")
    assert list(back) == list(expected)
    assert "plain" not in back
    for name, tensor in expected.items():
        assert torch.equal(back[name], tensor)


class Runs:
    """A pickle that runs a program when it is read."""

    def __init__(self, mark) -> None:
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch {self.mark}",)


def refused(tmp_path, message):
    with pytest.raises(WeightsError) as refusal:
        convert(tmp_path / "c.pth", tmp_path / "c.safetensors", "lab/model: c.pth")
    sentence = str(refusal.value)
    assert sentence.startswith("lab/model: c.pth was not converted: ")
    assert message in sentence
    assert "\n" not in sentence
    assert not (tmp_path / "c.safetensors").exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    return sentence


@pytest.mark.parametrize("kind", ["new", "old", "plain", "torchscript"])
def test_a_pickle_with_code_is_refused_and_not_run(tmp_path, kind):
    mark, path = tmp_path / "mark", tmp_path / "c.pth"
    if kind == "plain":
        path.write_bytes(pickle.dumps(Runs(mark)))
    elif kind == "torchscript":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("c/constants.pkl", pickle.dumps(()))
            archive.writestr("c/data.pkl", pickle.dumps(Runs(mark)))
    else:
        torch.save({"a": torch.ones(1), "b": Runs(mark)}, path, _use_new_zipfile_serialization=kind == "new")
    refused(tmp_path, "" if kind == "plain" else "it uses posix.system")
    assert not mark.exists()
    if kind == "new":
        torch.load(path, weights_only=False)  # the way that we do not go
        assert mark.exists()


def test_a_truncated_or_unknown_file_is_an_error(tmp_path):
    path = tmp_path / "c.pth"

    def refused_when_read(message):  # as in the process, which the first one starts
        with pytest.raises(convert_child.Refused, match=message):
            convert_child.tree_of(*convert_child._read(torch, str(path)))

    torch.save({"a": torch.ones(1000)}, path)
    path.write_bytes(path.read_bytes()[:2000])
    refused(tmp_path, "it is damaged")
    path.write_bytes(b"<html>Not found</html>")
    refused_when_read("it is damaged")
    torch.save({"a": 1}, path)
    refused_when_read("it contains no tensor")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("c/data.pkl", bytes(50_000_000))
    refused_when_read("its uncompressed size is far larger")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import os\nos.abort()\n", "the conversion process exited with -6"),
        ("import os\nprint(sorted(os.environ))\nraise SystemExit(3)\n", "HOME"),
    ],
    ids=["it dies", "it tells its environment"],
)
def test_a_child_that_dies_is_an_error_and_it_receives_no_secrets(tmp_path, monkeypatch, code, message):
    torch.save({"a": torch.ones(1)}, tmp_path / "c.pth")
    monkeypatch.setenv("HF_TOKEN", "secret")
    child = tmp_path / "child.py"
    child.write_text(code)
    monkeypatch.setattr("local_bench.models.convert._CHILD", child)
    assert "TOKEN" not in refused(tmp_path, message)


@pytest.mark.parametrize(
    "does",
    [
        "import socket; socket.socket().connect(('127.0.0.1', 9))",
        "import subprocess; subprocess.run(['true'])",
        "import os; os.system('true')",
        "open('mark', 'w')",
        "import os; os.open('mark', os.O_CREAT | os.O_WRONLY)",
    ],
)
def test_the_child_can_only_read(tmp_path, does):
    code = f"import sys; sys.path.insert(0, {str(os.path.dirname(convert_child.__file__))!r})\n"
    code += f"import convert_child as c; c._cut_network(); sys.addaudithook(c._refuse_side_effects)\n{does}\n"
    command = [sys.executable, "-I", "-c", code]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "Refused: loading it " in ended.stderr
    assert not list(tmp_path.iterdir())
