"""The commands that prepare and execute runs: `init`, `extract`, `demo`, `run`, `plan` and the single phases."""

from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from local_bench.cli.options import (
    ALLOW_REMOTE,
    CONFIG,
    JSON,
    PATH,
    TARGET,
    examples,
    overrides,
    suites_completed,
    targets_completed,
)
from local_bench.cli.output import progress, quoted, say, say_faults, show, show_json, show_result
from local_bench.core.errors import count
from local_bench.report.render import aligned

if TYPE_CHECKING:
    from local_bench.cli.labels import LabelOptions
    from local_bench.core.types import Score
    from local_bench.runs.config import RunConfig
    from local_bench.runs.rundir import RunDir

_PHASES = {"images": "generate", "verdicts": "judge"}
"""The phase that ends with exit status 1 if all of these have no value."""
_LARGE = 10_000
"""Candidates from which on the tables and the page take so long that it is shown."""
RUN_DIR = click.option("--run-dir", type=PATH, help="The run directory [default: runs/NAME, NAME from the config].")
REQUIRE_METRICS = click.option(
    "--require-metrics", is_flag=True, help="Refuse to start if the weights of a metric are missing."
)


@click.command(epilog=examples("local-bench demo", "local-bench demo --limit 8 --run-dir /tmp/demo"))
@RUN_DIR
@overrides
@JSON
def demo(run_dir: Path | None, settings: tuple[str, ...], as_json: bool) -> int:
    """Run all phases with small models included in local-bench.

    Takes a few minutes on two CPU cores and downloads nothing."""
    from local_bench.core.files import configs_dir

    return _run(configs_dir() / "runs" / "demo.yaml", run_dir, settings, None, as_json)


@click.command(
    epilog=examples(
        "local-bench run studio",
        "local-bench run my.yaml --limit 4 --set judge.protocol=logit",
        "local-bench run my.yaml            # continue after an interruption",
    )
)
@CONFIG
@RUN_DIR
@overrides
@REQUIRE_METRICS
@ALLOW_REMOTE
@JSON
def run(
    config: Path,
    run_dir: Path | None,
    settings: tuple[str, ...],
    require_metrics: bool,
    allow_remote: bool,
    as_json: bool,
) -> int:
    """Generate, measure, judge and settle as configured in CONFIG.

    Run the same command again to continue an interrupted run; the result is the same."""
    return _run(config, run_dir, settings, None, as_json, require_metrics=require_metrics, allow_remote=allow_remote)


@click.command(epilog=examples("local-bench generate my.yaml", "local-bench generate my.yaml --model flux1-schnell"))
@TARGET
@RUN_DIR
@overrides
@JSON
def generate(target: Path, run_dir: Path | None, settings: tuple[str, ...], as_json: bool) -> int:
    """Generate the images only."""
    return _run(target, run_dir, settings, ("generate",), as_json)


@click.command(
    epilog=examples(
        "local-bench judge runs/studio",
        "local-bench judge runs/studio --rejudge 2",
        "local-bench judge runs/studio --set judge.base_url=http://host:8000/v1",
    )
)
@TARGET
@click.option(
    "--rejudge", metavar="K", type=click.IntRange(1, 100), default=None, help="Then judge every question K more times."
)
@RUN_DIR
@overrides
@ALLOW_REMOTE
@JSON
def judge(
    target: Path,
    rejudge: int | None,
    run_dir: Path | None,
    settings: tuple[str, ...],
    allow_remote: bool,
    as_json: bool,
) -> int:
    """Judge the generated images only.

    With --rejudge, report how often the judge repeats its answers; stored verdicts do not change."""
    return _run(target, run_dir, settings, ("judge",), as_json, rejudge or 0, allow_remote=allow_remote)


@click.command(
    epilog=examples(
        "local-bench settle runs/studio",
        "local-bench settle runs/studio --set acceptance.brf=0.5          # not stored",
        "local-bench settle runs/studio --set settlement.usd_per_hour=2 --save",
        "local-bench settle runs/studio --plan-labels 0.1 --questions ask.jsonl",
        "local-bench settle runs/studio --people runs/studio      # annotated with `annotate`",
        "local-bench settle runs/studio --predictor payers/logistic # trained on other runs",
    )
)
@TARGET
@click.option(
    "--people",
    metavar="FILE|RUN",
    type=PATH,
    help="Human annotations: settle by them, and estimate revenue from them and the judge.",
)
@click.option(
    "--plan-labels",
    metavar="WIDTH",
    type=click.FloatRange(0, 1, min_open=True),
    help="Plan the next round of annotations for an interval of the revenue share of this width (0.1: ten points).",
)
@click.option(
    "--explain", is_flag=True, help="With --people: report which scores predict payment, and train predictors."
)
@click.option("--questions", metavar="FILE", type=PATH, help="Write the planned images to this new file.")
@click.option(
    "--predictor",
    metavar="DIR",
    type=PATH,
    help="Also settle by a predictor of payment, a folder written by `predictor train`.",
)
@click.option("--other-judge", is_flag=True, help="Use the predictor even if it was trained with another judge.")
@click.option("--save", is_flag=True, help="Store a result with --set in the run; without it nothing is changed.")
@RUN_DIR
@overrides
@JSON
def settle(
    target: Path, save: bool, run_dir: Path | None, settings: tuple[str, ...], as_json: bool, **of_labels: Any
) -> int:
    """Decide acceptance and compute revenue and cost from stored scores; `report` writes the pages and tables.

    With --set, print the result with other settings; it is stored only with --save. With --people, also settle by the
    annotators' decisions, and combine their annotations of some images with the judge's decisions on all."""
    from local_bench.cli.labels import LabelOptions

    labels = LabelOptions(**of_labels)
    labels.check()
    if save or not settings:
        return _run(target, run_dir, settings, ("settle",), as_json, labels=labels)
    from local_bench.cli.tables import outcome_json, outcome_text
    from local_bench.runs.stages import Outcome, settled_view

    with settled_view(*_locate(target, run_dir, settings)) as view:
        outcome = Outcome(view.store.counts(), view.store.unscored_items())
        text, values = labels.output(view)
        if as_json:
            show_json(outcome_json(view, outcome, None, settled=True) | {"saved": False} | values)
        else:
            show(outcome_text(view, outcome, None, settled=True) + text)
        say("local-bench: nothing was stored; add --save to store this result in the run")
        return say_faults(view.image_store.all_faults)


@click.command(
    epilog=examples(
        "local-bench measure runs/studio",
        "local-bench measure images/ --metrics l1_raw,ssim,pyiqa:topiq_nr --sources originals/ --json",
        "local-bench measure images/ --metrics clip_cap --captions captions.jsonl --out scores.jsonl",
    )
)
@click.argument("target", metavar="CONFIG|RUN|FOLDER", type=PATH, shell_complete=targets_completed)
@click.option("--metrics", metavar="NAME,…", help="The metrics to compute for the images in a folder.")
@click.option("--sources", type=PATH, help="Source images of edits, or conditions; matched by file name.")
@click.option("--masks", type=PATH, help="Masks, white where the source should change; matched by file name.")
@click.option("--references", type=PATH, help="Reference images; matched by file name (NAME, NAME_1, NAME_2 …).")
@click.option("--captions", type=PATH, help='JSON or JSON Lines: {"image": …, "caption": …}.')
@click.option("--out", type=PATH, help="Also append one JSON line per image to this file; continues it if it exists.")
@RUN_DIR
@overrides
@REQUIRE_METRICS
@JSON
def measure(
    target: Path,
    metrics: str | None,
    out: Path | None,
    run_dir: Path | None,
    settings: tuple[str, ...],
    require_metrics: bool,
    as_json: bool,
    **paired: Path | None,
) -> int:
    """Compute metrics only, for a run's images or (with --metrics) for the images in any folder."""
    from local_bench.core.environment import quiet_transformers
    from local_bench.core.errors import UserError
    from local_bench.core.files import find_config
    from local_bench.judges.metrics.registry import check_extras, metric_card

    if metrics is None:
        of_folder = {**paired, "out": out}
        flags = ("sources", "masks", "references", "captions", "out")
        stray = next((flag for flag in flags if of_folder[flag] is not None), None)
        if stray:
            raise UserError(f"--{stray} applies to a folder of images: name the metrics with --metrics")
        if target.is_dir() and not (target / "run.yaml").exists():
            raise UserError(
                f"{target} is a folder without a run: for the images in it, name the metrics with --metrics"
            )
        return _run(find_config(target), run_dir, settings, ("measure",), as_json, require_metrics=require_metrics)
    if run_dir is not None:
        raise UserError("--run-dir applies to a config: leave it out with --metrics")
    names = list(dict.fromkeys(name.strip() for name in metrics.split(",")))
    check_extras(names)
    from local_bench.generators.numerics import choose_device, set_determinism
    from local_bench.runs.config import engine_settings
    from local_bench.runs.measure_folder import PairedFiles, measure_images

    needs_models = any(metric_card(name) for name in names)
    engine = engine_settings(settings)
    if needs_models:
        set_determinism(engine.threads)  # imports torch, which takes seconds; pixel metrics do not need it
    quiet_transformers()
    engine = engine.model_copy(update={"device": str(choose_device(engine.device))})
    with progress() as bars:
        result = measure_images(target, names, PairedFiles(**paired), engine, bars, out, require_metrics)
    images = {
        image: {name: {"value": scores[name].value, "unscored": scores[name].unscored} for name in names}
        for image, scores in result.images.items()
    }
    rows = [[image, *(_cell(scores[name]) for name in names)] for image, scores in result.images.items()]
    values = {"metrics": result.metrics, "captions_cut": result.cut, "images": images}
    return show_result(values, aligned(["image", *names], rows), as_json)


def _cell(score: "Score") -> str:
    return f"{score.value:.4f}" if score.value is not None else f"unscored: {score.unscored}"


@click.command(
    epilog=examples(
        "local-bench plan studio --gpu a6000",
        "local-bench plan my.yaml --limit 100 --json",
        "local-bench plan my.yaml --measure          # on a machine with the GPU",
    )
)
@CONFIG
@click.option("--gpu", metavar="NAME", help="Plan for this GPU, which need not be present: a6000, a100-40, h100, …")
@click.option("--gpus", type=click.IntRange(1, 64), help="GPUs of each node [default: engine.workers, or 1].")
@click.option("--nodes", type=click.IntRange(1, 1000), default=1, show_default=True, help="Nodes that share the work.")
@click.option(
    "--measure", is_flag=True, help="Time every model on this machine with random weights; nothing is downloaded."
)
@overrides
@JSON
def plan(
    config: Path, gpu: str | None, gpus: int | None, nodes: int, measure: bool, settings: tuple[str, ...], as_json: bool
) -> int:
    """Estimate the work, memory, GPU-hours, cost and energy of CONFIG without loading models."""
    from local_bench.cli.tables import described, plan_text
    from local_bench.core.errors import UserError
    from local_bench.models.gpus import gpu as find_gpu
    from local_bench.runs.config import load_config
    from local_bench.runs.estimate import estimate
    from local_bench.runs.plan import make_plan, no_judge_key
    from local_bench.runs.progress import Late

    loaded = load_config(config, settings)
    if gpu is not None:
        if measure:
            raise UserError("--measure times this machine and --gpu plans for another GPU: give only one of them")
        find_gpu(gpu)  # raises for an unknown name
    with progress() as shown:
        bars = Late(shown)
        work = make_plan(loaded, files=False, progress=bars)
        say(*filter(None, (no_judge_key(loaded), *work.notes)))
        planned = estimate(loaded, work, gpu, gpus, nodes, bars)
    planned |= {"refused_cases": list(work.refused), "notes": work.notes, **described(work.tasks)}
    if measure:
        from local_bench.runs.timing import add_timings

        add_timings(loaded, work, planned)
    return show_result(planned, plan_text(planned), as_json)


def _locate(
    target: Path, run_dir: Path | None, settings: tuple[str, ...], judging: bool = False, allow_remote: bool = False
) -> tuple["RunConfig", Path]:
    """The config and run directory given by CONFIG|RUN and --run-dir."""
    from local_bench.core.errors import UserError
    from local_bench.core.files import runs_dir
    from local_bench.runs.config import load_config, load_config_to_judge
    from local_bench.runs.rundir import read_run_config

    if target.is_dir():
        if run_dir is not None:
            raise UserError(f"{target} is a run directory: leave --run-dir out")
        config = read_run_config(target, settings)
        stored = target / "run.yaml"
        return (load_config_to_judge(stored, settings, allow_remote=allow_remote) if judging else config), target
    if judging and (target.parent / "ledger.sqlite").exists():
        config = load_config_to_judge(target, settings, allow_remote=allow_remote)
    else:
        config = load_config(target, settings)
    return config, run_dir or runs_dir() / config.name


def _run(
    target: Path,
    run_dir: Path | None,
    settings: tuple[str, ...],
    stages: tuple[str, ...] | None,
    as_json: bool,
    rejudge: int = 0,
    require_metrics: bool = False,
    labels: "LabelOptions | None" = None,
    allow_remote: bool = False,
) -> int:
    from local_bench.cli.tables import REPORTED_SHARE, outcome_json, outcome_text, unscored_sentence
    from local_bench.runs.plan import refuse_no_judge_key
    from local_bench.runs.stages import STAGES, Outcome, ran

    config, run_dir = _locate(target, run_dir, settings, "judge" in (stages or STAGES), allow_remote)
    if stages is None and not (run_dir / "run.yaml").exists():  # else the run has its judge, or none
        refuse_no_judge_key(config)
    with ExitStack() as opened:
        with progress() as bars:
            finished = opened.enter_context(ran(config, run_dir, stages or STAGES, bars, rejudge, require_metrics))
        finished.image_store.recheck()
        outcome = Outcome(finished.store.counts(), finished.store.unscored_items())
        if stages is None:
            _write_report(finished, outcome.counts.candidates)
        report = run_dir / "report" / "index.html" if stages is None or "settle" in stages else None
        text, values = labels.output(finished) if labels else ("", {})
        if as_json:
            result = outcome_json(finished, outcome, report) | values
            show_json(result | {"image_faults": [vars(fault) for fault in finished.image_store.all_faults]})
        else:
            show(outcome_text(finished, outcome, report if stages is None else None, settled=report is not None) + text)
        if report and stages is not None:
            say(f"local-bench: `local-bench report {quoted(run_dir)}` writes the report and the exports")
        status = say_faults(finished.image_store.all_faults)
    for items in outcome.unscored:
        if items.n_unscored > REPORTED_SHARE * items.n:
            say(f"local-bench: {unscored_sentence(items)}")
        if items.n_unscored == items.n and _PHASES.get(items.what) in (stages or STAGES):
            status = 1
    if outcome.n_failed:
        say(f"local-bench: {count(outcome.n_failed, 'images')} could not be generated; see the report for the reasons")
        return 1
    return status


def _write_report(finished: "RunDir", n_candidates: int) -> None:
    from local_bench.analysis.settlement import accounting
    from local_bench.report.site.build import write_report
    from local_bench.report.site.paper import write_exports
    from local_bench.runs.progress import Quiet

    shown = progress() if n_candidates > _LARGE else nullcontext(Quiet())
    with shown as bars, bars.waiting("writing the exports and the report"):
        write_exports(finished, accounting(finished.store, finished.config.settlement), say)
        write_report(finished)


_TEMPLATE = """\
# {title}
name: {name}
suite: {{name: {name}}}
models:
  - {{card: flux1-schnell}}  # `local-bench models list` has all
judge: {{card: qwen3-vl-8b}}
metrics: [piqe, entropy]
"""


@click.command(
    epilog=examples(
        "local-bench init studio                          # writes studio.yaml",
        "local-bench init servimage --path ServImage_Bench --out ours.yaml",
    )
)
@click.argument("suite_name", metavar="SUITE", shell_complete=suites_completed)
@click.option("--path", type=PATH, help="The benchmark's file or folder, if it does not ship with local-bench.")
@click.option("--out", type=PATH, help="The new file [default: SUITE.yaml].")
@JSON
def init(suite_name: str, path: Path | None, out: Path | None, as_json: bool) -> int:
    """Write a run config for SUITE into this folder, to be edited.

    `plan` then estimates the run, `models fetch` downloads what it needs, and `run` executes it."""
    from local_bench.core.errors import ConfigError, UserError
    from local_bench.core.files import configs_dir, read_text, write_atomic
    from local_bench.core.yamlfile import yaml_line
    from local_bench.suites.registry import suite

    entry, target = suite(suite_name), out or Path(f"{suite_name}.yaml")
    if target.exists():
        raise UserError(f"{target} exists: give another file with --out")
    if entry.shipped and path:
        raise UserError(f"the suite {suite_name!r} includes its tasks: leave --path out")
    shipped = (configs_dir() / "runs" / f"{entry.name}{ending}.yaml" for ending in ("", "-open-weights"))
    shipped_text = next((read_text(file, ConfigError, missing="reinstall") for file in shipped if file.is_file()), None)
    text = shipped_text or _TEMPLATE.format(title=entry.title, name=entry.name)
    if not entry.shipped:
        line = f"suite: {{name: {entry.name}"
        text = text.replace(f"{line}}}", f"{line}, path: {yaml_line(str(path or 'CHANGE-ME'))}}}  # {entry.files}", 1)
    write_atomic(target, text.encode())
    file, first = quoted(target), "" if entry.shipped or path else "once suite.path in it is set, "
    text = f"{target}: {first}`local-bench plan {file}` estimates it, `local-bench run {file}` runs it"
    return show_result({"config": str(target)}, text, as_json)


@click.command(
    epilog=examples(
        "local-bench extract my.yaml --out points.jsonl", "local-bench extract my.yaml --out points.jsonl --rules"
    )
)
@CONFIG
@click.option("--out", required=True, type=PATH, help="The file to write; continued if it exists.")
@click.option("--rules", is_flag=True, help="Extract hard rules (size, aspect, file type) from ServImage's briefs.")
@overrides
@JSON
def extract(config: Path, out: Path, rules: bool, settings: tuple[str, ...], as_json: bool) -> int:
    """Generate fields that the task files lack, with CONFIG's judge.

    Evaluation points for ServImage, checklists for HYPE-EDIT-1, prompts for IDEA-Bench's text-to-image models; with
    --rules the hard rules stated in ServImage's briefs. One OUT can contain both. Then run with suite.written=OUT."""
    from local_bench.runs.config import load_config
    from local_bench.runs.enrichment import write_enrichment

    loaded = load_config(config, settings)
    with progress() as bars:
        result = write_enrichment(loaded, out, bars, "rules_question" if rules else "enrichment_question")
    values = {"written": str(out), "n": result.n, "n_there": result.n_existing, "refused": result.refused}
    use = f"run with --set suite.written={quoted(out)}" if out.stat().st_size else "it adds nothing to a run"
    text = f"{count(result.n, 'tasks')} added to {out}, which already had {result.n_existing} of these: {use}"
    show_result(values, text, as_json)
    for task_id, reason in list(result.refused.items())[:20]:
        say(f"{task_id}: {reason}")
    return 1 if result.refused else 0
