"""The child's side of an embedded judge: `python -m local_bench.judges.vlm.engine FD ARGUMENTS…`, vLLM's own arguments.

Reads `[number, body]` from the pipe FD (bodies as for `/v1/chat/completions`), writes `{"replies": [[number, reply]],
"counters": {…}}`. Takes whatever has come, works one step, tells what is finished. Ends when the pipe does.
"""

import json
import sys
from multiprocessing.connection import Connection
from typing import Any

from vllm import LLM, SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.exceptions import VLLMClientError
from vllm.sampling_params import StructuredOutputsParams
from vllm.utils.argparse_utils import FlexibleArgumentParser

HELD = 256
"""Requests that are taken before the next step: a whole batch of vLLM's."""
PATIENCE_S = 0.002
"""How long a step waits for one more request where few are at work: a fuller batch is worth more."""


def main(fd: int, arguments: list[str]) -> None:
    end = Connection(fd)
    parser = FlexibleArgumentParser()  # type: ignore[no-untyped-call]
    parsed = EngineArgs.add_cli_args(parser).parse_args(arguments)
    engine_args = EngineArgs.from_cli_args(parsed)
    engine_args.disable_log_stats = True  # nobody reads them here
    llm = LLM.from_engine_args(engine_args)
    end.send_bytes(b"ready")
    at_work: dict[str, int] = {}
    counters = {"prompt_tokens": 0, "cached_tokens": 0}
    while True:
        refused = _take(llm, end, at_work)
        finished: list[Any] = llm.llm_engine.step() if at_work else []  # final outputs only
        replies = [[at_work.pop(output.request_id), _reply(output)] for output in finished]
        for output in finished:
            counters["prompt_tokens"] += len(output.prompt_token_ids or ())
            counters["cached_tokens"] += output.num_cached_tokens or 0
        if refused or replies:
            end.send_bytes(json.dumps({"replies": refused + replies, "counters": counters}).encode())


def _take(llm: LLM, end: Connection, at_work: dict[str, int]) -> list[list[Any]]:
    """Takes what has come, at most a batch; waits where there is nothing to do. Returns what vLLM will not take."""
    refused: list[list[Any]] = []
    while len(at_work) < HELD and (not (at_work or refused) or end.poll(PATIENCE_S)):
        number, body = json.loads(end.recv_bytes())
        try:
            (request_id,) = llm.enqueue_chat([body["messages"]], [sampling(body)], use_tqdm=False)
        except (VLLMClientError, ValueError) as e:  # what vLLM finds wrong with a request is one or the other
            refused.append([number, {"text": str(e)[:2000], "finish_reason": None, "logprobs": None, "refused": True}])
        else:
            at_work[request_id.partition("-")[0]] = number
    return refused


def sampling(body: dict[str, Any]) -> SamplingParams:
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
