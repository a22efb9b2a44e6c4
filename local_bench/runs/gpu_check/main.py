"""`local-bench doctor --gpu` and `scripts/gpu_check`: a few minutes on a GPU before a run of hours.

Real architectures of full width with random weights and fewer blocks go through the code of a run; nothing is fetched.
Runs with torch, diffusers, transformers and their requirements alone, besides pydantic, PyYAML and nvidia-ml-py; checks
that need more are skipped where it is not installed.
"""

import argparse
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from local_bench.core.errors import ConfigError, UserError
from local_bench.core.quiet import quiet_libraries
from local_bench.core.tables import clean
from local_bench.generators.driver import unusable_gpu
from local_bench.generators.numerics import choose_device, device_name, set_determinism
from local_bench.generators.registry import FAMILIES
from local_bench.runs.gpu_check import environment, generation, processes, recovery, report, speed
from local_bench.runs.gpu_check.checks import MEMORY_GB, Check, CheckSkipped, Found, Session, chosen, run_checks
from local_bench.runs.gpu_check.child import limit_memory

MINUTES = 10.0


@dataclass(frozen=True)
class Options:
    """As on the command line."""

    device: str = "auto"
    minutes: float = MINUTES
    only: str | None = None
    out: Path | None = None
    as_json: bool = False


def all_checks() -> list[Check]:
    """In the order in which they run: what says most in the least time comes first."""
    return [
        Check("driver", "NVIDIA driver and CUDA", environment.check_driver),
        Check("compiler", "a C compiler and Python.h, for Triton", environment.check_compiler),
        Check("disk", "free disk here", environment.check_disk),
        Check("host-memory", "memory of the host, with its control group's limit", environment.check_host_memory),
        Check("device-memory", "memory of the device, free and in all", environment.check_device_memory),
        Check("mig", "whether the GPU is divided", environment.check_mig),
        *(
            Check(
                f"family:{name}",
                "one image through all stages, and the attention kernel",
                generation.check_family(name),
            )
            for name in FAMILIES
        ),
        Check("memory", "allocated memory against the planner's", generation.check_memory),
        *(
            Check(f"batch:{name}", "the same bytes in any slot of a batch", generation.check_batch(name))
            for name in generation.NEUTRAL
        ),
        Check("energy", "NVML's energy counter over matrix products", speed.check_energy),
        Check("speed", "compile time, images/s, share of a matrix product's rate", speed.check_speed),
        Check("processes", "the same bytes from two processes, cold and warm cache", processes.check_processes),
        Check("out-of-memory", "a failed allocation, and going on after it", recovery.check_recovery),
        Check("network", "a metric's network alone and in a batch", _check_network),
        *(
            Check(
                f"judge:{name}", "a small judge: throughput, and alone against in a batch", partial(_check_judge, name)
            )
            for name in ("local", "embedded", "served")
        ),
    ]


def run(options: Options, command: str) -> int:
    """Runs the checks and prints what they found; 0 if all held or were skipped, 1 if one failed.

    Without a GPU it prints what it would do. UserError for options that make no sense.
    """
    if options.minutes <= 0:
        raise ConfigError("--minutes: give a number above 0")
    checks = chosen(all_checks(), options.only)
    if options.device == "auto" and not torch.cuda.is_available() and not unusable_gpu():
        return _say_what_would_run(checks, options)
    here = options.device if torch.cuda.is_available() or options.device != "auto" else "cpu"
    device = choose_device(here)
    if options.device == "auto" and device.type == "cpu":  # a GPU that torch cannot use: say so, and time nothing
        checks = [check for check in all_checks() if check.name == "driver"]
    quiet_libraries()
    set_determinism(1)
    os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
    if device.type == "cuda":
        torch.cuda.set_device(device)
    limit_memory(device)
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as scratch:
        rows = run_checks(checks, Session(device, Path(scratch), options.minutes), _note)
    result = report.as_json(rows, device_name(device), command)
    print(json.dumps(result, indent=2) if options.as_json else report.as_table(rows), flush=True)
    if options.out is not None:
        _note(f"written: {report.save(result, options.out)}")
    return 0 if result["ok"] else 1


def main(argv: Sequence[str] | None = None) -> int:
    """`scripts/gpu_check`; the exit status."""
    parser = argparse.ArgumentParser(prog="gpu_check", description=f"{__doc__}", formatter_class=_Raw)
    parser.add_argument("--device", default="auto", help="auto, cpu (small models) or cuda:N")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="checks that have not begun by then are skipped")
    parser.add_argument("--only", help="names of checks, or what is before their colon: driver,family,speed")
    parser.add_argument("--out", type=Path, help="also write the result as JSON to this file or into this folder")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    given = parser.parse_args(argv)
    options = Options(given.device, given.minutes, given.only, given.out, given.json)
    try:
        return run(options, shlex.join(["scripts/gpu_check", *(sys.argv[1:] if argv is None else argv)]))
    except UserError as e:
        _note(str(e))
        return 2
    except KeyboardInterrupt:
        return 130


_Raw = argparse.RawDescriptionHelpFormatter


def _check_network(session: Session) -> Found:
    with _optional():
        from local_bench.runs.gpu_check.network import check_network
    return check_network(session)


def _check_judge(transport: str, session: Session) -> Found:
    with _optional():
        from local_bench.runs.gpu_check.judging import check_judge
    return check_judge(transport, session)


@contextmanager
def _optional() -> Iterator[None]:
    """Packages that a check needs and that may be absent."""
    try:
        yield
    except ModuleNotFoundError as e:
        raise CheckSkipped(f"{e.name} is not installed") from None


def _say_what_would_run(checks: Sequence[Check], options: Options) -> int:
    if options.as_json:
        print(json.dumps({"device": None, "ok": True, "would_run": [check.name for check in checks]}, indent=2))
        return 0
    print(report.planned_table(checks))
    _note(
        f"no GPU here: on one this would run in at most {options.minutes:g} minutes and {MEMORY_GB:.0f} GB of its "
        "memory (--device cpu runs it with small models)"
    )
    return 0


def _note(message: str) -> None:
    print(clean(f"gpu_check: {message}"), file=sys.stderr, flush=True)
