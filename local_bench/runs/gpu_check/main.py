"""`local-bench doctor --gpu` and `scripts/gpu_check`: checks of a GPU machine in a few minutes.

Real architectures of full width with random weights and fewer blocks run through the same code as a run; nothing is
downloaded. Needs torch, diffusers, transformers, pydantic, PyYAML and nvidia-ml-py; checks that need other packages are
skipped if these are not installed.
"""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from local_bench.core.environment import free_disk, quiet_libraries, toolchain
from local_bench.core.errors import ConfigError, UserError
from local_bench.core.files import scratch as scratch_folder
from local_bench.core.table import clean
from local_bench.generators.capacity import unusable_gpu
from local_bench.generators.numerics import choose_device, device_name, set_determinism
from local_bench.generators.registry import FAMILIES
from local_bench.runs.gpu_check import checks, generation
from local_bench.runs.gpu_check.checks import (
    MEMORY_GB,
    Check,
    CheckPassed,
    CheckSkipped,
    Session,
    aligned,
    chosen,
    report,
    run_checks,
    save,
)
from local_bench.runs.gpu_check.generation import limit_memory

MINUTES = 10.0
INCOMPLETE = 3
"""Exit status: no check failed, and the time limit left some out."""


def all_checks() -> list[Check]:
    """All checks in order of execution: the fast and informative ones first."""
    return [
        Check("driver", "NVIDIA driver and CUDA", checks.check_driver),
        Check("compiler", "a C compiler and Python.h, for Triton", partial(checks.check_found, toolchain)),
        Check("disk", "free disk here", partial(checks.check_found, lambda: free_disk(Path.cwd()))),
        Check("host-memory", "host memory, with the control group's limit", checks.check_host_memory),
        Check("device-memory", "free and total device memory", checks.check_device_memory),
        Check("mig", "whether the GPU is partitioned (MIG)", checks.check_mig),
        *(
            Check(
                f"family:{name}",
                "images by a run's worker in two sizes",
                partial(generation.check_family, name),
                60 if name in generation.COMPILED else 10,
            )
            for name in FAMILIES
        ),
        Check("memory", "allocated memory against the planner's", generation.check_memory),
        Check("streamed", "equal bytes with weights in host memory", generation.check_streamed, 15),
        Check("energy", "NVML's energy counter during matrix products", generation.check_energy),
        Check("speed", "compile time, images/s, fraction of the matrix-product rate", generation.check_speed, 45),
        *(
            Check(f"judge:{name}", "a small judge: throughput and batch invariance", partial(_check_judge, name), needs)
            for name, needs in (("local", 30), ("embedded", 120), ("served", 120))
        ),
        Check("network", "batch invariance of a metric's network", generation.check_network),
        Check("out-of-memory", "a failed allocation, and recovery from it", generation.check_recovery, 120),
        Check("processes", "equal bytes from two processes, with cold and warm cache", generation.check_processes, 90),
    ]


def run(
    command: str,
    device: str = "auto",
    minutes: float = MINUTES,
    only: str | None = None,
    out: Path | None = None,
    as_json: bool = False,
) -> int:
    """Run the checks and print their results; return 1 if a check failed, 3 if one was left out for want of time, else
    0.

    Without a GPU, list the checks instead. UserError for invalid options.
    """
    if minutes <= 0:
        raise ConfigError("--minutes: give a number above 0")
    checks = chosen(all_checks(), only)
    has_gpu = torch.cuda.is_available()
    if device == "auto" and not has_gpu and not unusable_gpu():
        return _list_checks(checks, minutes, as_json)
    used = choose_device(device if has_gpu or device != "auto" else "cpu")
    if device == "auto" and used.type == "cpu":  # torch cannot use the GPU: only report it
        checks = [check for check in all_checks() if check.name == "driver"]
    quiet_libraries()
    set_determinism(1)
    os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
    if used.type == "cuda":
        torch.cuda.set_device(used)
    limit_memory(used)
    with scratch_folder() as scratch:
        rows = run_checks(checks, Session(used, scratch, minutes), _note)
    result = report(rows, device_name(used), command)
    cells = [[row.check, row.status, f"{row.seconds:.1f}", row.detail] for row in rows]
    table = aligned(["check", "status", "seconds", "detail"], cells)
    print(json.dumps(result, indent=2) if as_json else table, flush=True)
    if out is not None:
        _note(f"wrote {save(result, out)}")
    if not result["complete"]:
        _note(f"incomplete: not every check ends in {minutes:g} minutes; give more with --minutes")
    return (0 if result["complete"] else INCOMPLETE) if result["ok"] else 1


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point of `scripts/gpu_check`; returns the exit status."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="gpu_check", description=f"{__doc__}", formatter_class=plain)
    parser.add_argument("--device", default="auto", help="auto, cpu (small models) or cuda:N")
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help="do not begin checks that would end after this many minutes"
    )
    parser.add_argument("--only", help="names of checks or of their groups: driver,family,speed")
    parser.add_argument("--out", type=Path, help="also write the result as JSON to this file or into this folder")
    parser.add_argument("--json", action="store_true", dest="as_json", help="print the result as JSON")
    options = vars(parser.parse_args(argv))
    try:
        return run(shlex.join(["scripts/gpu_check", *(sys.argv[1:] if argv is None else argv)]), **options)
    except UserError as e:
        _note(str(e))
        return 2
    except KeyboardInterrupt:
        return 130


def _check_judge(transport: str, session: Session) -> CheckPassed:
    try:
        from local_bench.runs.gpu_check.judging import check_judge
    except ModuleNotFoundError as e:
        raise CheckSkipped(f"{e.name} is not installed") from None
    return check_judge(transport, session)


def _list_checks(checks: Sequence[Check], minutes: float, as_json: bool) -> int:
    if as_json:
        result = {"device": None, "ok": True, "complete": True, "would_run": [check.name for check in checks]}
        print(json.dumps(result, indent=2))
        return 0
    print(aligned(["check", "what it does"], [[check.name, check.about] for check in checks]))
    _note(
        f"no GPU on this machine; with one the checks take at most {minutes:g} minutes and {MEMORY_GB:.0f} GB "
        "of its memory (--device cpu runs it with small models)"
    )
    return 0


def _note(message: str) -> None:
    print(clean(f"gpu_check: {message}"), file=sys.stderr, flush=True)
