"""The available pyiqa metrics, how their files are fetched, and that no change of global state is left behind."""

import shutil
import socket
import subprocess
import sys
import threading

import pytest
import torch
from pyiqa.default_model_configs import DEFAULT_CONFIGS

from local_bench.core.errors import ConfigError, WeightsError
from local_bench.judges.metrics.pyiqa_cards import FORMULAS, pyiqa_card
from local_bench.judges.metrics.pyiqa_store import Missing, Store, canonical, file_name, local_files, read_store
from local_bench.judges.metrics.registry import make_metric, metric_card
from local_bench.models.cards import card
from local_bench.models.weights import resolve

# Names and cards


def card_or_refusal(name):
    try:
        return pyiqa_card(name)
    except ConfigError as e:
        return e


def test_every_name_of_pyiqas_is_a_card_a_formula_or_refused_with_a_reason():
    cards = {name: card_or_refusal(name) for name in sorted(DEFAULT_CONFIGS)}
    refused = {name: str(end) for name, end in cards.items() if isinstance(end, ConfigError)}
    assert {name for name, end in cards.items() if end is None} == FORMULAS
    assert (len(refused), len(FORMULAS), len(cards)) == (16, 14, 106)
    assert all(f"metrics: pyiqa:{name} cannot be run here: " in reason for name, reason in refused.items())
    assert all(end.name == f"pyiqa:{name}" for name, end in cards.items() if end and name not in refused)


def test_a_card_is_made_without_importing_anything_heavy():
    code = "import sys; from local_bench.models.cards import card; c = card('pyiqa:musiq', 'metric'); print(c.name)\n"
    code += "print([m for m in ('torch', 'pyiqa', 'transformers', 'timm') if m in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.split("\n")[:2] == ["pyiqa:musiq", "[]"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pyiqa:mussiq", "did you mean 'pyiqa:musiq'?"),
        ("pyiqa:fid", "it compares two sets of images"),
        ("pyiqa:qalign", "such code is never run"),
        ("nima:tiny-musiq", "tiny-musiq has the weights of pyiqa's musiq, but nima:tiny-musiq needs nima"),
    ],
)
def test_an_invalid_name_is_an_error(name, message):
    with pytest.raises(ConfigError) as refusal:
        make_metric(name)
    assert message in str(refusal.value)


def test_a_missing_file_is_reported_with_its_url_and_the_fetch_command(tmp_path):
    for name in ("musiq_koniq", "pyiqa:topiq_nr"):
        with pytest.raises(WeightsError, match=f"models fetch {metric_card(name).name}`"):
            make_metric(name)
    shutil.copytree(resolve(card("tiny-nima", "metric")), tmp_path, dirs_exist_ok=True)
    (tmp_path / "tiny-nima.safetensors").unlink()
    missing = r"tiny-nima\.pth of pyiqa:nima is not on this machine; it comes from https://.*models fetch pyiqa:nima`"
    with pytest.raises(WeightsError, match=missing):
        read_store(tmp_path).load("pyiqa:nima")
    (tmp_path / "pyiqa.json").write_text("{}")
    with pytest.raises(WeightsError, match=r"pyiqa\.json is missing or damaged"):
        read_store(tmp_path)


def test_files_with_generic_names_are_named_by_their_repository(monkeypatch):
    for url, name in {
        "https://huggingface.co/timm/r50.a1/resolve/main/model.safetensors": "timm--r50.a1--model.safetensors",
        "https://huggingface.co/chaofengc/IQA-PyTorch-Weights/resolve/main/x%2By-1.pth": "x+y-1.pth",
        "https://download.pytorch.org/models/alexnet-owt-7be5be79.pth": "alexnet-owt-7be5be79.pth",
    }.items():
        assert file_name(url) == name
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "https://mirror.invalid")
    assert canonical("https://mirror.invalid/a/b/resolve/main/c") == "https://huggingface.co/a/b/resolve/main/c"
    assert canonical("https://other.invalid/a") == "https://other.invalid/a"


# The way in which the files are got


def traces():
    import clip.clip
    import pyiqa.archs.clip_model as clip_model
    import scipy.io
    import timm.models._builder as builder
    import timm.models._hub as hub
    import torchvision.models._api as api
    from pyiqa.utils import download_util

    functions = (torch.load, torch.jit.load, torch.hub.get_dir, torch.hub.download_url_to_file, scipy.io.loadmat)
    functions += (hub.hf_hub_download, clip.clip._download, clip.clip.load, clip_model.load, clip_model._download)
    functions += (api.load_state_dict_from_url, builder.load_state_dict_from_url, clip_model.get_dir)
    functions += (download_util.download_url_to_file, download_util.DEFAULT_CACHE_DIR, socket.socket.connect)
    return (*functions, socket.getaddrinfo, sys.stdout)


def test_nothing_is_left_behind(tmp_path):
    with local_files("MUSIQ", {}):
        pass
    before = traces()
    with local_files("MUSIQ", {}):
        during = traces()
    assert sum(a is not b for a, b in zip(before, during, strict=True)) > 10
    assert all(a is b for a, b in zip(before, traces(), strict=True))
    state = torch.get_rng_state()
    with pytest.raises(Missing):
        Store("musiq").build()
    assert all(a is b for a, b in zip(before, traces(), strict=True))
    assert torch.equal(state, torch.get_rng_state())


def test_no_other_file_is_read_and_no_socket_is_opened(tmp_path):
    torch.save({"a": torch.ones(1)}, tmp_path / "real.pth")
    with local_files("MUSIQ", {}):
        with pytest.raises(WeightsError, match="not in the store"):
            torch.load(tmp_path / "real.pth")
        with pytest.raises(WeightsError, match="open a network connection"):
            socket.create_connection(("127.0.0.1", 9))
        with pytest.raises(WeightsError, match="open a network connection"), socket.socket() as connection:
            connection.connect(("127.0.0.1", 9))
        elsewhere = []
        thread = threading.Thread(target=lambda: elsewhere.append(torch.load(tmp_path / "real.pth")))
        thread.start()
        thread.join()
        assert torch.equal(elsewhere[0]["a"], torch.ones(1))


@pytest.mark.slow
def test_pyiqa_requests_exactly_the_files_of_every_metric(monkeypatch):
    """Every class of pyiqa's that we take comes as far as its first file, or is made."""
    for drawn in ("normal_", "uniform_", "erfinv_"):  # two thirds of the time, for values that files would replace
        monkeypatch.setattr(torch.Tensor, drawn, lambda self, *_, **__: self)
    for name in sorted(DEFAULT_CONFIGS):
        end = card_or_refusal(name)
        if isinstance(end, ConfigError):
            continue
        if end is None:
            Store(name).build()
            continue
        with pytest.raises(Missing) as missing:
            Store(name).build()
        assert missing.value.url.startswith("https://")
