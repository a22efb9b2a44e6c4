"""Checks of what others have written, before anything is generated: which entry points a run uses, and whether a suite
that is not built in keeps what `Suite` promises, which otherwise fails after hours."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from local_bench.core.environment import entry_points
from local_bench.core.errors import ConfigError
from local_bench.core.files import is_safe_id
from local_bench.core.types import MAX_SCORE, Deliverable, Question, Score, Task, Verdict
from local_bench.generators import registry as generators
from local_bench.judges.metrics import registry as metrics
from local_bench.judges.vlm import judge as judges
from local_bench.judges.vlm.judge import JudgeSpec
from local_bench.models.cards import card
from local_bench.runs.config import RunConfig
from local_bench.suites import registry as suites
from local_bench.suites.base import QuestionKey, Suite


def unused_entry_points(config: RunConfig) -> Iterator[str]:
    """A sentence for each entry point that has a built-in name of this run. ConfigError for a name of two packages."""
    families = [card(model.card, "generator").family for model in config.models if model.imported is None]
    names_of: list[tuple[str, Collection[str], Iterable[str]]] = [
        (suites.PLUGINS, suites.BUILT_IN_SUITES, (config.suite.name, *config.suite.questions_from)),
        (metrics.PLUGINS, metrics.BUILT_IN, (name.partition(":")[0] for name in config.metrics)),
        (judges.PLUGINS, judges.BUILT_IN, (judge.transport for judge in config.judges)),
        (generators.PLUGINS, generators.BUILT_IN, families),
    ]
    for group, built_in, names in names_of:
        for name in dict.fromkeys(names):
            places = sorted({point.value for point in entry_points(group) if point.name == name})
            if places and name in built_in:
                yield f"{places[0]} is not used: {name!r} is a built-in name of {group}, and no package replaces it."
            elif len(places) > 1:
                raise ConfigError(f"{group}: {places[0]} and {places[1]} are both called {name!r}: remove one package")


def check_suite(
    entry: Suite, of_suite: Sequence[Task], tasks: Sequence[Task], stored: Collection[str], config: RunConfig
) -> None:
    """ConfigError, naming the class, if a suite does not keep what `Suite` promises: its tasks, and the deliverables,
    questions and scores of those in the plan. `stored` are the digests of input images."""
    where = f"suite {entry.name}: {type(entry).__module__}.{type(entry).__name__}"
    specs = [judge.spec(of, "", of.dtype) for judge in config.judges for of in (card(judge.card, "judge"),)]
    wrong = _tasks_fault(of_suite)
    try:
        for task in tasks if wrong is None else ():
            wrong = wrong or next(_task_faults(entry, task, stored, specs, config), None)
    except ConfigError as e:
        raise ConfigError(f"{where}.questions: {e}") from e
    if wrong is not None:
        raise ConfigError(f"{where}.{wrong}: correct it")


def _tasks_fault(tasks: Sequence[Task]) -> str | None:
    ids = set[str]()
    for task in tasks:
        if not is_safe_id(task.task_id):
            return f"read_tasks: {task.task_id!r} is no task id (letters, digits, '.', '_' and '-', at most 128)"
        if task.task_id in ids:
            return f"read_tasks returns two tasks {task.task_id!r}"
        if type(task.price_micro_usd) is not int or task.price_micro_usd < 0:
            return f"read_tasks: {task.task_id!r} has price_micro_usd {task.price_micro_usd!r}, no whole number from 0"
        ids.add(task.task_id)
    return None


def _task_faults(
    entry: Suite, task: Task, stored: Collection[str], specs: Sequence[JudgeSpec], config: RunConfig
) -> Iterator[str]:
    of_task = f"of {task.task_id!r}"
    requested = entry.deliverables(task)
    if fault := _other(requested, Deliverable):
        yield f"deliverables {of_task} returns {fault}"
    indices = [one.index for one in requested]
    if len({*indices}) < len(indices) or {*indices} - {*range(1, len(task.deliverables) + 1)}:
        yield f"deliverables {of_task} returns the indices {indices}, and the task has {len(task.deliverables)}, from 1"
    shown = (*task.input_images, *(sha for one in requested for sha in one.input_images))
    if unknown := [sha for sha in shown if sha not in stored]:
        yield f"deliverables {of_task} returns the input image {min(unknown)[:80]!r}, which `keep` has not stored"
    if task.unscored is not None or not specs:
        return
    images = {i: f"image {i}" for i in indices}
    answers: dict[QuestionKey, Verdict] = {}
    questions: Any = entry.questions(task, images, config.order_swap)
    if not isinstance(questions, Iterable):
        yield f"questions {of_task} returns {_kind(questions)} instead of keys and Questions"
    for item in questions:
        yield from (f"questions {of_task} {fault}" for fault in _question_faults(item, answers, images, stored, specs))
        key, question = item
        of_rubric = specs[0].rubrics[question.rubric]
        best = {criterion.name: criterion.labels[-1] for criterion in of_rubric.criteria}
        answers[key] = Verdict(of_rubric.from_labels(best), None, "")
    for verdicts in (dict.fromkeys(answers, Verdict(None, "no answer", "")), answers):
        yield from _score_faults(entry, task, verdicts, images)


def _question_faults(
    item: Any,
    so_far: Collection[QuestionKey],
    images: Mapping[int, str],
    stored: Collection[str],
    specs: Sequence[JudgeSpec],
) -> Iterator[str]:
    if not (isinstance(item, tuple) and len(item) == 2 and isinstance(item[1], Question)):
        yield f"yields {_kind(item)} instead of a key and a Question"
    key, question = item
    of_question = (question.rubric, question.point, question.repeat)
    if not isinstance(key, tuple) or key[1:] != of_question or key[0] not in images:
        yield f"yields the key {key}, which is not (deliverable, {', '.join(map(repr, of_question))})"
    if key in so_far:
        yield f"yields the key {key} twice"
    if unknown := [sha for sha in question.images if sha not in stored and sha not in images.values()]:
        yield f"shows the image {min(unknown)[:80]!r}, which is none of the task"
    if not specs[0].rubrics[question.rubric].answer:
        yield f"uses the rubric {question.rubric!r}, which has no `answer` and so no score"
    for spec in specs:
        spec.requests(question)


def _score_faults(
    entry: Suite, task: Task, verdicts: Mapping[QuestionKey, Verdict], images: Mapping[int, str]
) -> Iterator[str]:
    of_task = f"of {task.task_id!r}" + ("" if any(v.answer for v in verdicts.values()) else ", without answers,")
    by_image: Any = entry.scores_of_made(task, verdicts, images)
    if not isinstance(by_image, Mapping) or not {*by_image} <= {*images}:
        got = f"the deliverables {[*by_image]}" if isinstance(by_image, Mapping) else _kind(by_image)
        yield f"scores {of_task} returns {got} instead of lists of Score by deliverable ({[*images]})"
    for scores in by_image.values():
        if fault := _other(scores, Score):
            yield f"scores {of_task} returns {fault}"
        names = [score.name for score in scores]
        if unknown := sorted({*names} - {*entry.scores_of_judge}):
            yield f"scores {of_task} returns {unknown[0]!r}, which is not in scores_of_judge"
        if len({*names}) < len(names):
            yield f"scores {of_task} returns two scores of one name ({', '.join(names)})"
        for name, value in ((score.name, score.value) for score in scores):
            if value is not None and not (isinstance(value, int | float) and abs(value) <= MAX_SCORE):
                yield f"scores {of_task} returns {name} = {value!r}, no number up to {MAX_SCORE:g}"


def _other(values: Any, expected: type) -> str | None:
    """What `values` are, if they are not all of the expected type."""
    if not isinstance(values, Iterable):
        return f"{_kind(values)} instead of several {expected.__name__}"
    others = (f"{_kind(value)} instead of {expected.__name__}" for value in values if not isinstance(value, expected))
    return next(others, None)


def _kind(value: Any) -> str:
    return type(value).__name__
