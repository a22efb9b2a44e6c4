"""The child's side of an embedded judge: `python -m local_bench.judges.vlm.engine FD ARGUMENTS…`, vLLM's own arguments.

Reads pictures and `[number, body]` from the pipe FD (see `pipe`; bodies as for `/v1/chat/completions`), writes
`{"replies": [[number, reply]], "counters": {…}}`. Takes whatever has come, works one step, tells what is finished. Ends
when the pipe does.
"""

import io
import json
import sys
import time
from functools import lru_cache
from multiprocessing.connection import Connection
from typing import Any

from PIL import Image
from vllm import LLM, SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.exceptions import VLLMClientError
from vllm.sampling_params import StructuredOutputsParams
from vllm.utils.argparse_utils import FlexibleArgumentParser

from local_bench.judges.vlm.pipe import PICTURE, Recent

HELD = 256
"""Requests that are taken before the next step: a whole batch of vLLM's."""
EMPTY_STEP_S = 0.0005
"""A step that is quicker has computed nothing …"""
PATIENCE_S = 0.001
"""… for the grammars are not ready yet: a thread makes them, on a CPU on the very core on which we would spin."""


def main(fd: int, arguments: list[str]) -> None:
    end = Connection(fd)
    parser = FlexibleArgumentParser()  # type: ignore[no-untyped-call]
    parsed = EngineArgs.add_cli_args(parser).parse_args(arguments)
    engine_args = EngineArgs.from_cli_args(parsed)
    engine_args.disable_log_stats = True  # nobody reads them here
    llm = LLM.from_engine_args(engine_args)
    end.send_bytes(b"ready")
    at_work: dict[str, int] = {}
    pictures = _Pictures()
    counters = {"prompt_tokens": 0, "cached_tokens": 0}
    patience = 0.0
    while True:
        refused = _take(llm, end, at_work, pictures, patience)
        begun = time.perf_counter()
        finished: list[Any] = llm.llm_engine.step() if at_work else []  # final outputs only
        patience = PATIENCE_S if time.perf_counter() - begun < EMPTY_STEP_S else 0.0
        replies = [[at_work.pop(output.request_id), _reply(output)] for output in finished]
        for output in finished:
            counters["prompt_tokens"] += len(output.prompt_token_ids or ())
            counters["cached_tokens"] += output.num_cached_tokens or 0
        if refused or replies:
            end.send_bytes(json.dumps({"replies": refused + replies, "counters": counters}).encode())


def _take(
    llm: LLM, end: Connection, at_work: dict[str, int], pictures: "_Pictures", patience: float
) -> list[list[Any]]:
    """Takes what has come, at most a batch; waits where there is nothing to do. Returns what vLLM will not take."""
    refused: list[list[Any]] = []
    while len(at_work) < HELD and (not (at_work or refused) or end.poll(patience)):
        received = end.recv_bytes()
        if received.startswith(PICTURE):
            pictures.come[received[1:65].decode()] = received[65:]
            continue
        number, body = json.loads(received)
        how = json.dumps({key: value for key, value in body.items() if key != "messages"})
        try:
            system, user = body["messages"]
            user["content"] = [pictures.part(part) for part in user["content"]]
            (request_id,) = llm.enqueue_chat([[system, user]], [sampling(how)], use_tqdm=False)
        except (VLLMClientError, ValueError) as e:  # what vLLM finds wrong with a request is one or the other
            refused.append([number, {"text": str(e)[:2000], "finish_reason": None, "logprobs": None, "refused": True}])
        else:
            at_work[request_id.partition("-")[0]] = number
    return refused


class _Pictures:
    """Those that were sent: decoded once for all of a candidate's criteria."""

    def __init__(self) -> None:
        self.come: dict[str, bytes] = {}
        self._held: Recent[Image.Image] = Recent()

    def part(self, part: dict[str, Any]) -> dict[str, Any]:
        """A part of a message, with its picture where it names one."""
        if part["type"] == "text":
            return part
        name = part["uuid"]
        image = self._held.use(name, lambda: _decoded(self.come.pop(name)))
        return {"type": "image_pil", "image_pil": image, "uuid": name}


def _decoded(png: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(png), formats=["PNG"])
    image.load()
    return image


@lru_cache(maxsize=1024)
def sampling(how: str) -> SamplingParams:
    """vLLM's parameters for a body without its messages, as JSON."""
    body = json.loads(how)
    if "structured_outputs" in body:
        bound = StructuredOutputsParams(choice=body["structured_outputs"]["choice"])
    else:
        bound = StructuredOutputsParams(json=body["response_format"]["json_schema"]["schema"])
    return SamplingParams(
        temperature=body["temperature"],
        seed=body["seed"],
        max_tokens=body["max_tokens"],
        logprobs=body.get("top_logprobs"),
        structured_outputs=bound,
    )


def _reply(output: Any) -> dict[str, Any]:
    (made,) = output.outputs
    first = made.logprobs[0].values() if made.logprobs else None
    logprobs = None if first is None else {top.decoded_token: max(top.logprob, -9999.0) for top in first}
    return {"text": made.text, "finish_reason": made.finish_reason, "logprobs": logprobs, "refused": False}


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
