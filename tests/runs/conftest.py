"""Commands in processes that can be killed at a given moment."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest


@pytest.fixture(scope="session")
def forked_command(cache, judge_server):
    """Runs the command line in a folder, in a fork of one process (child.py); `own_server` starts a judge instead of
    using the session's server."""
    child = [sys.executable, str(Path(__file__).with_name("child.py"))]
    with subprocess.Popen(
        child, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ}
    ) as process:

        def run(folder, *arguments, moment="never", own_server=False, settings=()):
            external = () if own_server else (f"judge.base_url={judge_server.base_url}",)
            sets = [text for setting in (*external, *settings) for text in ("--set", setting)]
            env = {"VLLM_API_KEY": judge_server.api_key.get_secret_value()}
            request = {"moment": moment, "arguments": [*arguments, "--json", *sets], "cwd": str(folder), "env": env}
            print(json.dumps(request), file=process.stdin, flush=True)
            return SimpleNamespace(**json.loads(process.stdout.readline()))

        yield run
        process.stdin.close()
