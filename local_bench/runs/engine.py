"""The in-process engine: runs the phases of a run in their order, each of which only does what is not done."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from local_bench.core.environment import isolate
from local_bench.core.types import NOT_FINITE
from local_bench.judges.metrics.registry import check_metrics, metric_card
from local_bench.runs.acceptance import decide
from local_bench.runs.config import RunConfig
from local_bench.runs.image_store import ImageFault
from local_bench.runs.plan import RunPlan, check_config, make_plan
from local_bench.runs.planned import enter_plan
from local_bench.runs.progress import Progress, Quiet
from local_bench.runs.rundir import RunDir

STAGES = ("generate", "measure", "judge", "settle")
ON_DEVICE = {"generate", "measure", "judge"}


@dataclass(frozen=True)
class Outcome:
    """How a run stands after the stages that were asked for."""

    run_dir: Path
    n_candidates: int
    n_done: int
    n_unscored: int
    """Not made for a reason that lies in the order, or in the model's own numbers."""
    n_failed: int
    """Of those, not made because the model failed."""
    n_verdicts: int
    n_verdicts_unscored: int
    image_faults: tuple[ImageFault, ...] = ()
    """Pictures that are missing, damaged or altered."""


def run_stages(
    config: RunConfig,
    run_dir: Path,
    stages: tuple[str, ...] = STAGES,
    progress: Progress | None = None,
    rejudge: int = 0,
    require_metrics: bool = False,
) -> Outcome:
    """Begins or continues the run in `run_dir` through `stages`; `rejudge` asks the judges so many times more.

    With `require_metrics` a metric whose weights are not here is a WeightsError, and not unscored rows.
    Raises the errors of `core.errors`; whatever was committed before stays, and the same call goes on from there.
    """
    isolate()
    check_config(config, files=bool(ON_DEVICE & set(stages)))  # settling needs no weights and no folder of images
    if require_metrics:
        check_metrics(config.metrics)
    with RunDir.begin(run_dir, config) as run:
        _run(run, stages, progress or Quiet(), rejudge)
        return outcome_of(run)


@contextmanager
def settled_view(config: RunConfig, run_dir: Path) -> Iterator[RunDir]:
    """The run in `run_dir` as it would be settled under `config`: in memory, nothing is stored. Errors as `run_stages`,
    and a ConfigError where `config` differs in more than acceptance, prices and the like."""
    isolate()
    check_config(config, files=False)
    with RunDir.view(run_dir, config) as run:
        run.pictures.check(run.store, decode=False)
        decide(run)
        yield run


def _run(run: RunDir, stages: tuple[str, ...], progress: Progress, rejudge: int) -> None:
    plan = None
    if "generate" in stages or not run.store.meta("planned"):
        plan = make_plan(run.config, run.path)
        enter_plan(run, plan)
        for sentence in plan.notes:
            progress.note(sentence)
        for task in plan.tasks:
            for sentence in (*task.notes, *([task.unscored] if task.unscored else [])):
                progress.note(f"{task.task_id}: {sentence}")
    if set(stages) & ON_DEVICE:
        _hold_device(run, plan, stages, progress, rejudge)
    if "settle" in stages:
        run.pictures.check(run.store, decode=False)
        decide(run)


def _hold_device(run: RunDir, plan: RunPlan | None, stages: tuple[str, ...], progress: Progress, rejudge: int) -> None:
    """The stages for which a device is held and paid; torch is imported here and not before."""
    from local_bench.generators.numerics import choose_devices, device_name, set_determinism
    from local_bench.runs.device import Place
    from local_bench.runs.generate import generate
    from local_bench.runs.judge import judge
    from local_bench.runs.measure import measure
    from local_bench.runs.meter import Meter
    from local_bench.runs.provenance import write_provenance
    from local_bench.runs.repeatability import rejudge as ask_again

    set_determinism(run.config.engine.threads)
    devices = choose_devices(run.config.engine.device, run.config.engine.workers)
    if not plan and "judge" not in stages and not any(metric_card(name) for name in run.config.metrics):
        devices = devices[:1]  # nothing but pixels is looked at
    places = [Place(device_name(device), device.index if device.type == "cuda" else None) for device in devices]
    meters = [Meter(run.store, place.device, place.cuda_index) for place in places]
    how = "failed"
    try:
        if "generate" not in stages:  # which checks all that it does not make again
            run.pictures.check(run.store, decode=True, io_workers=run.config.engine.io_workers)
        if plan and "generate" in stages:
            generate(run, plan.models, meters, progress)
            run.store.backup()
        if "measure" in stages:
            measure(run, meters, progress)
            run.store.backup()
        if "judge" in stages:
            judge(run, places, meters, progress)
            if rejudge:
                ask_again(run, places, meters, progress, rejudge)
            run.store.backup()
        write_provenance(run, plan, places if "judge" in stages else None)
        how = "done"
    except KeyboardInterrupt:
        how = "interrupted"
        raise
    finally:
        for held in meters:
            held.end(how)


def outcome_of(run: RunDir) -> Outcome:
    """The counts of an open run."""
    counts = run.store.counts()
    return Outcome(
        run_dir=run.path,
        n_candidates=counts.candidates,
        n_done=counts.done,
        n_unscored=counts.unscored,
        n_failed=run.store.n_unscored(NOT_FINITE),
        n_verdicts=counts.verdicts,
        n_verdicts_unscored=counts.verdicts_unscored,
        image_faults=tuple(run.pictures.look_again()),
    )
