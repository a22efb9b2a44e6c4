"""Runs the phases of a run in order; each phase processes only the items that are not done."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from local_bench.core.environment import isolate, require
from local_bench.core.errors import ConfigError, LocalBenchError
from local_bench.core.types import NOT_FINITE
from local_bench.generators.registry import check_card
from local_bench.judges.metrics.registry import check_extras, check_metric, metric_card
from local_bench.models.cards import card
from local_bench.runs.config import RunConfig
from local_bench.runs.plan import RunPlan, check_config, enter_plan, judge_card, make_plan
from local_bench.runs.progress import FILE, Progress, Quiet, Recorded
from local_bench.runs.rundir import RunDir, read_run_config
from local_bench.runs.scoring import decide
from local_bench.runs.store.contents import file_digests, record, start_recording
from local_bench.runs.store.rows import Counts, UnscoredItems

STAGES = ("generate", "measure", "judge", "settle")
ON_DEVICE = {"generate", "measure", "judge"}


@dataclass(frozen=True)
class Outcome:
    """The state of a run after the requested stages."""

    counts: Counts
    unscored: Sequence[UnscoredItems] = ()
    """Images, verdicts and metric scores without a value, with the reasons."""

    @property
    def n_failed(self) -> int:
        """The candidates whose model output was not finite."""
        reasons = (reason for items in self.unscored if items.what == "images" for reason in items.reasons)
        return dict(reasons).get(NOT_FINITE, 0)


@contextmanager
def ran(
    config: RunConfig,
    run_dir: Path,
    stages: tuple[str, ...] = STAGES,
    progress: Progress | None = None,
    rejudge: int = 0,
    require_metrics: bool = False,
    only: frozenset[str] | None = None,
) -> Iterator[RunDir]:
    """Start or continue the run in `run_dir` with `stages`, and keep it open: a large ledger is checked for seconds
    whenever it is opened. `rejudge` is the number of additional judging rounds.

    With `only` a new run has these tasks alone. With `require_metrics`, missing weights of a metric raise a
    WeightsError instead of leaving its scores unscored. Raises the errors of `core.errors`; everything committed before
    is kept, and the same call continues from there. That of a model that cannot be generated, if there are images of
    others, and that of a metric are raised at the end: the stages are complete for the others.
    """
    isolate()
    if ON_DEVICE & set(stages):
        check_extras(config.metrics if "measure" in stages else ())
        require("generate")
    begun = (run_dir / "run.yaml").is_file()
    if begun:
        _check_cards(config, run_dir, stages)
    check_config(config, stages=stages if begun else ("generate", *stages))
    for name in config.metrics if require_metrics else ():
        check_metric(name)
    if ON_DEVICE & set(stages) and config.engine.executor == "local":
        from local_bench.generators.numerics import choose_devices

        choose_devices(config.engine.device, config.engine.workers)  # raises before there is a run directory
    with RunDir.begin(run_dir, config) as run:
        try:
            fault = _plan_and_run(run, stages, Recorded(progress or Quiet(), run.logs / FILE), rejudge, only)
        finally:
            with suppress(LocalBenchError):  # the disk or the database failed, which is already an error
                record(run.store, file_digests(run.path))
        run.config = read_run_config(run_dir)  # its paths are those of the run directory
        yield run
    if fault:
        raise fault


def _check_cards(config: RunConfig, run_dir: Path, stages: tuple[str, ...]) -> None:
    """ConfigError, with how to continue, for a model or judge of the run whose card is not accepted any more."""
    stored = read_run_config(run_dir)
    models, judges = ([(one.label, one.card) for one in of] for of in (stored.models, stored.judges))
    try:
        for model in config.models if "generate" in stages else ():
            if (model.label, model.card) in models and not model.imported:
                check_card(card(model.card, "generator"))
        for judge in config.judges if "judge" in stages else ():
            if (judge.label, judge.card) in judges:
                judge_card(judge)
    except ConfigError as e:
        remedy = "restore that card (`settle` and `report` do without), or give a new --run-dir"
        raise ConfigError(f"{e}; {run_dir} was begun with an earlier card of this model: {remedy}") from e


@contextmanager
def settled_view(config: RunConfig, run_dir: Path) -> Iterator[RunDir]:
    """The run in `run_dir` settled under `config`, in memory; nothing is stored. Raises the errors of `ran`,
    and a ConfigError if `config` differs in settings other than acceptance, prices and the like."""
    isolate()
    check_config(config, stages=("settle",))
    with RunDir.view(run_dir, config) as run:
        _refuse_other_scores(run)
        run.image_store.check(run.store, decode=False)
        decide(run)
        yield run


def _plan_and_run(
    run: RunDir, stages: tuple[str, ...], progress: Progress, rejudge: int, only: frozenset[str] | None = None
) -> LocalBenchError | None:
    """The error of a model or of a metric that left the others complete, if there is one."""
    plan = fault = None
    if stages == ("judge",):
        _ = run.config.required_judge
    start_recording(run.store)
    if "generate" in stages or run.grows or not run.store.planned:
        if run.grows:
            _check_cards(run.config, run.path, ("generate",))
        plan = make_plan(run.config, run.path, only=only)
        unscored = (f"{task.task_id}: {task.unscored}" for task in plan.tasks if task.unscored)
        for sentence in (*enter_plan(run, plan), *plan.notes, *unscored):
            progress.note(sentence)
    if set(stages) & ON_DEVICE:  # without them, `settle --save` stores what its options say
        for sentence in run.replaced_settings():
            progress.note(sentence)
    if stages == ("settle",):
        _refuse_other_scores(run)
    run.write_config()
    if set(stages) & ON_DEVICE:
        fault = _run_device_stages(run, plan, stages, progress, rejudge)
    if "settle" in stages:
        run.image_store.check(run.store, decode=False)
        decide(run)
    return fault


def _refuse_other_scores(run: RunDir) -> None:
    """ConfigError if the stored scores are by other judges than the config's, or were combined or extended in another
    way: only the judge phase computes scores."""
    scored_by, stored = (run.store.json_meta("judges") or {}).values(), read_run_config(run.path)
    judges = [judge.label for judge in run.config.judges]
    same = judges == [judge.label for judge in stored.judges] and len(judges) == len(scored_by)
    same &= len(judges) == 1 or stored.panel_word == run.config.panel_word
    if judges and scored_by and not (same and stored.suite.questions_from == run.config.suite.questions_from):
        raise ConfigError(
            f"{run.path} has scores by {', '.join(scored_by)} (panel_word: {stored.panel_word}): `panel`, `panel_word` "
            "and `suite.questions_from` are applied by judging: enter `local-bench judge` with these settings first"
        )


def _run_device_stages(
    run: RunDir, plan: RunPlan | None, stages: tuple[str, ...], progress: Progress, rejudge: int
) -> LocalBenchError | None:
    """Run the stages that use a device, whose time is metered; torch is imported here and not earlier."""
    from local_bench.generators.numerics import choose_devices, set_determinism
    from local_bench.runs.estimate import Overall, weights_of_phases
    from local_bench.runs.executors.base import Executor
    from local_bench.runs.generate import generate
    from local_bench.runs.judge import judge
    from local_bench.runs.judge import rejudge as repeat_judging
    from local_bench.runs.judge_factory import attention_of
    from local_bench.runs.measure import measure
    from local_bench.runs.provenance import write_provenance

    set_determinism(run.config.engine.threads)
    # one device is enough if only pixel metrics are computed
    one_device = not plan and "judge" not in stages and not any(metric_card(name) for name in run.config.metrics)
    if plan and len(ON_DEVICE & set(stages)) > 1:
        progress = Overall(progress, weights_of_phases(run, plan, stages))
    executor: Executor
    engine = run.config.engine
    if engine.executor == "ray":
        from local_bench.runs.executors.ray_executor import RayExecutor

        executor = RayExecutor(run, progress)
    else:
        devices = choose_devices(engine.device, engine.workers, progress.note)
        executor = Executor(run.store, devices[:1] if one_device else devices, run.logs)
    status, fault = "failed", None
    try:
        if "judge" in stages:  # a judge that cannot run as the config requires is an error before images are generated
            for config in run.config.judges:
                attention_of(config, executor.judge_devices[0])
        if "generate" not in stages:  # `generate` checks the images itself
            run.image_store.check(run.store, decode=True, io_workers=run.config.engine.io_workers)
        if plan and "generate" in stages:
            fault = generate(run, plan.models, executor, progress)
            run.store.backup()
        if "measure" in stages:
            of_metric = measure(run, executor, progress)
            fault = fault or of_metric
            run.store.backup()
        if "judge" in stages:
            judge(run, executor, progress)
            if rejudge:
                repeat_judging(run, executor, progress, rejudge)
        write_provenance(run, plan, executor.judge_devices if "judge" in stages else None)
        run.store.backup()
        status = "failed" if fault else "done"
    except KeyboardInterrupt:
        status = "interrupted"
        raise
    finally:
        executor.end(status)
    return fault
