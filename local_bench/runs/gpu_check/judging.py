"""Checks of a small judge with each transport. Imports jsonschema; needs xgrammar and accelerate, or vLLM."""

import importlib.util
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import jsonschema  # noqa: F401  # what the judge needs is an error of this import
import torch
from PIL import Image

from local_bench.core.images import pixel_digest
from local_bench.core.types import Question
from local_bench.judges.vlm.judge import JudgeSpec, Transport, answers
from local_bench.judges.vlm.protocols import Composer, Protocol
from local_bench.judges.vlm.vllm_process import Engine, vllm_version
from local_bench.models.cards import ModelCard, card
from local_bench.models.gpus import gpu_of
from local_bench.models.weights import resolve
from local_bench.runs.config import JudgeConfig
from local_bench.runs.gpu_check.checks import MEMORY_GB, CheckFailed, CheckPassed, CheckSkipped, Session
from local_bench.runs.gpu_check.models import noise
from local_bench.runs.judge_factory import JudgeDevice

JUDGE = "mini-judge"
_N_IMAGES = 16
_POINTS = ("It is night", "There is a boot", "The ground is white", "Two greens are used")
_CONTEXT = 4096


def check_judge(transport: str, session: Session) -> CheckPassed:
    """Check a small trained judge with one transport: throughput and batch invariance."""
    needed = ("xgrammar", "accelerate") if transport == "local" else ()
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise CheckSkipped(f"{' and '.join(missing)} not installed")
    if transport != "local" and vllm_version() is None:
        raise CheckSkipped("vLLM is not installed")
    described = card(JUDGE, "judge")
    protocol: Protocol = "logit" if transport == "local" else "json"
    pending, images = questions()
    config = JudgeConfig(card=JUDGE, protocol=protocol)
    spec = config.spec(described, "", described.dtype if session.on_gpu else "float32")
    composer = Composer(images.__getitem__, described.patch)
    begun = time.perf_counter()
    with _open_judge(transport, session, described, spec, composer) as judge:
        start_s = time.perf_counter() - begun
        dict(answers(judge, spec, pending[:4]))  # warm up kernels and grammars
        begun = time.perf_counter()
        together = dict(answers(judge, spec, pending))
        seconds = time.perf_counter() - begun
        alone = dict(answers(judge, spec, pending[:: len(_POINTS)], 1))
    unscored = [verdict.unscored for verdict in together.values() if verdict.unscored]
    changed = [key for key, verdict in alone.items() if verdict.answer != together[key].answer]
    figures = {
        "card": described.name,
        "protocol": protocol,
        "start_s": round(start_s, 2),
        "questions": len(pending),
        "questions_per_s": round(len(pending) / seconds, 2),
        "compared_alone": len(alone),
        "changed": len(changed),
    }
    text = f"{described.name}, {protocol}: {len(pending) / seconds:.1f} questions/s, started in {start_s:.1f} s"
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


@contextmanager
def _open_judge(
    transport: str, session: Session, described: ModelCard, spec: JudgeSpec, composer: Composer
) -> Iterator[Transport]:
    weights = resolve(described)
    if transport == "local":
        from local_bench.judges.vlm.local import Local

        with Local(weights, composer.prepared, str(session.device), spec.dtype, 8) as local:
            yield local
        return
    from local_bench.judges.vlm.client import Client, ManagedServer
    from local_bench.judges.vlm.embedded import Embedded
    from local_bench.judges.vlm.vllm_process import Child

    engine = _engine(session, weights, spec)
    child = Child(session.scratch / f"judge-{transport}.log")
    timeout_s = session.left_s
    judge: Transport = (
        Embedded(engine, child, composer, timeout_s, timeout_s)
        if transport == "embedded"
        else Client(ManagedServer(engine, child, timeout_s), composer, None, timeout_s)
    )
    with judge:
        yield judge


def _engine(session: Session, weights: Path, spec: JudgeSpec) -> Engine:
    engine = Engine(weights, spec.dtype, _CONTEXT, 2, {"max_pixels": spec.max_pixels})
    if not session.on_gpu:
        return engine
    free, total = torch.cuda.mem_get_info(session.device)
    judge_device = JudgeDevice.of(session.device)
    if gpu := gpu_of(judge_device.device):
        engine = replace(engine, batched_tokens=gpu.judge_batched_tokens, sequences=gpu.judge_sequences)
    return replace(
        engine,
        gpu=session.device.index,
        memory_share=min(0.5 * free, MEMORY_GB * 1e9 / 2) / total,
        attention=judge_device.attention(weights, spec.dtype),
    )
