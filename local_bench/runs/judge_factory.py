"""A judge of the run's config, opened on the devices at hand: which way there is to it, and what it is told."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from PIL import Image

from local_bench.core.types import Question
from local_bench.judges.vlm.child import Child
from local_bench.judges.vlm.client import Client
from local_bench.judges.vlm.composer import Composer
from local_bench.judges.vlm.embedded import Embedded
from local_bench.judges.vlm.flags import Engine, vllm_version
from local_bench.judges.vlm.judge import JudgeSpec
from local_bench.judges.vlm.labels import check_labels
from local_bench.judges.vlm.plugin import BUILT_IN, plugin
from local_bench.judges.vlm.server import ExternalServer, ManagedServer, key_from
from local_bench.judges.vlm.transport import Replicas, Transport
from local_bench.models.cards import ModelCard, card
from local_bench.models.gpus import gpu_of
from local_bench.models.weights import resolve, weights_digest
from local_bench.runs.device import Place, room_for
from local_bench.runs.judge_config import JudgeConfig
from local_bench.runs.progress import Progress

_ROUND = 1024
_SLOW_BYTES_PER_S = 100e6
Load = Callable[[str], Image.Image]


def transport_of(config: JudgeConfig) -> str:
    """`served`, `embedded` or `local`: the config's word, or what there is."""
    if config.transport != "auto":
        return config.transport
    if config.base_url is not None:
        return "served"
    return "embedded" if vllm_version() else "local"


def judge_spec(config: JudgeConfig, place: Place) -> JudgeSpec:
    """The judge. WeightsError if its files are not here (those of an external server need not be)."""
    described = card(config.card, "judge")
    if config.base_url and not described.source.build and config.weights is None:
        weights = "external"
    else:
        weights = weights_digest(resolve(described, config.weights))
    return JudgeSpec(
        card=described.name,
        weights_sha256=weights,
        dtype=described.dtype if place.on_gpu else "float32",
        max_pixels=config.max_pixels or described.judge_max_pixels,
        patch=described.patch,
        seed=config.seed,
        protocol=config.protocol,
        min_pixels=described.judge_min_pixels,
        max_tokens=config.max_tokens,
        extra_args=() if config.base_url else tuple(config.extra_args),
        rubrics=config.rubric_set(described),
        source_max_pixels=config.source_max_pixels,
    )


def numerics_of(config: JudgeConfig, places: Sequence[Place]) -> dict[str, Any]:
    """The judge's numerics signature on these devices."""
    gpus = len(_groups(places, card(config.card, "judge"))[0])
    return places[0].numerics(transport_of(config), config.base_url is not None, gpus)


@contextmanager
def open_judge(
    config: JudgeConfig,
    spec: JudgeSpec,
    places: Sequence[Place],
    questions: Sequence[Question],
    load: Load,
    log: Path,
    progress: Progress,
) -> Iterator[Transport]:
    """The judge, ready for `questions`; `load` gives a picture by its digest. ServerError where it is not to be had;
    ConfigError where its tokenizer has no single token for every label that `logit` needs."""
    described = card(config.card, "judge")
    composer = Composer(load, spec.patch)
    if config.base_url:
        if config.protocol == "logit":
            check_labels(described.name, resolve(described, config.weights))
        server = ExternalServer(config.base_url.rstrip("/"), key_from(config.api_key_env), config.served_model or "")
        with Client(server, composer, config.in_flight, config.request_timeout_s) as client:
            yield client
        return
    weights = resolve(described, config.weights)
    if config.protocol == "logit":
        check_labels(described.name, weights)
    device = "cpu" if places[0].cuda_index is None else f"cuda:{places[0].cuda_index}"
    if config.transport not in BUILT_IN:
        with plugin(config.transport)(weights, composer.prepared, device, spec.dtype) as judge:
            yield judge
        return
    if transport_of(config) == "local":
        from local_bench.judges.vlm.local import Local

        batch_size = 1 if device == "cpu" else 8  # on a CPU a batch is no quicker, and one by one is exact
        with Local(weights, composer.prepared, device, spec.dtype, batch_size) as local:
            yield local
        return
    groups = _groups(places, described)
    with room_for(described.name, described.vram_gb / len(groups[0]), places, progress) as share:
        members = [
            _own(config, composer, _engine(described, weights, spec, group, questions, share), log, i)
            for i, group in enumerate(groups)
        ]
        with members[0] if len(members) == 1 else Replicas(members) as transport:
            yield transport


def _groups(places: Sequence[Place], described: ModelCard) -> list[Sequence[Place]]:
    """The devices of each copy of the model."""
    if not places[0].on_gpu:
        return [places[:1]]
    n = described.tensor_parallel_size
    whole = [places[i : i + n] for i in range(0, len(places) - n + 1, n)]
    return whole or [places]


def _engine(
    described: ModelCard,
    weights: Path,
    spec: JudgeSpec,
    group: Sequence[Place],
    questions: Sequence[Question],
    share: float,
) -> Engine:
    gpu = gpu_of(group[0].device) if group[0].on_gpu else None
    shown = [shown for question in questions for shown in spec.requests(question)[0].shown]
    engine = Engine(
        weights=weights,
        dtype=spec.dtype,
        max_model_len=_context(described, spec, questions),
        images=max((len(spec.requests(question)[0].shown) for question in questions), default=1),
        max_pixels=max((picture.max_pixels for picture in shown), default=spec.max_pixels),
        gpu=group[0].cuda_index,
        gpus=len(group),
        memory_share=share,
        batch_invariant=group[0].batch_invariant,
        extra_args=spec.extra_args,
    )
    if gpu is None:
        return engine
    return replace(engine, batched_tokens=gpu.judge_batched_tokens, sequences=gpu.judge_sequences)


def _context(described: ModelCard, spec: JudgeSpec, questions: Sequence[Question]) -> int:
    """Tokens that the longest question can take with its answer: no text has more tokens than bytes."""
    most = described.max_model_len
    for question in questions:
        for request in spec.requests(question)[:1]:
            pictures = sum(shown.max_pixels // spec.patch**2 + 2 for shown in request.shown)
            words = len(request.text.encode()) + len(request.system.encode())
            most = max(most, pictures + words + request.max_tokens)
    return min(-(-most // _ROUND) * _ROUND, described.context)


def start_timeout_s(weights: Path) -> float:
    """How long a judge may take to start: ten minutes, and its files at the rate of a slow network file system."""
    size = sum(file.stat().st_size for file in weights.rglob("*") if file.is_file())
    return 600 + size / _SLOW_BYTES_PER_S


def _own(config: JudgeConfig, composer: Composer, engine: Engine, log: Path, i: int) -> Transport:
    child = Child(log.with_name(f"{log.stem}-{i}{log.suffix}") if i else log, config.max_restarts)
    patience_s = config.start_timeout_s or start_timeout_s(engine.weights)
    if transport_of(config) == "embedded":
        return Embedded(engine, child, composer, patience_s, config.request_timeout_s)
    server = ManagedServer(engine, child, patience_s, None if i else config.port)
    return Client(server, composer, config.in_flight, config.request_timeout_s)
