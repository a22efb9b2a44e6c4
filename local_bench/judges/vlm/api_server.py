"""The process of a served judge: `python -m local_bench.judges.vlm.api_server ARGUMENTS…` is vLLM's API server.

vLLM spawns its engine's process, which imports this module too: both leave their imports out of later collections.
"""

import gc

from local_bench.core.environment import paused

with paused():
    from vllm.entrypoints.launchers.api_server.entry import main
    from vllm.v1.engine import async_llm  # noqa: F401
gc.freeze()  # as in `engine`

if __name__ == "__main__":
    main()  # type: ignore[no-untyped-call]
