"""Whether two processes make the same bytes, the first with an empty cache of compiled code, the second with its."""

import json
import os
import subprocess
import sys
from pathlib import Path

import local_bench
from local_bench.core.machine import toolchain
from local_bench.runs.gpu_check.attention import in_words, not_as_pinned
from local_bench.runs.gpu_check.checks import CheckFailed, CheckSkipped, Found, Session
from local_bench.runs.gpu_check.child import Made

FAMILY = "flux"
SIDE = 1008
SMALL_SIDE = 80
"""63 x 63 and 5 x 5 image tokens, and 512 of text: 8 does not divide their number, so inductor may pad the matrices."""


def check_processes(session: Session) -> Found:
    """The same digests from two fresh processes."""
    here, words = toolchain()
    if not here:
        raise CheckSkipped(words)
    cache = session.scratch / "inductor"
    cold, warm = _made(session, cache), _made(session, cache)
    figures = {
        "family": FAMILY,
        "side": SIDE if session.on_gpu else SMALL_SIDE,
        "cold_compile_s": round(cold.compile_s, 2),
        "warm_compile_s": round(warm.compile_s, 2),
        "attention": cold.attention,
        "kernels": [cold.kernels, warm.kernels],
        "latents_sha256": [cold.latents_sha256, warm.latents_sha256],
        "pixels_sha256": [cold.pixels_sha256, warm.pixels_sha256],
    }
    wrong = not_as_pinned(cold.attention, cold.kernels) or not_as_pinned(warm.attention, warm.kernels)
    times = f"compiled in {cold.compile_s:.1f} s, with a warm cache in {warm.compile_s:.1f} s"
    differing = [
        what for what in ("latents", "pixels") if getattr(cold, f"{what}_sha256") != getattr(warm, f"{what}_sha256")
    ]
    if differing:
        raise CheckFailed(f"{' and '.join(differing)} of two processes differ; {times}", figures)
    if wrong:
        raise CheckFailed(f"compiled: {wrong}; {times}", figures)
    return Found(f"two processes made the same bytes ({in_words(warm.kernels)}); {times}", figures)


def _made(session: Session, cache: Path) -> Made:
    side = SIDE if session.on_gpu else SMALL_SIDE
    source = str(Path(local_bench.__file__).resolve().parent.parent)
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH", "")])),
        "TORCHINDUCTOR_CACHE_DIR": str(cache),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
    }
    env.pop("TRITON_CACHE_DIR", None)  # then Triton's is below inductor's, and as empty
    command = [sys.executable, "-m", "local_bench.runs.gpu_check.child", FAMILY, str(session.device), str(side)]
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
