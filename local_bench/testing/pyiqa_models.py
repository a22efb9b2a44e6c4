"""Small replacements of the files that pyiqa downloads: its own classes with seeded random weights.

A folder has the form of a fetched one, so pyiqa's loading is tested as with the published files. The weights are
amplified, so that a score depends on the image.
"""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from local_bench.judges.metrics.pyiqa_store import HUB, Store, file_name, local_files, seeded
from local_bench.models.cards import ModelCard
from local_bench.models.convert import converted_name, write_converted
from local_bench.models.shipped import amplify

_OWN = f"{HUB}/chaofengc/IQA-PyTorch-Weights/resolve/main"
_CLIP = "https://openaipublic.azureedge.net/clip/models"
_RN50 = f"{_CLIP}/afeb0e10f9e5a86da6080e35cf09123aca3b358a0c3e3b6c78a7b63bc04b6762/RN50.pt"
_MUSIQ = {"hidden_size": 48, "mlp_dim": 96, "num_heads": 3, "num_layers": 2, "longer_side_lengths": [64, 96]}
_BACKBONE = "mobilenetv3_small_050"
_NIMA = f"{_OWN}/tiny-nima.pth"
_HEADER_BYTES = 116
"""Size of the text header of a MATLAB file, which includes the time of writing."""


def build(folder: Path, card: ModelCard) -> None:
    """Fills `folder` for the card tiny-NAME of pyiqa's metric NAME."""
    metric = card.name.removeprefix("tiny-")
    options, files = _RECIPES[metric]
    paths = {url: converted_name(file_name(url)) for url in files}
    for url, write in files.items():
        with seeded():
            write(folder / paths[url])
    Store(metric, folder, options, dict(paths)).write(folder)


def _musiq(path: Path) -> None:
    with local_files("MUSIQ", {}):
        from pyiqa.archs.musiq_arch import MUSIQ

        model = MUSIQ(pretrained=False, **_MUSIQ)
    amplify(model, {"": 1.5, "head": 20})
    write_converted(model.state_dict(), path)


def _backbone(path: Path) -> None:
    import timm
    from safetensors.torch import save_file

    model = timm.create_model(_BACKBONE, pretrained=False)
    save_file(model.state_dict(), path)


def _nima(path: Path) -> None:
    import timm

    base: Any = timm.create_model(_BACKBONE, pretrained=False, features_only=True)
    amplify(base, {"": 1.15})
    head = torch.nn.Linear(base.feature_info.channels()[-1], 10)
    state = {f"base_model.{name}": tensor for name, tensor in base.state_dict().items()}
    state |= {f"classifier.2.{name}": tensor for name, tensor in head.state_dict().items()}
    write_converted({"params": state}, path)


def _clip(path: Path) -> None:
    """A CLIP like RN50, in OpenAI's layout and in float16."""
    with local_files("CLIPIQA", {}):
        from pyiqa.archs.clip_model import CLIP, convert_weights

        model = CLIP(64, 64, (1, 1, 1, 1), 8, None, 77, 49408, 64, 1, 2)
        amplify(model, {"visual": 2})
        convert_weights(model)
    write_converted(model.state_dict(), path)


def _squeezenet(path: Path) -> None:
    import torchvision

    write_converted(torchvision.models.squeezenet1_1(weights=None).state_dict(), path)


def _lpips(path: Path) -> None:
    channels = (64, 128, 256, 384, 384, 512, 512)
    write_converted({f"lin{i}.model.1.weight": torch.rand(1, n, 1, 1) for i, n in enumerate(channels)}, path)


def _brisque(path: Path) -> None:
    write_converted((torch.randn(32) * 200, torch.rand(32, 36) * 2 - 1), path)


def _niqe(path: Path) -> None:
    random = np.random.default_rng(0)
    spread = random.normal(size=(36, 36)) / 6
    parameters = {"mu_prisparam": random.random((1, 36)), "cov_prisparam": spread @ spread.T + 0.1 * np.eye(36)}
    importlib.import_module("scipy.io").savemat(path, parameters)
    with path.open("r+b") as file:
        file.write(b"MATLAB 5.0 MAT-file".ljust(_HEADER_BYTES))


_Write = Callable[[Path], None]
_RECIPES: dict[str, tuple[dict[str, Any], dict[str, _Write]]] = {
    "musiq": (_MUSIQ, {f"{_OWN}/musiq_koniq_ckpt-e95806b9.pth": _musiq}),
    "nima": (
        {"base_model_name": _BACKBONE, "pretrained_model_path": _NIMA},
        {
            f"{HUB}/timm/{_BACKBONE}.lamb_in1k/resolve/main/model.safetensors": _backbone,
            _NIMA: _nima,
        },
    ),
    "clipiqa": ({}, {_RN50: _clip}),
    "lpips": (
        {"net": "squeeze"},
        {
            "https://download.pytorch.org/models/squeezenet1_1-b8a52dc0.pth": _squeezenet,
            f"{_OWN}/LPIPS_v0.1_squeeze-4a5350f2.pth": _lpips,
        },
    ),
    "brisque": ({}, {f"{_OWN}/brisque_svm_weights.pth": _brisque}),
    "niqe": ({}, {f"{_OWN}/niqe_modelparameters.mat": _niqe}),
}
"""Options other than pyiqa's own; the functions that write the files, by URL."""
