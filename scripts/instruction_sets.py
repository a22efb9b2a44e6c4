"""How far scores of metrics differ between instruction sets of the CPU: each set in a fresh process, on this machine.

    .venv/bin/python scripts/instruction_sets.py [--metrics NAME,…] [--out FILE]

A set is a few environment variables that libraries read when they are loaded (torch, oneDNN, MKL, OpenBLAS, NumPy,
OpenCV, glibc). They can only take away: sets above what this CPU has are left out. Printed for each metric: the largest
relative difference of a score to the unrestricted process, and the image that it is of. Networks are the small ones.
MKL also chooses by the vendor of the CPU, which no variable changes; so the spread between vendors can be larger.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

_AVX512 = "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR"
_BELOW = "SSSE3 SSE41 POPCNT SSE42 AVX F16C FMA3 AVX2"
_NO_AVX512 = "-AVX512F,-AVX512VL,-AVX512BW,-AVX512DQ,-AVX512CD"
SETS = {
    "avx512": {"ATEN_CPU_CAPABILITY": "avx512"},
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "NPY_DISABLE_CPU_FEATURES": _AVX512,
        "OPENCV_CPU_DISABLE": "AVX512-SKX",
        "OPENBLAS_CORETYPE": "Haswell",
        "GLIBC_TUNABLES": f"glibc.cpu.hwcaps={_NO_AVX512}",
    },
    "default": {
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_CBWR": "COMPATIBLE",
        "NPY_DISABLE_CPU_FEATURES": f"{_AVX512} {_BELOW}",
        "OPENCV_CPU_DISABLE": "AVX512-SKX,AVX2,FP16,AVX,SSE4.2,SSE4.1",
        "OPENBLAS_CORETYPE": "Nehalem",
        "GLIBC_TUNABLES": f"glibc.cpu.hwcaps={_NO_AVX512},-AVX2,-FMA,-AVX",
    },
}
"""What each library is to leave unused, by torch's name of the set."""
_CAPABILITY = {"DEFAULT": 0, "AVX2": 1, "AVX512": 2}
HOST = ["colorfulness", "entropy", "l1_aligned", "l1_canny", "l1_colorize", "l1_raw", "piqe", "psnr", "ssim"]
HOST += ["ssim_aligned"]
FITTED = ["brisque:tiny-brisque", "niqe:tiny-niqe"]
NETWORKS = [
    *("aes_v2.5:tiny-aesthetic", "clip_cap:tiny-clip", "clip_src:tiny-clip", "clipiqa:tiny-clipiqa"),
    *("dino_ref:tiny-dinov2", "face_ref:tiny-faces", "l1_depth:tiny-depth", "l1_pose:tiny-pose"),
    *("hps_v2.1:tiny-hps", "image_reward:tiny-image-reward", "pick_score:tiny-pick-score"),
    *("laion_aes:tiny-laion", "lpips:tiny-lpips", "musiq:tiny-musiq", "nima:tiny-nima", "style_ref:tiny-csd"),
]
SIZE = (256, 224)


def sets_here() -> dict[str, dict[str, str]]:
    """The sets that are less than what this CPU has: elsewhere a process would say the same as without them."""
    import torch

    here = _CAPABILITY.get(torch.backends.cpu.get_cpu_capability(), -1)
    return {name: settings for name, settings in SETS.items() if _CAPABILITY[name.upper()] < here}


def environment(settings: dict[str, str]) -> dict[str, str]:
    """That of a process of a set. NumPy warns of features that it is to disable and the CPU lacks, so they are left."""
    told = dict(os.environ) | settings
    if "NPY_DISABLE_CPU_FEATURES" in told:
        from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

        wanted = told["NPY_DISABLE_CPU_FEATURES"].split()
        there = [name for name in wanted if name in __cpu_dispatch__ and __cpu_features__.get(name)]
        told["NPY_DISABLE_CPU_FEATURES"] = " ".join(there)
    return told


def scores(names: list[str], folder: Path) -> dict[str, dict[str, float | str]]:
    """Each metric's score of each image against its source, by name and image; a reason where there is none."""
    import numpy as np
    import torch
    from PIL import Image, ImageFilter

    from local_bench.core.environment import quiet_libraries
    from local_bench.judges.metrics.base import (
        HostMetric,
        ImageFile,
        LoadedSubject,
        Metric,
        NetworkMetric,
        Subject,
        Unscorable,
    )
    from local_bench.judges.metrics.registry import make_metric

    quiet_libraries()
    torch.set_num_threads(1)
    random = np.random.default_rng(0)

    def smooth(cells: int) -> Image.Image:
        small = random.integers(0, 256, (cells, cells, 3), dtype=np.uint8)
        return Image.fromarray(small).resize(SIZE, Image.Resampling.BICUBIC)

    def grainy(image: Image.Image) -> Image.Image:
        grain = random.normal(0, 8, (SIZE[1], SIZE[0], 3))
        return Image.fromarray((np.asarray(image) + grain).clip(0, 255).astype(np.uint8))

    def blurred(image: Image.Image) -> Image.Image:
        return image.filter(ImageFilter.GaussianBlur(2))

    drawn = smooth(8).quantize(12, dither=Image.Dither.NONE).convert("RGB")  # flat regions with sharp edges
    images = [("drawn", drawn), ("smooth", smooth(20)), ("grainy", grainy(smooth(12)))]
    images.append(("grey", grainy(smooth(12)).convert("L").convert("RGB")))
    for name, image in images:
        image.save(folder / f"{name}.png")
        blurred(image).save(folder / f"{name}-source.png")

    def one(metric: Metric, subject: Subject) -> float | str:
        try:
            if isinstance(metric, HostMetric):
                return metric.measure(LoadedSubject(subject))
            assert isinstance(metric, NetworkMetric)
            network = metric.network
            inputs = [([p.load() for p in one.images], one.text) for one in metric.inputs(subject)]
            return float(metric.value([network.run([network.prepare(*given)])[0] for given in inputs]))
        except Unscorable as e:
            return str(e)

    found: dict[str, dict[str, float | str]] = {}
    for name in names:
        metric = make_metric(name)
        if isinstance(metric, NetworkMetric):
            metric.network.open("cpu")
        found[name] = {}
        for shown, _ in images:
            source = ImageFile(folder / f"{shown}-source.png")
            subject = Subject(shown, ImageFile(folder / f"{shown}.png"), source, None, (source,), "a blue mug")
            found[name][shown] = one(metric, subject)
    return found


def spread(names: list[str]) -> dict[str, dict[str, list[object]]]:
    """By metric and set: the largest relative difference of a score to the unrestricted process, and its image."""
    found = {}
    for set_name, settings in {"": {}, **sets_here()}.items():
        command = [sys.executable, __file__, "--here", "--metrics", ",".join(names)]
        done = subprocess.run(command, env=environment(settings), stdout=subprocess.PIPE, check=True)
        found[set_name] = json.loads(done.stdout)
    usual = found.pop("")
    return {
        name: {
            set_name: max([difference(usual[name][shown], own[name][shown]), shown] for shown in usual[name])
            for set_name, own in found.items()
        }
        for name in names
    }


def difference(one: float | str, other: float | str) -> float:
    """Relative, of two scores; infinite where only one is a number."""
    if isinstance(one, str) or isinstance(other, str):
        return 0.0 if one == other else float("inf")
    return abs(one - other) / max(abs(one), abs(other), 1e-300)


def main() -> None:
    from local_bench.judges.metrics.pyiqa_cards import FORMULAS

    everything = HOST + [f"pyiqa:{name}" for name in sorted(FORMULAS)] + FITTED + NETWORKS
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--metrics", default=",".join(everything))
    parser.add_argument("--here", action="store_true", help="only: the scores in this process")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    names = given.metrics.split(",")
    if given.here:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(scores(names, Path(folder))))
        return
    found = json.dumps(spread(names), indent=2)
    print(found)
    if given.out:
        given.out.write_text(found + "\n")


if __name__ == "__main__":
    main()
