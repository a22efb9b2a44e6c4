"""The commands that do work: `demo`, `run`, `plan` and the stages alone."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from local_bench.cli.output import progress, say, say_faults, show, show_json

if TYPE_CHECKING:
    from local_bench.cli.labels import LabelsAsked
    from local_bench.runs.rundir import RunDir

SETTING = click.option("--set", "settings", multiple=True, metavar="KEY.SUB=VALUE", help="Lay a value over the config.")
RUN_DIR = click.option("--run-dir", type=click.Path(path_type=Path), help="Where the run lives [default: runs/NAME].")
REQUIRE_METRICS = click.option(
    "--require-metrics", is_flag=True, help="Refuse to begin where a metric's weights are missing."
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
FOLDER = click.Path(path_type=Path)
TARGET = click.argument("target", metavar="CONFIG|RUN", type=click.Path(path_type=Path))


@click.command()
@RUN_DIR
@SETTING
@JSON
def demo(run_dir: Path | None, settings: tuple[str, ...], as_json: bool) -> int:
    """Run everything once, on small models."""
    from local_bench.core.paths import configs_dir

    return _work(configs_dir() / "runs" / "demo.yaml", run_dir, settings, None, as_json)


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@RUN_DIR
@SETTING
@REQUIRE_METRICS
@JSON
def run(config: Path, run_dir: Path | None, settings: tuple[str, ...], require_metrics: bool, as_json: bool) -> int:
    """Do all that CONFIG asks for.

    Go on where a run was cut off: the same command, the same result."""
    return _work(config, run_dir, settings, None, as_json, require_metrics=require_metrics)


@click.command()
@TARGET
@RUN_DIR
@SETTING
@JSON
def generate(target: Path, run_dir: Path | None, settings: tuple[str, ...], as_json: bool) -> int:
    """Only make the images."""
    return _work(target, run_dir, settings, ("generate",), as_json)


@click.command()
@TARGET
@click.option("--rejudge", metavar="K", type=click.IntRange(1, 100), default=None, help="Then ask all K times more.")
@RUN_DIR
@SETTING
@JSON
def judge(target: Path, rejudge: int | None, run_dir: Path | None, settings: tuple[str, ...], as_json: bool) -> int:
    """Only have the images judged that are there.

    With --rejudge, say how often the judge repeats itself; the verdicts stay as they are."""
    return _work(target, run_dir, settings, ("judge",), as_json, rejudge or 0)


@click.command()
@TARGET
@click.option("--people", metavar="FILE", type=FOLDER, help="Also say what people would pay, by their labels on some.")
@click.option(
    "--plan-labels",
    metavar="WIDTH",
    type=click.FloatRange(0, 1, min_open=True),
    help="Also say how many labels make the interval of the revenue share so wide (0.1: ten points), and which.",
)
@click.option("--explain", is_flag=True, help="Also say what goes along with people's payment, and teach predictors.")
@click.option("--questions", metavar="FILE", type=FOLDER, help="Write a line for each of these into a new file.")
@RUN_DIR
@SETTING
@JSON
def settle(
    target: Path,
    people: Path | None,
    plan_labels: float | None,
    questions: Path | None,
    explain: bool,
    run_dir: Path | None,
    settings: tuple[str, ...],
    as_json: bool,
) -> int:
    """Only settle what has been judged.

    With --people, correct the judge's word on all images by people's on some; --plan-labels says on which."""
    from local_bench.cli.labels import LabelsAsked

    asked = LabelsAsked(people, plan_labels, questions, explain)
    asked.check()
    return _work(target, run_dir, settings, ("settle",), as_json, labels=asked)


@click.command()
@click.argument("target", metavar="CONFIG|RUN|FOLDER", type=click.Path(path_type=Path))
@click.option("--metrics", metavar="NAME,…", help="Which metrics, for a folder of images.")
@click.option("--sources", type=FOLDER, help="Pictures that were edited, or conditions; paired by name.")
@click.option("--masks", type=FOLDER, help="Masks, white where a source was to be changed; paired by name.")
@click.option("--references", type=FOLDER, help="Reference pictures; paired by name (NAME, NAME_1, NAME_2 …).")
@click.option("--captions", type=click.Path(path_type=Path), help='JSON or JSON Lines: {"image": …, "caption": …}.')
@click.option("--out", type=click.Path(path_type=Path), help="Also a line an image into this file; goes on from it.")
@RUN_DIR
@SETTING
@REQUIRE_METRICS
@JSON
def measure(
    target: Path,
    metrics: str | None,
    sources: Path | None,
    masks: Path | None,
    references: Path | None,
    captions: Path | None,
    out: Path | None,
    run_dir: Path | None,
    settings: tuple[str, ...],
    require_metrics: bool,
    as_json: bool,
) -> int:
    """Only measure images.

    Those of a run, or with --metrics those of any folder."""
    from local_bench.core.errors import UserError

    of_folder = {
        "--sources": sources,
        "--masks": masks,
        "--references": references,
        "--captions": captions,
        "--out": out,
    }
    if metrics is None:
        stray = next((flag for flag, value in of_folder.items() if value is not None), None)
        if stray:
            raise UserError(f"{stray} is for a folder of images: say with --metrics what to measure in it")
        return _work(target, run_dir, settings, ("measure",), as_json, require_metrics=require_metrics)
    if run_dir is not None:
        raise UserError("--run-dir is for a config: leave it out with --metrics")
    from local_bench.cli.folder import measure_folder
    from local_bench.runs.folder import Beside

    beside = Beside(sources, masks, references, captions)
    return measure_folder(target, metrics, beside, out, settings, require_metrics, as_json)


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--gpu", metavar="NAME", help="Plan for this GPU, which need not be here: a100-40, h100, …")
@click.option("--measure", is_flag=True, help="Time each model here, with random weights: nothing is fetched.")
@SETTING
@JSON
def plan(config: Path, gpu: str | None, measure: bool, settings: tuple[str, ...], as_json: bool) -> int:
    """Say what CONFIG would do and take.

    Items, batches, memory, GPU-hours, cost and energy, before anything is loaded."""
    from local_bench.cli.tables import plan_text
    from local_bench.core.errors import UserError
    from local_bench.models.gpus import gpu as gpu_named
    from local_bench.runs.config import load_config
    from local_bench.runs.estimate import estimate
    from local_bench.runs.plan import make_plan

    loaded = load_config(config, settings)
    if gpu is not None:
        if measure:
            raise UserError("--measure times the device at hand and --gpu plans for another: give one of the two")
        gpu_named(gpu)  # a wrong name is told before anything is counted
    work = make_plan(loaded, files=False)
    for sentence in work.refused:
        say(sentence)
    planned = estimate(loaded, work, gpu) | {"refused_cases": list(work.refused)}
    if measure:
        from local_bench.runs.timing import add_trials

        add_trials(loaded, work, planned)
    show_json(planned) if as_json else show(plan_text(planned))
    return 0


def _work(
    target: Path,
    run_dir: Path | None,
    settings: tuple[str, ...],
    stages: tuple[str, ...] | None,
    as_json: bool,
    rejudge: int = 0,
    require_metrics: bool = False,
    labels: "LabelsAsked | None" = None,
) -> int:
    from local_bench.cli.tables import outcome_json, outcome_text
    from local_bench.core.errors import UserError
    from local_bench.core.paths import runs_dir
    from local_bench.runs.config import load_config, load_config_to_judge
    from local_bench.runs.engine import STAGES, run_stages
    from local_bench.runs.rundir import RunDir, read_run_config

    judging = "judge" in (stages or STAGES)
    if target.is_dir():
        if run_dir is not None:
            raise UserError(f"{target} is a run directory and has its own place: leave --run-dir out")
        config, run_dir = read_run_config(target, settings), target
        if judging:
            config = load_config_to_judge(target / "run.yaml", settings)
    else:
        of_a_run = (target.parent / "ledger.sqlite").exists()
        config = (load_config_to_judge if judging and of_a_run else load_config)(target, settings)
        run_dir = run_dir or runs_dir() / config.name
    with progress() as shown:
        outcome = run_stages(config, run_dir, stages or STAGES, shown, rejudge, require_metrics)
    with RunDir.open(run_dir) as finished:
        finished.pictures.faults |= {fault.file: fault for fault in outcome.image_faults}
        report = _write_report(finished) if stages is None or "settle" in stages else None
        text, values = labels.answer(finished) if labels else ("", {})
        if as_json:
            found = outcome_json(finished, outcome, report) | values
            show_json(found | {"image_faults": [vars(fault) for fault in finished.pictures.all_faults]})
        else:
            show(outcome_text(finished, outcome, report) + text)
        faulty = say_faults(finished.pictures.all_faults)
    if outcome.n_failed:
        say(f"local-bench: {outcome.n_failed} images could not be made; the report says why")
        return 1
    return faulty


def _write_report(finished: "RunDir") -> Path:
    from local_bench.report.exports import write_exports
    from local_bench.report.page import write_report

    write_exports(finished)
    return write_report(finished)
