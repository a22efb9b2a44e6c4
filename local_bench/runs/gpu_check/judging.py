"""Checks of a small judge with each transport. Imports jsonschema; needs xgrammar and accelerate, or vLLM."""

import importlib.util
import math
import time

import jsonschema  # noqa: F401  # what the judge needs is an error of this import
import torch
from PIL import Image

from local_bench.core.images import pixel_digest
from local_bench.core.types import Question
from local_bench.judges.vlm.judge import answers
from local_bench.judges.vlm.protocols import Protocol
from local_bench.judges.vlm.vllm_process import unusable_vllm
from local_bench.runs.config import JudgeConfig
from local_bench.runs.gpu_check.checks import MEMORY_GB, CheckFailed, CheckPassed, CheckSkipped, Session
from local_bench.runs.gpu_check.models import noise
from local_bench.runs.judge_factory import JudgeDevice, JudgeOrder, judge_spec, open_judge
from local_bench.runs.progress import Quiet

JUDGE = "mini-judge"
_N_IMAGES = 16
_POINTS = ("It is night", "There is a boot", "The ground is white", "Two greens are used")


def check_judge(transport: str, session: Session) -> CheckPassed:
    """Check a small trained judge with one transport: throughput and batch invariance."""
    needed = ("xgrammar", "accelerate") if transport == "local" else ()
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise CheckSkipped(f"{' and '.join(missing)} not installed")
    if transport != "local" and (fault := unusable_vllm(session.on_gpu)):
        raise CheckSkipped(fault)
    protocol: Protocol = "logit" if transport == "local" else "json"
    pending, images = questions()
    left_s, device = session.left_s, JudgeDevice.of(session.device)
    config = JudgeConfig(
        card=JUDGE, protocol=protocol, transport=transport, start_timeout_s=left_s, request_timeout_s=left_s
    )
    most_gb = min(torch.cuda.mem_get_info(session.device)[0] / 1e9, MEMORY_GB) / 2 if session.on_gpu else math.inf
    spec, log = judge_spec(config, device), session.scratch / f"judge-{transport}.log"
    order = JudgeOrder(config, spec, [question for _, question in pending], images.__getitem__, log, Quiet(), most_gb)
    begun = time.perf_counter()
    with open_judge(order, [device]) as judge:
        start_s = time.perf_counter() - begun
        dict(answers(judge, spec, pending[:4]))  # warm up kernels and grammars
        begun = time.perf_counter()
        together = dict(answers(judge, spec, pending))
        seconds = time.perf_counter() - begun
        alone = dict(answers(judge, spec, pending[:: len(_POINTS)], 1))
    unscored = [verdict.unscored for verdict in together.values() if verdict.unscored]
    changed = [key for key, verdict in alone.items() if verdict.answer != together[key].answer]
    figures = {
        "card": JUDGE,
        "protocol": protocol,
        "start_s": round(start_s, 2),
        "questions": len(pending),
        "questions_per_s": round(len(pending) / seconds, 2),
        "compared_alone": len(alone),
        "changed": len(changed),
    }
    text = f"{JUDGE}, {protocol}: {len(pending) / seconds:.1f} questions/s, started in {start_s:.1f} s"
    if unscored:
        raise CheckFailed(f"{text}; {len(unscored)} answers are unscored: {unscored[0]}", figures)
    if changed:
        raise CheckFailed(f"{text}; {len(changed)} of {len(alone)} answers change in a batch", figures)
    return CheckPassed(f"{text}; {len(alone)} answers are the same alone and in a batch", figures)


def questions() -> tuple[list[tuple[tuple[int, int], Question]], dict[str, Image.Image]]:
    """Four questions about each of several noise images, and the images by digest."""
    pending, images = [], {}
    for i in range(_N_IMAGES):
        image = noise(i, 64)
        sha = pixel_digest(image)
        images[sha] = image
        for k, point in enumerate(_POINTS):
            slots = (("title", "A poster"), ("brief", "A poster for a mountain hut."), ("point", point))
            pending.append(((i, k), Question("brf", k, (sha,), slots, ("delivered",))))
    return pending, images
