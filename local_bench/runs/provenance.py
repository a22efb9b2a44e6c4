"""The provenance of a run: software, device, weights, judge and config; no user names, host names or paths."""

import platform
from collections.abc import Sequence
from typing import Any

from local_bench.core import __version__
from local_bench.core.environment import recorded_versions
from local_bench.core.errors import count
from local_bench.core.types import digest
from local_bench.judges.vlm.protocols import VERSIONS
from local_bench.models.manifest import revision_of
from local_bench.runs.config import JudgeConfig
from local_bench.runs.judge import spec_in
from local_bench.runs.judge_factory import JudgeDevice, attention_of, numerics_of, transport_of
from local_bench.runs.plan import RunPlan
from local_bench.runs.rundir import RunDir
from local_bench.runs.work import ModelPlan


def write_provenance(run: RunDir, plan: RunPlan | None, judged_on: Sequence[JudgeDevice] | None) -> None:
    """Update `provenance.json` from the store and this session."""
    store = run.store
    models = {m.label: _model(m) for m in (plan.models if plan else ())}
    used = store.rubrics()
    stored = store.json_meta("provenance") or {}
    fresh = {
        "local_bench": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "packages": recorded_versions(),
        "config_sha256": digest(run.config.model_dump()),
        "numerics": store.notes("numerics"),
        "batch_sizes": {label: sorted(set(sizes.values())) for label, sizes in store.notes("batches").items()},
        "metrics": store.notes("metric"),
        "sessions": len(store.sessions()),
    }
    if models:
        fresh["models"] = models
    if plan is not None and plan.refused:
        fresh["refused_cases"] = {"n": len(plan.refused), "cases": list(plan.refused)}
    if judged_on:
        judges = [_judge(run, config, judged_on, used) for config in run.config.judges]
        fresh |= {"judge": next(iter(judges), None), "panel": judges[1:]}
    run.write_provenance(stored | fresh)


def _judge(run: RunDir, config: JudgeConfig, judge_devices: Sequence[JudgeDevice], used: list[str]) -> dict[str, Any]:
    spec = spec_in(run, config, judge_devices[0])
    checks = run.store.json_meta(f"canary:{config.label}") or {}
    checks = checks if checks.get("judge") == spec.judge_id else {}
    repeats = checks.get("repeats") or {}
    attention = attention_of(config, judge_devices[0])
    rubrics = spec.rubrics
    return {
        "name": config.label,
        "card": spec.card,
        "weights_sha256": spec.weights_sha256,
        "dtype": spec.dtype,
        "protocol": VERSIONS[spec.protocol],
        "sampled_repeats": spec.protocol == "json",
        "judge_id": spec.judge_id,
        "rubric_variant": spec.rubrics.variant,
        "rubrics": {name: {"version": rubrics[name].version, "sha256": rubrics[name].sha256} for name in used},
        "server": "external" if config.base_url else "managed",
        "served": dict(spec.served) or None,
        "transport": transport_of(config, judge_devices[0].on_gpu),
        "numerics": numerics_of(config, judge_devices),
        "reproducible": repeats.get("reproducible"),
        "note": _repeatability(repeats),
        "not_batch_invariant": attention.why_not if attention else "",
        "attacks": checks.get("attacks"),
    }


def _repeatability(repeats: dict[str, Any]) -> str:
    """The result of the batch-invariance check; temperature 0 and a fixed seed alone do not imply it."""
    if not repeats:
        return "batch invariance was not checked"
    if repeats["reproducible"]:
        sessions = count(repeats["sessions"], "sessions")
        return f"equal answers alone and in a batch, with cold and warm caches, in {sessions}"
    changed, n = repeats.get("changed", {}), repeats.get("compared")
    settings = (f"{s} ({changed[s]} of {n})" if changed.get(s) else s for s in repeats["differs"])
    return f"not batch-invariant: answers change {', '.join(settings)}, so a rerun can differ"


def _model(model: ModelPlan) -> dict[str, Any]:
    if model.card is None:
        return {"imported": True}
    card = model.card
    return {
        "card": card.name,
        "title": card.title,
        "repository": card.source.repo,
        "revision": None if model.config.weights else revision_of(card),
        "parts": {part: [source.repo, revision_of(card, part)] for part, source in card.parts.items()},
        "licence": card.licence,
        "load": model.config.load,
        "weights_sha256": model.weights_sha256,
        "lossy": model.config.lossy.settings,
        "sampler": model.sampler,
    }
