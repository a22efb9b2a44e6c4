"""One judge's answers to questions that are not part of a run."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from local_bench.core.types import Question, Verdict
from local_bench.judges.vlm.judge import JudgeSpec
from local_bench.judges.vlm.transport import Unreachable, answers
from local_bench.runs.device import JudgeDevice
from local_bench.runs.judge_config import JudgeConfig
from local_bench.runs.judge_factory import Load, open_judge
from local_bench.runs.progress import Progress


def judge_answers(
    config: JudgeConfig,
    spec: JudgeSpec,
    devices: Sequence[JudgeDevice],
    questions: Mapping[str, Question],
    load: Load,
    log: Path,
    progress: Progress,
    title: str,
) -> Generator[tuple[str, Verdict]]:
    """Yield (key, verdict) for every question; a judge that stops is restarted with what is left. `load` returns an
    image by its digest. ServerError if the judge is unavailable."""
    if not questions:
        return
    left = dict(questions)
    opened = open_judge(config, spec, devices, list(left.values()), load, log, progress)
    with ExitStack() as stack:
        with progress.waiting(f"starting the judge {config.label}"):
            transport = stack.enter_context(opened)
        progress.begin(f"{config.label}: {title}", len(left))
        while left:
            try:
                for key, verdict in answers(transport, spec, list(left.items())):
                    del left[key]
                    yield key, verdict
                    progress.advance()
            except Unreachable as e:
                progress.note(f"the judge stopped responding ({e}); {len(left)} questions remain")
                transport.restart()
