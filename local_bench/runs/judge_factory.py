"""Opens a judge of a config on the given devices: selects its transport and sets its engine's arguments."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from PIL import Image

from local_bench.core.environment import isolate, versions
from local_bench.core.errors import ConfigError, ServerError
from local_bench.core.types import Question
from local_bench.judges.vlm.client import Client, ExternalServer, ManagedServer, key_from
from local_bench.judges.vlm.embedded import Embedded
from local_bench.judges.vlm.judge import BUILT_IN, JudgeSpec, Served, Transport, plugged, plugin_numerics
from local_bench.judges.vlm.protocols import preparing
from local_bench.judges.vlm.replicas import Replicas
from local_bench.judges.vlm.rubrics import check_labels, check_words
from local_bench.judges.vlm.vllm_process import (
    Attention,
    Engine,
    Wanted,
    attention_for,
    is_recurrent,
    model_runner,
    require_vllm,
    unusable_vllm,
    vllm_version,
)
from local_bench.models.cards import ModelCard, card
from local_bench.models.gpus import gpu_of
from local_bench.models.weights import resolve, weights_digest
from local_bench.runs.config import EngineConfig, JudgeConfig
from local_bench.runs.progress import Progress

if TYPE_CHECKING:
    import torch

GB = 1_000_000_000
_RETURN_S = 15.0
"""Time allowed for the driver to release the memory of a process that ended."""
_SLACK_GB = 0.5
_CHILD_CONTEXT_GB = 1.5
"""Memory of the judge's process outside vLLM's share: the CUDA context (about 1.2 GB) and kernels loaded later."""


@dataclass(frozen=True)
class JudgeDevice:
    """A device on which a judge runs."""

    device: str
    """The device's name, as reported by its driver."""
    cuda_index: int | None
    capability: tuple[int, int] | None = None
    """The GPU's compute capability, if known; otherwise torch reports it."""

    @classmethod
    def of(cls, device: "torch.device") -> Self:
        from local_bench.generators.numerics import device_name

        return cls(device_name(device), device.index if device.type == "cuda" else None)

    @property
    def on_gpu(self) -> bool:
        return self.cuda_index is not None

    def attention(self, weights: Path, dtype: str, wanted: Wanted = "auto", backend: str | None = None) -> Attention:
        """`attention_for` this device."""
        capability = self.capability
        if self.cuda_index is not None and capability is None:
            import torch

            capability = torch.cuda.get_device_capability(self.cuda_index)
        return attention_for(weights, dtype, capability, wanted, backend)


def local_judge_devices(engine: EngineConfig) -> list[JudgeDevice]:
    """This machine's devices that `engine` selects, for judges; prepares this process for them. Imports torch."""
    isolate()
    from local_bench.generators.numerics import choose_devices, set_determinism

    set_determinism(engine.threads)
    return [JudgeDevice.of(device) for device in choose_devices(engine.device, engine.workers)]


def memory_gb(cuda_index: int) -> tuple[float, float]:
    """(free, total) memory of a GPU in decimal GB, over all processes."""
    import torch

    free, total = torch.cuda.mem_get_info(cuda_index)
    return free / GB, total / GB


@contextmanager
def reserve_memory(
    name: str, vram_gb: float, judge_devices: Sequence[JudgeDevice], progress: Progress, most_gb: float = math.inf
) -> Iterator[float]:
    """Release this process's cached GPU memory, yield the fraction of memory that vLLM may use (of at most `most_gb`),
    and check at the end that the judge's memory was released.

    ServerError if `vram_gb` is not free on each of `judge_devices`.
    """
    gpus = [judge_device.cuda_index for judge_device in judge_devices if judge_device.cuda_index is not None]
    if not gpus:
        yield 1.0
        return
    import torch

    torch.cuda.empty_cache()
    before = {gpu: memory_gb(gpu) for gpu in gpus}
    for gpu, (free, total) in before.items():
        if free < vram_gb:
            raise ServerError(
                f"{name} needs about {vram_gb:.0f} GB, but GPU {gpu} has {free:.1f} of {total:.0f} GB free: end other "
                "processes on it, or choose a smaller judge"
            )
    share = min(min(free - _CHILD_CONTEXT_GB, most_gb) / total for free, total in before.values())
    try:
        yield min(share, 0.92)
    finally:
        deadline = time.monotonic() + _RETURN_S
        unreleased = dict(before)
        while unreleased and time.monotonic() < deadline:
            unreleased = {gpu: was for gpu, was in unreleased.items() if memory_gb(gpu)[0] < was[0] - _SLACK_GB}
            if unreleased:
                time.sleep(0.25)
        for gpu, (free, _) in unreleased.items():
            lost = free - memory_gb(gpu)[0]
            with suppress(BrokenPipeError):
                progress.note(
                    f"{lost:.1f} GB of GPU {gpu} were not released when the judge ended: another process uses them"
                )


_ROUND = 1024
_SLOW_BYTES_PER_S = 100e6
Load = Callable[[str], Image.Image]


def transport_of(config: JudgeConfig, on_gpu: bool) -> str:
    """`served`, `embedded` or `local`: the config's transport, with `auto` resolved for a GPU or the CPU."""
    if config.transport != "auto":
        return config.transport
    if config.base_url is not None:
        return "served"
    return "local" if unusable_vllm(on_gpu) else "embedded"


def judge_spec(config: JudgeConfig, device: JudgeDevice) -> JudgeSpec:
    """The judge's spec, without what an external server serves. WeightsError if its weights are missing (an external
    server's need not be present)."""
    described = card(config.card, "judge")
    if config.base_url and not described.source.build and config.weights is None:
        weights = "external"
        native = device.on_gpu
    else:
        folder = resolve(described, config.weights)
        weights = weights_digest(folder)
        native = device.on_gpu or is_recurrent(folder)  # vLLM's linear attention on a CPU has no float32
    return config.spec(described, weights, described.dtype if native else "float32")


def attention_of(config: JudgeConfig, device: JudgeDevice) -> Attention | None:
    """How vLLM computes the judge's layers; None for a judge that vLLM does not run or that is managed elsewhere.
    ConfigError if what the config requires is impossible; ServerError if vLLM is missing or cannot serve the judge."""
    if config.base_url is not None:
        return None
    if (transport := transport_of(config, device.on_gpu)) not in ("embedded", "served"):
        if config.batch_invariant == "on" or config.attention_backend is not None:
            raise ConfigError(
                f"judge.batch_invariant and judge.attention_backend are settings of vLLM, and {config.label} has the "
                f"transport {transport}: leave them out, or set judge.transport=embedded"
            )
        return None
    require_vllm(device.on_gpu)
    described = card(config.card, "judge")
    wanted, backend = config.batch_invariant, config.attention_backend
    if device.on_gpu:
        wanted = described.batch_invariant if wanted == "auto" else wanted
        flags, flag = [text for arg in config.extra_args for text in arg.split("=", 1)], "--attention-backend"
        required = backend or (flags[flags.index(flag) + 1] if flag in flags else None)
        backend = required or described.attention_backend
    return device.attention(resolve(described, config.weights), described.dtype, wanted, backend)


def numerics_of(config: JudgeConfig, judge_devices: Sequence[JudgeDevice]) -> dict[str, Any]:
    """The judge's numerics signature on these devices; the software and hardware of an external server are unknown."""
    if config.base_url is not None:
        return {"server": "external"}
    device, transport = judge_devices[0], transport_of(config, judge_devices[0].on_gpu)
    attention = attention_of(config, device)
    if transport == "local":
        return {name: versions()[name] for name in ("torch", "transformers", "xgrammar")} | {"device": device.device}
    if attention is None:
        return plugin_numerics(transport) | {"device": device.device}
    signature = {"vllm": vllm_version(), "device": device.device, "batch_invariant": attention.batch_invariant}
    if device.on_gpu:
        signature |= {"attention_backend": attention.backend or "auto", "model_runner": model_runner()}
    gpus = len(_groups(judge_devices, card(config.card, "judge"))[0])
    return signature | ({"gpus": gpus} if gpus > 1 else {})


def external(config: JudgeConfig, served: Served | None = None) -> ExternalServer:
    """The server at the config's `base_url`. What it serves is read from it, unless that is known (`served`)."""
    described = card(config.card, "judge")
    repo, folder = described.source.repo or "", Path(described.source.folder or "").name
    names = (repo, repo.rpartition("/")[2], described.name, folder)
    assert config.base_url
    return ExternalServer(
        config.base_url.rstrip("/"),
        key_from(config.api_key_env),
        config.served_model or "",
        expected=() if described.source.build else tuple(filter(None, names)),
        known=served,
    )


@dataclass(frozen=True)
class JudgeOrder:
    """A judge to open, and what for."""

    config: JudgeConfig
    spec: JudgeSpec
    questions: Sequence[Question]
    load: Load
    """Returns an image by its digest."""
    log: Path
    progress: Progress
    most_gb: float = math.inf
    """Memory of each GPU that vLLM may use at most, in decimal GB."""


@contextmanager
def open_judge(order: JudgeOrder, judge_devices: Sequence[JudgeDevice]) -> Iterator[Transport]:
    """Open the judge for its questions. ServerError if it is unavailable; ConfigError if its tokenizer lacks a single
    token for a label that protocol `logit` or a question needs."""
    config, spec, log = order.config, order.spec, order.log
    described = card(config.card, "judge")
    prepared = preparing(order.load, spec.patch)
    if config.base_url:
        if config.protocol == "logit":
            check_labels(described.name, resolve(described, config.weights))
        server = external(config, spec.served or None)
        with Client(server, prepared, config.in_flight, config.request_timeout_s, note=order.progress.note) as client:
            yield client
        return
    weights = resolve(described, config.weights)
    if config.protocol == "logit":
        check_labels(described.name, weights)
    check_words(described.name, weights, {question.rubric for question in order.questions})
    device = "cpu" if judge_devices[0].cuda_index is None else f"cuda:{judge_devices[0].cuda_index}"
    if config.transport not in BUILT_IN:
        with plugged(config.transport, weights, prepared, device, spec.dtype) as judge:
            yield judge
        return
    on_gpu = judge_devices[0].on_gpu
    resolved = transport_of(config, on_gpu)
    if resolved == "local":
        from local_bench.judges.vlm.local import Local

        if config.transport == "auto":
            order.progress.note(
                f"{unusable_vllm(on_gpu)}; until then {described.name} runs through transformers, slower"
            )
        batch_size = 1 if device == "cpu" else 8  # on a CPU batches are not faster, and batch size 1 is exact
        processor_kwargs = described.mm_processor_kwargs or {}
        longest = described.context  # as of vLLM, whose `max_model_len` grows up to it (`_needs`)
        with Local(weights, prepared, device, spec.dtype, batch_size, processor_kwargs, longest) as local:
            yield local
        return
    groups = _groups(judge_devices, described)
    attention = attention_of(config, judge_devices[0])
    assert attention is not None
    vram_gb = described.vram_gb / len(groups[0])
    with reserve_memory(described.name, vram_gb, judge_devices, order.progress, order.most_gb) as share:
        members: list[Transport] = []
        needs = _needs(described, spec, order.questions)
        for i, group in enumerate(groups):
            engine = _engine(weights, spec, group, needs, share, attention)
            of_group = log.with_name(f"{log.stem}-{i}{log.suffix}") if i else log
            start_s, restarts = config.start_timeout_s or start_timeout_s(weights), config.max_restarts
            if resolved == "embedded":
                parts = engine, prepared, start_s, config.request_timeout_s
                members.append(Embedded(of_group, *parts, max_restarts=restarts))
            else:
                port = None if i else config.port
                managed = ManagedServer(of_group, engine, start_s, port, max_restarts=restarts)
                members.append(Client(managed, prepared, config.in_flight, config.request_timeout_s))
        with members[0] if len(members) == 1 else Replicas(members, order.progress.note) as transport:
            yield transport


def _groups(judge_devices: Sequence[JudgeDevice], described: ModelCard) -> list[Sequence[JudgeDevice]]:
    """The devices of each replica of the model."""
    if not judge_devices[0].on_gpu:
        return [judge_devices[:1]]
    n = described.tensor_parallel_size
    groups = [judge_devices[i : i + n] for i in range(0, len(judge_devices) - n + 1, n)]
    return groups or [judge_devices]


def _engine(
    weights: Path,
    spec: JudgeSpec,
    group: Sequence[JudgeDevice],
    needs: dict[str, Any],
    share: float,
    attention: Attention,
) -> Engine:
    gpu = gpu_of(group[0].device) if group[0].on_gpu else None
    limits: dict[str, Any] = (
        {} if gpu is None else {"batched_tokens": gpu.judge_batched_tokens, "sequences": gpu.judge_sequences}
    )
    return Engine(
        weights=weights,
        dtype=spec.dtype,
        **needs,
        gpu=group[0].cuda_index,
        gpus=len(group),
        memory_share=share,
        attention=attention,
        extra_args=spec.extra_args,
        **limits,
    )


def _needs(described: ModelCard, spec: JudgeSpec, questions: Sequence[Question]) -> dict[str, Any]:
    """Arguments of `Engine` that the questions decide: the most images of one and the largest, and an upper bound of
    the tokens of the longest question and its answer; a text has at most as many tokens as bytes."""
    longest, images, pixels = described.max_model_len, 0, 0
    for question in questions:
        request = spec.requests(question)[0]
        image_tokens = sum(int(described.tokens_of_image(shown.max_pixels)) + 2 for shown in request.shown)
        text_tokens = len(request.text.encode()) + len(request.system.encode())
        longest = max(longest, image_tokens + text_tokens + request.max_tokens)
        images, pixels = max(images, len(request.shown)), max(pixels, *(shown.max_pixels for shown in request.shown), 0)
    return {
        "max_model_len": min(-(-longest // _ROUND) * _ROUND, described.context),
        "images": images if questions else 1,
        "mm_processor_kwargs": {"max_pixels": pixels or spec.max_pixels}
        if described.mm_processor_kwargs is None
        else described.mm_processor_kwargs,
    }


def start_timeout_s(weights: Path) -> float:
    """Timeout for a judge to start: ten minutes plus the time to read its files from a slow network file system."""
    return 600 + sum(file.stat().st_size for file in weights.rglob("*") if file.is_file()) / _SLOW_BYTES_PER_S
