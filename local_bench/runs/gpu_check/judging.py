"""A small judge by each way that one can run. Imports jsonschema; needs xgrammar and accelerate, or vLLM."""

import importlib.util
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from PIL import Image

from local_bench.core.images import pixel_digest
from local_bench.core.types import Question
from local_bench.generators.numerics import device_name
from local_bench.judges.vlm.composer import Composer
from local_bench.judges.vlm.flags import Engine, vllm_version
from local_bench.judges.vlm.judge import JudgeSpec
from local_bench.judges.vlm.protocols import Protocol
from local_bench.judges.vlm.transport import Transport, answers
from local_bench.judges.vlm.variants import rubrics_of
from local_bench.models.cards import ModelCard, card
from local_bench.models.gpus import gpu_of
from local_bench.models.weights import resolve
from local_bench.runs.device import Place
from local_bench.runs.gpu_check.checks import MEMORY_GB, CheckFailed, CheckSkipped, Found, Session
from local_bench.runs.gpu_check.models import noise

JUDGE = "mini-judge"
_PICTURES = 16
_POINTS = ("It is night", "There is a boot", "The ground is white", "Two greens are used")
_CONTEXT = 4096


def check_judge(transport: str, session: Session) -> Found:
    """A small trained judge by one transport: throughput, and whether company changes an answer."""
    _require(("xgrammar", "accelerate") if transport == "local" else ())
    if transport != "local" and vllm_version() is None:
        raise CheckSkipped("vLLM is not installed")
    described = card(JUDGE, "judge")
    protocol: Protocol = "logit" if transport == "local" else "json"
    asked, pictures = questions()
    spec = JudgeSpec(
        card=described.name,
        weights_sha256="",
        dtype=described.dtype if session.on_gpu else "float32",
        max_pixels=described.judge_max_pixels,
        patch=described.patch,
        seed=0,
        protocol=protocol,
        min_pixels=described.judge_min_pixels,
        rubrics=rubrics_of(described),
    )
    composer = Composer(pictures.__getitem__, described.patch)
    begun = time.perf_counter()
    with _opened(transport, session, described, spec, composer) as judge:
        start_s = time.perf_counter() - begun
        dict(answers(judge, spec, asked[:4]))  # kernels and grammars are made at first use
        begun = time.perf_counter()
        together = dict(answers(judge, spec, asked))
        seconds = time.perf_counter() - begun
        alone = dict(answers(judge, spec, asked[:: len(_POINTS)], 1))
    unread = [verdict.unscored for verdict in together.values() if verdict.unscored]
    changed = [key for key, verdict in alone.items() if verdict.answer != together[key].answer]
    figures = {
        "card": described.name,
        "protocol": protocol,
        "start_s": round(start_s, 2),
        "questions": len(asked),
        "questions_per_s": round(len(asked) / seconds, 2),
        "compared_alone": len(alone),
        "changed": len(changed),
    }
    words = f"{described.name}, {protocol}: {len(asked) / seconds:.1f} questions/s, started in {start_s:.1f} s"
    if unread:
        raise CheckFailed(f"{words}; {len(unread)} answers cannot be read: {unread[0]}", figures)
    if changed:
        raise CheckFailed(f"{words}; {len(changed)} of {len(alone)} answers change in a batch", figures)
    return Found(f"{words}; {len(alone)} answers are the same alone and in a batch", figures)


def questions() -> tuple[list[tuple[tuple[int, int], Question]], dict[str, Image.Image]]:
    """Four questions about each of a few pictures of noise, and the pictures by their digests."""
    asked, pictures = [], {}
    for i in range(_PICTURES):
        image = noise(i, 64)
        sha = pixel_digest(image)
        pictures[sha] = image
        for k, point in enumerate(_POINTS):
            slots = (("title", "A poster"), ("brief", "A poster for a mountain hut."), ("point", point))
            asked.append(((i, k), Question("brf", k, (sha,), slots, ("delivered",))))
    return asked, pictures


@contextmanager
def _opened(
    transport: str, session: Session, described: ModelCard, spec: JudgeSpec, composer: Composer
) -> Iterator[Transport]:
    weights = resolve(described)
    if transport == "local":
        from local_bench.judges.vlm.local import Local

        with Local(weights, composer.prepared, str(session.device), spec.dtype, 8) as local:
            yield local
        return
    from local_bench.judges.vlm.child import Child
    from local_bench.judges.vlm.client import Client
    from local_bench.judges.vlm.embedded import Embedded
    from local_bench.judges.vlm.server import ManagedServer

    engine = _engine(session, weights, spec)
    child = Child(session.scratch / f"judge-{transport}.log")
    patience_s = max(60.0, session.left_s)
    judge: Transport = (
        Embedded(engine, child, composer, patience_s, patience_s)
        if transport == "embedded"
        else Client(ManagedServer(engine, child, patience_s), composer, None, patience_s)
    )
    with judge:
        yield judge


def _engine(session: Session, weights: Path, spec: JudgeSpec) -> Engine:
    if not session.on_gpu:
        return Engine(weights, spec.dtype, _CONTEXT, 2, max_pixels=spec.max_pixels)
    free, total = torch.cuda.mem_get_info(session.device)
    place = Place(device_name(session.device), session.device.index)
    known = gpu_of(place.device)
    usual = Engine(weights, spec.dtype, _CONTEXT, 2)
    return Engine(
        weights,
        spec.dtype,
        _CONTEXT,
        images=2,
        max_pixels=spec.max_pixels,
        gpu=session.device.index,
        memory_share=min(0.5 * free, MEMORY_GB * 1e9 / 2) / total,
        batched_tokens=known.judge_batched_tokens if known else usual.batched_tokens,
        sequences=known.judge_sequences if known else usual.sequences,
        batch_invariant=place.batch_invariant,
    )


def _require(modules: tuple[str, ...]) -> None:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise CheckSkipped(f"{' and '.join(missing)} not installed")
