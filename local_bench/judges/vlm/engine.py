"""The child process of an embedded judge: `python -m local_bench.judges.vlm.engine FD ARGUMENTS…` (vLLM's arguments).

Reads images and `[number, body]` from the pipe FD (see `protocols.IMAGE`; bodies as for `/v1/chat/completions`), writes
`{"replies": [[number, reply]], "counters": {…}}`. Each iteration reads the available messages, runs one engine step
and sends the finished replies. Ends when the pipe is closed.
"""

import gc
import io
import json
import sys
import time
from functools import lru_cache
from multiprocessing.connection import Connection
from typing import Any

from PIL import Image

from local_bench.core.environment import paused
from local_bench.core.errors import failure
from local_bench.judges.vlm.protocols import IMAGE, REFUSED, Recent, last_of

with paused():
    from vllm import LLM, SamplingParams
    from vllm.engine.arg_utils import EngineArgs
    from vllm.exceptions import VLLMClientError
    from vllm.sampling_params import StructuredOutputsParams
    from vllm.utils.argparse_utils import FlexibleArgumentParser
gc.freeze()  # vLLM collects five times while it starts, each time through all that was imported: seconds in all

MAX_REQUESTS = 256
"""Maximum number of unfinished requests: one full batch of vLLM."""
EMPTY_STEP_S = 0.0005
"""A faster step has computed nothing, because the grammars are not compiled yet."""
EMPTY_STEP_WAIT_S = 0.001
"""Wait after an empty step: without it, polling on a CPU competes with the thread that compiles the grammars."""


def main(fd: int, arguments: list[str]) -> None:
    end = Connection(fd)
    parser = FlexibleArgumentParser()  # type: ignore[no-untyped-call]
    engine_args = EngineArgs.from_cli_args(EngineArgs.add_cli_args(parser).parse_args(arguments))
    engine_args.disable_log_stats = True
    with paused():  # it imports the model's modules
        llm = LLM.from_engine_args(engine_args)
    end.send_bytes(b"ready")
    pending: dict[str, int] = {}
    images = _ReceivedImages()
    counters = {"prompt_tokens": 0, "cached_tokens": 0}
    wait_s = 0.0
    while True:
        refused = _take(llm, end, pending, images, wait_s)
        begun = time.perf_counter()
        finished: list[Any] = llm.llm_engine.step() if pending else []  # final outputs only
        wait_s = EMPTY_STEP_WAIT_S if time.perf_counter() - begun < EMPTY_STEP_S else 0.0
        replies = [[pending.pop(output.request_id), _reply(output)] for output in finished]
        for output in finished:
            counters["prompt_tokens"] += len(output.prompt_token_ids or ())
            counters["cached_tokens"] += output.num_cached_tokens or 0
        if refused or replies:
            end.send_bytes(json.dumps({"replies": refused + replies, "counters": counters}).encode())


def _take(
    llm: LLM, end: Connection, pending: dict[str, int], images: "_ReceivedImages", wait_s: float
) -> list[list[Any]]:
    """Enqueue the available requests, up to `MAX_REQUESTS`; block if there is no work. Returns replies for the requests
    that vLLM rejects."""
    refused: list[list[Any]] = []
    while len(pending) < MAX_REQUESTS and (not (pending or refused) or end.poll(wait_s)):
        received = end.recv_bytes()
        if received.startswith(IMAGE):
            images.received[received[1:65].decode()] = received[65:]
            continue
        number, body = json.loads(received)
        settings = json.dumps({key: value for key, value in body.items() if key != "messages"})
        try:
            *system, user = body["messages"]
            user["content"] = [images.part(part) for part in user["content"]]
            template = body.get("chat_template_kwargs")
            (request_id,) = llm.enqueue_chat(
                [[*system, user]], [sampling(settings)], use_tqdm=False, chat_template_kwargs=template
            )
        except Exception as e:  # noqa: BLE001  # raised again if it is not of this request
            # VLLMClientError and ValueError are vLLM's errors for an invalid request
            reason = REFUSED if isinstance(e, VLLMClientError | ValueError) else failure("judging", e)
            refused.append([number, {"text": str(e)[:2000], "refusal": reason}])
        else:
            pending[request_id.partition("-")[0]] = number
    return refused


class _ReceivedImages:
    """The received images; each is decoded once for all criteria of a candidate."""

    def __init__(self) -> None:
        self.received: dict[str, bytes] = {}
        self._decoded: Recent[Image.Image] = Recent()

    def part(self, part: dict[str, Any]) -> dict[str, Any]:
        if part["type"] == "text":
            return part
        name = part["uuid"]
        image = self._decoded.use(name, lambda: _decode(self.received.pop(name)))
        return {"type": "image_pil", "image_pil": image, "uuid": name}


def _decode(png: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(png), formats=["PNG"])
    image.load()
    return image


@lru_cache(maxsize=1024)
def sampling(settings: str) -> SamplingParams:
    """vLLM's sampling parameters for a JSON request body without its messages."""
    body = json.loads(settings)
    if "structured_outputs" in body:
        constraint = StructuredOutputsParams(choice=body["structured_outputs"]["choice"])
    elif body["response_format"]["type"] == "structural_tag":
        constraint = StructuredOutputsParams(structural_tag=json.dumps(body["response_format"]))
    else:
        constraint = StructuredOutputsParams(json=body["response_format"]["json_schema"]["schema"])
    return SamplingParams(
        temperature=body["temperature"],
        seed=body["seed"],
        max_tokens=body["max_tokens"],
        logprobs=body.get("top_logprobs"),
        skip_special_tokens=body.get("skip_special_tokens", True),
        structured_outputs=constraint,
    )


def _reply(output: Any) -> dict[str, Any]:
    (completion,) = output.outputs
    logprobs = None
    if completion.logprobs:
        sampled = [tops[i].decoded_token for i, tops in zip(completion.token_ids, completion.logprobs, strict=True)]
        label = completion.logprobs[last_of(completion.text, sampled)].values()
        logprobs = {top.decoded_token: max(top.logprob, -9999.0) for top in label}
    return {"text": completion.text, "finish_reason": completion.finish_reason, "logprobs": logprobs}


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
