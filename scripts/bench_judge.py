"""Compares judging by the package's two transports with vLLM's offline `LLM.chat` and with one request at a time.

    .venv/bin/python scripts/bench_judge.py [--repeats 3] [--card tiny-qwen3-vl] [--out benchmarks/judge.json]

512 questions per round, four about each of 128 uncached images, the same for every configuration. `chat`: one
`LLM.chat` over all of them, in a separate process (the upper bound). `embedded` and `served`: the package's transports.
`one by one`: the server, one request at a time (every fourth image only). The configurations alternate; rates are
computed from the sums. Then the prefill cost of the first and of further criteria, from the engine's counters. Seconds
depend on the machine; the ratios are the result. The answers of the two transports, which are two processes, are
compared. On a GPU, `--card qwen3-vl-8b --load random` serves an architecture of full size with vLLM's dummy weights and
the tokenizer of a tiny model, so that nothing is fetched.
"""

import argparse
import json
import multiprocessing
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from local_bench.core.environment import quiet_libraries, versions
from local_bench.core.images import pixel_digest
from local_bench.core.types import Question, Task, Verdict
from local_bench.generators.numerics import device_name, set_determinism
from local_bench.judges.vlm.client import Client, ManagedServer
from local_bench.judges.vlm.embedded import Embedded
from local_bench.judges.vlm.judge import JudgeSpec, Transport, answers
from local_bench.judges.vlm.protocols import body, preparing
from local_bench.judges.vlm.rubrics import DEFAULT, RubricSet
from local_bench.judges.vlm.vllm_process import Engine, arguments, environment
from local_bench.models.cards import ModelCard, card
from local_bench.models.weights import resolve
from local_bench.runs.judge_factory import JudgeDevice
from local_bench.suites.servimage import questions as servimage

N_IMAGES = 128
POINTS = ("It is night", "There is a boot", "The ground is white", "Two greens are used")
PREFILL_SIDES = (128, 512)
ONE_BY_ONE = 4
"""Every fourth image only."""
ENGINES = 3
"""They share the GPU."""
TOKENIZER = "tiny-qwen3-vl"
FULL_SIZE: dict[str, dict[str, dict[str, Any]]] = {
    "qwen3-vl-8b": {
        "text_config": {
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "num_hidden_layers": 36,
            "head_dim": 128,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 151936,
            "tie_word_embeddings": False,
            "max_position_embeddings": 262144,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 5e6,
                "mrope_interleaved": True,
                "mrope_section": [24, 20, 20],
            },
        },
        "vision_config": {
            "depth": 27,
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_heads": 16,
            "out_hidden_size": 4096,
            "num_position_embeddings": 2304,
            "deepstack_visual_indexes": [8, 16, 24],
        },
    }
}
"""By card: what its config.json has in place of the tiny model's."""


class Images:
    """New noise images, by digest."""

    def __init__(self, side: int) -> None:
        self._rng = np.random.default_rng(0)
        self._side = side
        self.by_digest: dict[str, Image.Image] = {}

    def questions(self, n: int = N_IMAGES) -> list[tuple[tuple[int, int], Question]]:
        """Four questions about each of `n` new images."""
        items = []
        for i in range(n):
            sha = self._new(self._side)
            for k, point in enumerate(POINTS):
                slots = (("title", "A poster"), ("brief", "A poster for a mountain hut."), ("point", point))
                items.append(((i, k), Question("brf", k, (sha,), slots, ("delivered",))))
        return items

    def order(self, n: int, side: int) -> list[list[tuple[Any, Question]]]:
        """All questions of the ServImage suite about each of `n` new images."""
        brief = "A poster for a mountain hut, in two greens on white, with a boot and a path. " * 4
        task = Task("t", "Digital", 1, "A poster", brief, ("the poster",), POINTS)
        return [
            [((i, *key), question) for key, question in servimage.questions(task, {1: self._new(side)})]
            for i in range(n)
        ]

    def _new(self, side: int) -> str:
        image = Image.fromarray(self._rng.integers(0, 256, (side, side, 3), dtype=np.uint8))
        sha = pixel_digest(image)
        self.by_digest[sha] = image
        return sha


def chat(end: Connection, flags: list[str], env: dict[str, str]) -> None:
    """A process with vLLM's own `LLM` only: receives request bodies, sends seconds."""
    import os

    os.environ.update(env, VLLM_LOGGING_LEVEL="ERROR")
    from vllm import LLM
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from local_bench.judges.vlm.engine import sampling

    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    engine_args = EngineArgs.from_cli_args(parser.parse_args(flags))
    engine_args.disable_log_stats = True
    llm = LLM.from_engine_args(engine_args)
    end.send("ready")
    while (bodies := end.recv()) is not None:
        messages = [body["messages"] for body in bodies]
        parameters = [sampling(json.dumps({k: v for k, v in body.items() if k != "messages"})) for body in bodies]
        begun = time.perf_counter()
        outputs = llm.chat(messages, parameters, use_tqdm=False)
        seconds = time.perf_counter() - begun
        assert all(output.outputs[0].text for output in outputs)
        end.send(seconds)


@contextmanager
def ceiling(engine: Engine) -> Iterator[Callable[[list[dict[str, Any]]], float]]:
    context = multiprocessing.get_context("spawn")
    parent_end, child_end = context.Pipe()
    process = context.Process(target=chat, args=(child_end, arguments(engine), environment(engine)), daemon=True)
    process.start()
    try:
        assert parent_end.recv() == "ready"

        def timed(bodies: list[dict[str, Any]]) -> float:
            parent_end.send(bodies)
            return float(parent_end.recv())

        yield timed
        parent_end.send(None)
        process.join(30)
    finally:
        process.kill()


def timed(
    transport: Transport, spec: JudgeSpec, questions: list[tuple[Any, Question]], at_once: int | None = None
) -> tuple[float, dict[Any, Verdict]]:
    begun = time.perf_counter()
    found = dict(answers(transport, spec, questions, at_once))
    seconds = time.perf_counter() - begun
    assert len(found) == len(questions)
    assert all(verdict.answer for verdict in found.values())
    return seconds, found


def compare(spec: JudgeSpec, engine: Engine, images: Images, repeats: int) -> dict[str, Any]:
    prepared = preparing(images.by_digest.__getitem__, spec.patch)
    seconds = dict.fromkeys(("chat", "embedded", "served", "one by one"), 0.0)
    n = dict.fromkeys(seconds, 0)
    changed = {"served": 0, "one by one": 0}
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        begun = time.perf_counter()
        embedded = stack.enter_context(Embedded(logs / "embedded.log", engine, prepared, 600, 600))
        start_s = time.perf_counter() - begun
        server = ManagedServer(logs / "served.log", engine, 600)
        served = stack.enter_context(Client(server, prepared, None, 600))
        bare = stack.enter_context(ceiling(engine))

        def bodies(questions: list[tuple[Any, Question]]) -> list[dict[str, Any]]:
            requests = (request for _, question in questions for request in spec.requests(question))
            return [body(request, [*map(prepared, request.shown)], "") for request in requests]

        warm = images.questions(8)  # grammar and kernels are made at the first use
        timed(embedded, spec, warm)
        timed(served, spec, warm)
        bare(bodies(warm))
        for _ in range(repeats):
            questions, few = images.questions(), images.questions(N_IMAGES // ONE_BY_ONE)
            seconds["chat"] += bare(bodies(questions))
            n["chat"] += len(questions)
            found: dict[str, dict[Any, Verdict]] = {}
            for name, transport, batch, at_once in (
                ("embedded", embedded, questions, None),
                ("served", served, questions, None),
                ("embedded few", embedded, few, None),
                ("one by one", served, few, 1),
            ):
                spent, found[name] = timed(transport, spec, batch, at_once)
                if name in seconds:
                    seconds[name] += spent
                    n[name] += len(batch)
            for name, other in (("served", "embedded"), ("one by one", "embedded few")):
                changed[name] += sum(found[name][key] != verdict for key, verdict in found[other].items())
        cost = {f"{side}x{side}": prefill(embedded, spec, images, side) for side in PREFILL_SIDES}
    rates = {name: round(n[name] / seconds[name], 1) for name in seconds}
    return {
        "embedded_start_s": round(start_s, 1),
        "requests_per_s": rates,
        "embedded_of_chat": round(rates["embedded"] / rates["chat"], 3),
        "served_of_chat": round(rates["served"] / rates["chat"], 3),
        "embedded_of_one_by_one": round(rates["embedded"] / rates["one by one"], 2),
        "served_of_one_by_one": round(rates["served"] / rates["one by one"], 2),
        "changed_answers": changed,
        "prefill": cost,
    }


def prefill(transport: Transport, spec: JudgeSpec, images: Images, side: int, n: int = 16) -> dict[str, Any]:
    """Tokens that had to be computed for an image's first criterion and for each further one, and the share of prompt
    tokens that came from the prefix cache, in the suite's own order of questions; images of `side` pixels a side."""

    def computed(items: list[tuple[Any, Question]]) -> tuple[float, float, int]:
        before = transport.counters()
        timed(transport, spec, items)
        after = transport.counters()
        total = after["prompt_tokens"] - before["prompt_tokens"]
        return total - (after["cached_tokens"] - before["cached_tokens"]), total, len(items)

    spec = replace(spec, max_pixels=side * side)
    orders = images.order(n, side)
    timed(transport, spec, images.order(1, side)[0])  # the common prefix of the rubrics is cached
    first, first_total, n_first = computed([questions[0] for questions in orders])
    further, further_total, n_further = computed([q for questions in orders for q in questions[1:]])
    return {
        "first_tokens": round(first / n_first, 1),
        "further_tokens": round(further / n_further, 1),
        "further_of_first": round(further / n_further / (first / n_first), 3),
        "hit_rate": round(1 - (first + further) / (first_total + further_total), 3),
    }


def judge_of(
    described: ModelCard, side: int, protocol: Any, weights: Path, gpu: int | None
) -> tuple[JudgeSpec, Engine]:
    dtype = described.dtype if gpu is not None else "float32"
    most = max(side * side, described.judge_max_pixels)
    spec = JudgeSpec(
        described.name,
        "bench",
        dtype,
        most,
        described.patch,
        0,
        protocol,
        rubrics=RubricSet(described.rubrics or DEFAULT),
    )
    engine = Engine(weights, dtype, 4096, 2, gpu=gpu)
    if gpu is not None:
        attention = JudgeDevice(device_name(torch.device("cuda", gpu)), gpu).attention(weights, dtype)
        engine = replace(engine, attention=attention, memory_share=0.9 / ENGINES)
    return spec, engine


def full_size(described: ModelCard, folder: Path) -> Path:
    """The config of the card's architecture, without weights, and the tokenizer of a tiny model of its family."""
    tiny = resolve(card(TOKENIZER, "judge"))
    shutil.copytree(tiny, folder, ignore=shutil.ignore_patterns("*.safetensors"), dirs_exist_ok=True)
    config = json.loads((tiny / "config.json").read_text()) | {"dtype": "bfloat16", "tie_word_embeddings": False}
    for part, sizes in FULL_SIZE[described.name].items():
        config[part] |= sizes
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--card", default="tiny-qwen3-vl")
    parser.add_argument("--load", choices=("weights", "random"), default="weights")
    parser.add_argument("--side", type=int, default=128, help="pixels of a picture's side")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    quiet_libraries()
    set_determinism(1)
    gpu = 0 if torch.cuda.is_available() else None
    described = card(given.card, "judge")
    result: dict[str, Any] = {
        "command": f"scripts/bench_judge.py --repeats {given.repeats} --card {given.card} --load {given.load} "
        f"--side {given.side}",
        "machine": f"{platform.machine()}, {device_name(torch.device('cpu' if gpu is None else 'cuda:0'))}",
        "packages": versions(),
        "questions": N_IMAGES * len(POINTS),
    }
    with tempfile.TemporaryDirectory() as folder:
        random = given.load == "random"
        weights = full_size(described, Path(folder)) if random else resolve(described)
        for protocol in ("json", "logit"):
            spec, engine = judge_of(described, given.side, protocol, weights, gpu)
            engine = replace(engine, extra_args=("--load-format", "dummy") if random else ())
            result[protocol] = compare(spec, engine, Images(given.side), given.repeats)
            print(json.dumps({protocol: result[protocol]}, indent=2), flush=True)
    if given.out:
        given.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
