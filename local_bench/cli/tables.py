"""A run's result as text and as JSON."""

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from local_bench.analysis.comparability import rubric_sets
from local_bench.analysis.economics import economics_of
from local_bench.analysis.ground_truth import GroundTruthCheck, check_ground_truth
from local_bench.analysis.hard_rules import HardRuleStats, hard_rule_stats
from local_bench.analysis.loading import AMOUNTS, in_usd, named
from local_bench.analysis.official import official
from local_bench.analysis.settlement import Accounting, accounting
from local_bench.analysis.unseen_inputs import UnseenInputs, unseen_inputs
from local_bench.core.errors import count
from local_bench.core.money import usd, usd_exact, usd_fine, usd_number
from local_bench.core.table import Column
from local_bench.core.types import Task
from local_bench.report.judging import judges, repeatability_table
from local_bench.report.render import columns_text, printed
from local_bench.report.settlement import economics_json, model_row, settlement_table
from local_bench.report.view import warnings
from local_bench.runs.judge import RepeatabilityRow, retest_rows
from local_bench.runs.rundir import RunDir
from local_bench.runs.stages import Outcome
from local_bench.runs.store.rows import UnscoredItems
from local_bench.settle.ground_truth import RevenueAudit
from local_bench.settle.settlement import Settlement, Total
from local_bench.suites.published import figures_json


def outcome_text(run: RunDir, outcome: Outcome, report: Path | None, settled: bool = False) -> str:
    """Counts, each judge's batch invariance, prompt injection and repeatability, the settlement table (with a report,
    or if `settled`), the report's path and the revenue per model."""
    counts = outcome.counts
    parts = [
        f"{counts.done} of {count(counts.candidates, 'images')} generated, {counts.unscored} unscored; "
        f"{count(counts.verdicts, 'verdicts')}, {counts.verdicts_unscored} unscored"
    ]
    parts += [f"{judge.name}: {judge.note}; {judge.fooled}" for judge in judges(run)]
    if retests := retest_rows(run):
        parts += ["", columns_text(repeatability_table(retests))]
    if report or settled:
        accounts = accounting(run.store, run.config.settlement)
        unseen = unseen_inputs(run)
        priced = any(s.total.value_micro_usd for s in accounts.settlements)
        decided = run.config.judges or any(s.total.n for s in accounts.settlements)
        texts: list[str] = []
        for label, result in () if priced else official(run).items():
            texts += [] if label == "all" else [label]
            texts += map(columns_text, result.tables)
        numbers = "\n\n".join(texts) or None
        if decided and numbers is None:
            retried = any(model.attempts > 1 for model in run.config.models)
            numbers = settlement_text(accounts, hard_rule_stats(run), unseen, retried)
        elif not priced:
            numbers = numbers or "the benchmark defines no official number for this run"
        parts += ["", numbers, ""] if numbers else []
        parts += [f"report: {report}"] if report else []
        parts += earnings(accounts, check_ground_truth(run)) if priced and decided else []
        cautions = warnings(run, accounts.settlements)
        if run.config.settlement.usd_per_kwh and (economics := economics_of(run, accounts)):
            cautions += economics.notes
        parts += ["", "Read these numbers with care:", *(f"- {sentence}" for sentence in cautions)] if cautions else []
    return "\n".join(parts)


REPORTED_SHARE = 0.1
"""The share of a phase's items without a value from which the result is followed by the reasons."""
_REASONS = 3


def unscored_sentence(items: UnscoredItems) -> str:
    """How many items of a phase have no value, and the most frequent reasons."""
    reasons = ", ".join(f"{reason} ({n:,})" for reason, n in items.reasons[:_REASONS])
    more = f" and {count(len(items.reasons) - _REASONS, 'other reasons')}" if len(items.reasons) > _REASONS else ""
    return f"{items.n_unscored:,} of {items.n:,} {items.what} have no value: {reasons}{more}"


def earnings(accounts: Accounting, truth: GroundTruthCheck | None) -> list[str]:
    """One sentence per model, highest revenue first, with the revenue by ground truth if it is known."""
    true = {row.model: row for row in truth.money} if truth else {}
    lines = []
    for s in accounts.settlements:
        line = f"{s.model} earned {_with_interval(s.total.revenue_micro_usd, s.total.revenue_interval_micro_usd)}"
        line += f" of {usd(s.total.value_micro_usd)}"
        if s.total.open_micro_usd:
            line += f", and up to {usd(s.total.bounds_micro_usd[1])} if its unscored images were accepted"
        row = true.get(s.model)
        if row is not None and row.true_micro_usd is None:
            line += "; no image has a ground truth"
        elif row is not None and row.true_micro_usd is not None:
            line += f"; by ground truth {_with_interval(row.true_micro_usd, row.true_interval_micro_usd)}"
            if row.n_unknown:
                line += f" of the {usd(row.value_micro_usd)} of the images that have one"
        lines.append(line)
    return lines


def _with_interval(micro: int, interval: tuple[int, int] | None) -> str:
    return usd(micro) + (f" (95 %: {usd(interval[0])} to {usd(interval[1])})" if interval else "")


def judging_json(run: RunDir) -> list[dict[str, Any]]:
    """The result as JSON: shares as fractions, differences in points; null for tests that were not run."""
    retests, of_judges = retest_rows(run), rubric_sets(run)
    return [
        {
            "name": judge.name,
            "protocol": judge.protocol,
            "reproducible": judge.reproducible,
            "attacks": judge.attacks
            and {"n": judge.attacks.n, "n_fooled": judge.attacks.n_fooled, "n_unscored": judge.attacks.n_unscored},
            "retest": [_retest_json(row) for row in retests if row.judge == judge.name],
            "rubrics": dict(zip(("set", "sha256"), of_judges.get(judge.name, (None, None)), strict=True)),
        }
        for judge in judges(run)
    ]


def _retest_json(row: RepeatabilityRow) -> dict[str, Any]:
    same = row.retest.same
    return {
        "rubric": row.rubric,
        "criterion": row.criterion,
        "n_rounds": row.rounds,
        "n": same.n,
        "n_unscored": same.n_unscored,
        "same": same.value,
        "same_low": same.low,
        "same_high": same.high,
        "mean_abs_difference": row.retest.mean_abs_difference,
    }


_WIDE = ("value_usd", "share_low", "share_high", "images_low", "images_high", "open_usd")
"""Columns for which a terminal has no room where tasks have prices: the revenue's interval and bounds say the same."""


def settlement_text(
    accounts: Accounting, rules: dict[str, HardRuleStats], unseen: UnseenInputs, retried: bool = False
) -> str:
    """The settlement table; for tasks with hard rules also the images and tasks refused only by these rules. If some
    models do not support all tasks, a second table has the others."""
    price = accounts.price
    if price is None or accounts.cost_micro_usd is None:
        cost = "no price for this device: set settlement.usd_per_hour"
    else:
        source = f"{price.source}, {price.date}" if price.date else price.source
        cost = f"{price.gpu} at {usd_exact(price.micro_usd_per_hour)} per hour ({source})"
        cost += f"; total device cost of the run: {usd_fine(accounts.cost_micro_usd)}"

    def bounded(s: Settlement, of: Sequence[Settlement]) -> dict[str, Any]:
        if not any(settlement.total.open_micro_usd for settlement in of):
            return model_row(s)
        low, high = map(usd_number, s.total.bounds_micro_usd)
        return model_row(s) | {"bound_low": low, "bound_high": high}

    rows = []
    for s in accounts.settlements:
        row = bounded(s, accounts.settlements)
        if unseen.n_images:
            row["without_inputs"] = unseen.n_images.get(s.model, 0)
        if s.model in rules:
            row["refused"] = f"{rules[s.model].n_decided} in {rules[s.model].n_tasks_decided}"
        rows.append(row)
    wide = _WIDE if any(s.total.value_micro_usd for s in accounts.settlements) else ()
    notes = ["95 %: for tasks like these and the same decisions", f"cost: {cost}"]
    if retried:
        notes.append("revenue, share, tasks, images and unscored: of first attempts; cost: of all attempts")
    if unseen.n_images:
        notes.append("without inputs: images generated without all of their task's input images (suite.unsupported)")
    if unseen.common:
        n = unseen.common[0].total.n_tasks
        notes += ["", f"on the {count(n, 'tasks')} that all models support with all input images:"]
        notes.append(columns_text(settlement_table("", [bounded(s, unseen.common) for s in unseen.common], wide)))
    return "\n".join([columns_text(settlement_table("", rows, wide)), *notes])


def outcome_json(run: RunDir, outcome: Outcome, report: Path | None, settled: bool = False) -> dict[str, Any]:
    """The result as JSON; money in US dollars."""
    counts, n_failed = outcome.counts, outcome.n_failed
    images = {"n": counts.candidates, "n_done": counts.done, "n_unscored": counts.unscored, "n_failed": n_failed}
    result: dict[str, Any] = {
        "run_dir": str(run.path),
        "candidates": images,
        "verdicts": {"n": counts.verdicts, "n_unscored": counts.verdicts_unscored},
        "judges": judging_json(run),
        "unscored": [
            {"what": items.what, "n": items.n, "n_unscored": items.n_unscored, "reasons": dict(items.reasons)}
            for items in outcome.unscored
        ],
        "captions_cut": run.store.notes("captions_cut"),
    }
    if report:
        result["report"] = str(report)
    if report or settled:
        accounts = accounting(run.store, run.config.settlement)
        unseen = unseen_inputs(run)
        result["models"] = {
            s.model: settlement_json(s) | {"n_without_inputs": unseen.n_images.get(s.model, 0)}
            for s in accounts.settlements
        }
        if unseen.common:
            models = {s.model: _total_json(s.total) for s in unseen.common}
            result["supported_by_all"] = {"n_tasks": unseen.common[0].total.n_tasks, "models": models}
        for model, stats in hard_rule_stats(run).items():
            result["models"][model]["rules"] = {"counted": run.config.acceptance.rules, **asdict(stats)}
        result["cost_usd"] = _money(accounts.cost_micro_usd)
        result["benchmark"] = {label: numbers.data for label, numbers in official(run).items()}
        result["economics"] = economics_json(run, accounts)
        truth = check_ground_truth(run)
        if truth is not None:
            result["truth"] = {row.model: _truth_json(row) for row in truth.money}
    return result


def _truth_json(row: RevenueAudit) -> dict[str, Any]:
    low, high = row.true_interval_micro_usd or (None, None)
    return {
        "revenue_usd": _money(row.true_micro_usd),
        "revenue_low_usd": _money(low),
        "revenue_high_usd": _money(high),
        "judged_usd": usd_number(row.judged_micro_usd),
        "faultless_judge_usd": usd_number(row.faultless_micro_usd),
        "paid_not_right_usd": usd_number(row.too_much_micro_usd),
        "right_not_paid_usd": usd_number(row.too_little_micro_usd),
        "decided_alike": row.decided.value,
        "spearman": row.rho.value,
        "n": row.n,
        "n_right": row.n_right,
        "n_unknown": row.n_unknown,
    }


def settlement_json(s: Settlement) -> dict[str, Any]:
    return {
        **_total_json(s.total),
        "cost_usd": _money(s.cost_micro_usd),
        "profit_usd": _money(s.profit_micro_usd),
        "by_category": {category: _total_json(t) for category, t in s.by_category.items()},
    }


_TOTAL = (
    *(*AMOUNTS, "share", "coverage", "task_acceptance", "deliverable_acceptance"),
    *("n_tasks", "n_tasks_unscored", "n", "n_accepted", "n_unscored"),
)


def _total_json(t: Total) -> dict[str, Any]:
    values = in_usd(named(t), _TOTAL)
    ends = {f"revenue_{end}_usd": values[f"revenue_ci95_{end}_usd"] for end in ("low", "high")}
    return {"revenue_usd": None} | ends | values | {"as_printed": figures_json(t.as_printed)}


def _money(micro: int | None) -> float | None:
    return None if micro is None else usd_number(micro)


def described(tasks: Sequence[Task]) -> dict[str, Any]:
    """How many tasks have input images, and how many of the requested images have each hard rule."""
    named = (item for task in tasks for rules_of in task.rules for item in rules_of.items())
    rules = Counter(key for name, value in named for key in (value if isinstance(value, dict) else (name,)))
    return {
        "n_tasks_with_source": sum(task.source_sha256 is not None for task in tasks),
        "n_tasks_with_references": sum(bool(task.reference_sha256) for task in tasks),
        "rules": dict(sorted(rules.items())),
    }


def plan_text(plan: dict[str, Any]) -> str:
    """The plan as text."""
    generated = [m for m in plan["models"] if m["load"] != "imported"]
    tasks, images = count(plan["n_tasks"], "tasks"), count(plan["n_deliverables"], "images")
    worth = f"{tasks} worth ${plan['value_usd']:,.2f}, {images} requested"
    parts = [f"{plan['suite']}: {worth}, {count(plan['n_tasks_unscored'], 'tasks')} cannot be run"]
    parts.append(
        f"tasks with a source image: {plan['n_tasks_with_source']}, with reference images: "
        f"{plan['n_tasks_with_references']}"
    )
    if plan["rules"]:
        parts.append(f"images with a hard rule: {', '.join(f'{name} {n}' for name, n in plan['rules'].items())}")
    parts.append("")
    if generated:
        parts += [printed(_PLAN_WORK, generated), "", printed(_PLAN_MEMORY, map(_memory_row, generated)), ""]
    timed = [m["measured"] | {"model": m["model"]} for m in generated if m.get("measured")]
    if timed:
        parts += [printed(_PLAN_TIMED, timed), ""]
    for m in plan["models"]:
        if m["load"] == "imported":
            images = count(m["n_images"], "imported images")
            parts.append(f"{m['model']}: {images}, cost {_figure(m['cost_usd'], '$.2f')}")
        elif m["refused"]:
            parts.append(f"{m['model']}: refused: {m['refused']}")
        parts += [f"{m['model']}: {note}" for note in m["sentences"]]
    for judge in plan["judges"]:
        n = judge["tensor_parallel_size"]
        memory = f"{judge['vram_gb']:g} GB{f' on {n} GPUs of 80 GB' if n > 1 else ''}" if n else "on an external server"
        parts.append(f"judge: {judge['name']}, {count(judge['n_questions'], 'questions')}, {memory}")
        parts += [f"{judge['name']}: {note}" for note in judge["sentences"]]
    if not plan["judges"]:
        parts.append("judge: none; images get no scores of a judge and no decisions")
    disk = plan["disk_gb"]
    if generated:
        parts.append(
            f"disk: at most {_figure(disk['images'])} GB of images and at most {disk['encodings']:g} GB of encoded "
            "prompts at a time (engine.encodings_gb)"
        )
    return "\n".join([*parts, *_budget_lines(plan["budget"]), *textwrap.wrap(plan["basis"], 112)])


def _budget_lines(budget: dict[str, Any]) -> list[str]:
    """The whole run on the given GPUs; nothing if its time is unknown."""
    if budget["wall_hours"] is None:
        return []
    unknown = budget["metrics_unknown"]
    devices = count(budget["gpus_per_node"], "GPUs")
    devices += f" on each of {budget['nodes']} nodes" if budget["nodes"] > 1 else ""
    cost = _range(_figure(budget["cost_usd"], "$.2f"), _figure(budget["cost_usd_high"], "$.2f"))
    metrics = _range(*(_figure(s / 3600) for s in budget["metric_s"]))
    compilation = _range(*(_figure(s / 60) for s in budget["compile_s"]))
    return [
        f"whole run on {devices}: {_span(budget, 'wall_hours')} h, {_span(budget, 'gpu_hours')} GPU-hours, {cost}",
        f"  judging: {_figure(budget['judge_gpu_hours'])} GPU-hours; metrics: {metrics} GPU-hours",
        f"  loading: {_figure((budget['load_s'] + budget['judge_start_s']) / 60)} minutes on each node; compilation: "
        f"{compilation} minutes on each GPU",
        *([f"  without the metrics {', '.join(unknown)}, whose time is not known"] if unknown else []),
        *textwrap.wrap(budget["basis"], 110, initial_indent="  ", subsequent_indent="  "),
    ]


def _range(*ends: str) -> str:
    return " to ".join(dict.fromkeys(ends))


def _span(budget: dict[str, Any], name: str) -> str:
    return _range(_figure(budget[name]), _figure(budget[f"{name}_high"]))


def _figure(value: float | None, form: str = ".3g") -> str:
    form = ",.0f" if form == ".3g" and value is not None and value >= 999.5 else form  # without an exponent
    return "-" if value is None else f"{'$' * form.startswith('$')}{value:{form.removeprefix('$')}}"


_PLAN_WORK = (
    *(Column("model", "model"), Column("n_images", "images"), Column("n_batches", "batches")),
    *(Column("batch_size", "batch size"), Column("width", "width"), Column("height", "height")),
    *(Column("num_inference_steps", "steps"), Column("pflop_per_image", "PFLOP/image", _figure)),
    *(Column("planned_s_per_image", "s/image", _figure), Column("floor_s_per_image", "minimum", _figure)),
    Column("gpu_hours", "GPU-hours", ".3f"),
)
_PLAN_MEMORY = (
    *(Column("model", "model"), *(Column(phase, phase, ".1f", unit="GB") for phase in ("encode", "denoise", "decode"))),
    *(Column("all_resident_gb", "all loaded", ".1f", unit="GB"), Column("streamed", "streamed")),
    *(Column("fits", "fits"), Column("cost_usd", "cost", ",.2f", unit="$")),
    *(Column("wh_per_image", "Wh/image", _figure), Column("wh", "Wh", _figure)),
)
_PLAN_TIMED = (
    *(Column("model", "measured"), Column("device", "on"), Column("random_weights", "random weights")),
    *(Column("batch_size", "batch"), Column("step_s", "s/step", _figure)),
    Column("decode_s_per_image", "s decode", _figure),
    *(Column("s_per_image", "s/image", _figure), Column("gpu_hours", "GPU-hours", _figure)),
    Column("cost_usd", "cost", ",.4f", unit="$"),
)


def _memory_row(m: dict[str, Any]) -> dict[str, Any]:
    fits = {phase["fits"] for phase in m["phases"].values()}
    verdict = "no" if m["refused"] else None if None in fits else "yes"
    sizes = {name: phase["total_gb"] for name, phase in m["phases"].items()}
    return m | sizes | {"streamed": ", ".join(m["offload"]) or None, "fits": verdict}
