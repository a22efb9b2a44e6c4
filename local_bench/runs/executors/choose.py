"""Opens the executor that a run's config selects."""

from local_bench.generators.numerics import choose_devices
from local_bench.runs.executors.base import Executor
from local_bench.runs.executors.local import LocalExecutor
from local_bench.runs.progress import Progress
from local_bench.runs.rundir import RunDir


def open_executor(run: RunDir, progress: Progress, *, one_device: bool = False) -> Executor:
    """The executor of `engine.executor`; its devices are metered from now on, and it must be ended by `end`.

    ConfigError if the config's devices do not exist.
    """
    engine = run.config.engine
    if engine.executor == "ray":
        from local_bench.runs.executors.ray_executor import RayExecutor

        return RayExecutor(run, progress)
    devices = choose_devices(engine.device, engine.workers, progress.note)
    return LocalExecutor(run.store, devices[:1] if one_device else devices, run.logs)
