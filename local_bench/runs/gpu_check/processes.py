"""Whether processes make the same bytes: one with an empty cache of compiled code, one with the first one's, and one on
each other GPU of the same kind with an empty cache, as the workers of a run are."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from local_bench.core import version
from local_bench.core.machine import toolchain
from local_bench.runs.gpu_check.attention import in_words, not_as_pinned
from local_bench.runs.gpu_check.checks import CheckFailed, CheckSkipped, Found, Session
from local_bench.runs.gpu_check.child import Made

FAMILY = "flux"
SIDE = 1008
SMALL_SIDE = 80
"""63 x 63 and 5 x 5 image tokens, and 512 of text: 8 does not divide their number, so inductor may pad the matrices."""


def check_processes(session: Session) -> Found:
    """The same digests from all fresh processes."""
    here, words = toolchain()
    if not here:
        raise CheckSkipped(words)
    cache = session.scratch / "inductor"
    cold, warm = _made(session, cache, session.device), _made(session, cache, session.device)
    others = same_gpus(session.device)
    with ThreadPoolExecutor(max(1, len(others))) as pool:
        caches = [session.scratch / f"inductor-{i}" for i in range(len(others))]
        elsewhere = list(pool.map(lambda own, device: _made(session, own, device), caches, others))
    every = [cold, warm, *elsewhere]
    digests = {
        "latents": [made.latents_sha256 for made in every],
        "pixels": [made.pixels_sha256 for made in every],
    }
    figures = {
        "family": FAMILY,
        "side": SIDE if session.on_gpu else SMALL_SIDE,
        "cold_compile_s": round(cold.compile_s, 2),
        "warm_compile_s": round(warm.compile_s, 2),
        "attention": cold.attention,
        "kernels": [made.kernels for made in every],
        "devices": [str(device) for device in (session.device, session.device, *others)],
        **{f"{what}_sha256": seen for what, seen in digests.items()},
    }
    wrong = next(filter(None, (not_as_pinned(made.attention, made.kernels) for made in every)), None)
    times = f"compiled in {cold.compile_s:.1f} s, with a warm cache in {warm.compile_s:.1f} s"
    differing = [what for what, seen in digests.items() if len(set(seen)) > 1]
    n = f"{len(every)} processes" + (f" on {1 + len(others)} GPUs" if others else "")
    if differing:
        raise CheckFailed(f"{' and '.join(differing)} of {n} differ; {times}", figures)
    if wrong:
        raise CheckFailed(f"compiled: {wrong}; {times}", figures)
    return Found(f"{n} made the same bytes ({in_words(warm.kernels)}); {times}", figures)


def same_gpus(device: torch.device) -> list[torch.device]:
    """The other GPUs of this machine with the same name; none for the CPU."""
    if device.type != "cuda":
        return []
    name = torch.cuda.get_device_name(device)
    return [
        torch.device("cuda", i)
        for i in range(torch.cuda.device_count())
        if i != (device.index or 0) and torch.cuda.get_device_name(i) == name
    ]


def _made(session: Session, cache: Path, device: torch.device) -> Made:
    side = SIDE if session.on_gpu else SMALL_SIDE
    source = str(Path(version.__file__).resolve().parents[2])
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH", "")])),
        "TORCHINDUCTOR_CACHE_DIR": str(cache),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
    }
    env.pop("TRITON_CACHE_DIR", None)  # then Triton's is below inductor's, and as empty
    command = [sys.executable, "-m", "local_bench.runs.gpu_check.child", FAMILY, str(device), str(side)]
    try:
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=max(60.0, session.left_s), check=False
        )
    except subprocess.TimeoutExpired as e:
        raise CheckFailed(f"a process was not done after {e.timeout:.0f} s") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CheckFailed(f"a process ended with status {done.returncode}: {last[:500]}")
    return Made(**json.loads(done.stdout.strip().splitlines()[-1]))
