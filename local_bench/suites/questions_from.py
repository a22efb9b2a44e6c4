"""Questions of other benchmarks about a suite's images (`suite.questions_from`), scored separately from its own.

Each image of a task is judged individually, as an image of the other benchmark: its `questions` and `lent_scores` are
applied to the task in the form that it expects (`Suite.borrowing`). The scores have other names (`ice_vllmqa`), decide
nothing and are not part of the suite's own statistics. Verdicts are keyed like the suite's.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from local_bench.core.errors import ConfigError
from local_bench.core.types import Deliverable, Question, Score, Task, Verdict
from local_bench.suites.base import QuestionKey, Suite
from local_bench.suites.registry import all_suites, suite, suite_names
from local_bench.suites.run_results import RunResults


class _VqaScore(Suite):
    """VQAScore's question about the caption that metrics use too: the task's own, or the prompt."""

    name = "vqa-score"
    scores_of_judge = ("vqa_score",)
    top_score = 1
    lent = {"vqa_score": "vqa_score"}  # noqa: RUF012

    def deliverables(self, task: Task) -> list[Deliverable]:
        return []  # it has no tasks of its own

    def borrowing(self, task: Task) -> Task | None:
        return None if task.caption == "" else task

    def questions(
        self, task: Task, images: Mapping[int, str], order_swap: bool = False
    ) -> Iterator[tuple[QuestionKey, Question]]:
        yield (1, "vqa_score", 0, 0), Question("vqa_score", 0, (images[1],), (("caption", task.caption or ""),))

    def scores(self, task: Task, verdicts: Mapping[QuestionKey, Verdict]) -> dict[int, list[Score]]:
        verdict = verdicts.get((1, "vqa_score", 0, 0))
        if verdict is None:
            return {1: [Score("vqa_score", None, "the judge was not reached")]}
        return {1: [Score("vqa_score", verdict.value("shown"), verdict.unscored)]}


_VQASCORE = _VqaScore()


def check_borrowed(suite_name: str, names: Sequence[str]) -> list[str]:
    """The names of the other benchmarks' scores. ConfigError for an unknown or duplicate benchmark, or one whose
    questions the suite asks itself."""
    for i, name in enumerate(names):
        if name not in (*suite_names(), _VQASCORE.name) or not _lender(name).lent:
            lenders = [*(entry.name for entry in all_suites() if entry.lent), _VQASCORE.name]
            raise ConfigError(f"suite.questions_from: unknown benchmark {name!r}: available are {', '.join(lenders)}")
        if suite(suite_name).questions == _lender(name).questions:
            raise ConfigError(f"suite.questions_from: {suite_name} already includes the questions of {name}: remove it")
        if name in names[:i]:
            raise ConfigError(f"suite.questions_from: duplicate {name!r}: keep one")
    return [ours for name in names for ours in _lender(name).lent.values()]


def all_questions(
    entry: Suite, names: Sequence[str], task: Task, images: Mapping[int, str], order_swap: bool = False
) -> Iterator[tuple[QuestionKey, Question]]:
    """The suite's questions about the images (deliverable -> pixel digest) of its task, then the other benchmarks'.
    ConfigError if two of them ask about an image with the same rubric, whose answers could not be told apart."""
    keys = set()
    for key, question in entry.questions(task, images, order_swap):
        keys.add(key)
        yield key, question
    prompts = {}
    if _VQASCORE.name in names and task.caption is None:
        prompts = {d.index: d.prompt for d in entry.deliverables(task)}
    for other in map(_lender, names):
        for i, sha in sorted(images.items()):
            fitted = other.borrowing(replace(_alone(task, i), caption=prompts.get(i, task.caption)))
            for (_, rubric, point, repeat), question in () if fitted is None else other.questions(fitted, {1: sha}):
                key = (i, rubric, point, repeat)
                if key in keys:
                    raise ConfigError(
                        f"suite.questions_from: {other.name} asks with the rubric {rubric!r}, as another suite of this "
                        f"run does, so that their answers could not be told apart: remove {other.name}"
                    )
                keys.add(key)
                yield key, question


def borrowed_scores(
    names: Sequence[str], task: Task, verdicts: Mapping[QuestionKey, Verdict]
) -> dict[int, list[Score]]:
    """Deliverable -> scores of the other benchmarks; not applicable if one has no questions about the task."""
    by_deliverable: dict[int, list[Score]] = {i: [] for i in range(1, len(task.deliverables) + 1)}
    for other in map(_lender, names):
        for i, scores in by_deliverable.items():
            fitted = other.borrowing(_alone(task, i))
            if fitted is None:
                scores += [Score(ours, None, applies=False) for ours in other.lent.values()]
                continue
            mine = {(1, *key[1:]): verdict for key, verdict in verdicts.items() if key[0] == i}
            by_name = {score.name: score for score in other.lent_scores(fitted, mine)}
            scores += [replace(by_name[theirs], name=ours) for theirs, ours in other.lent.items()]
    return by_deliverable


def derived_scores(suite_name: str, names: Sequence[str], results: RunResults) -> Iterator[tuple[str, Score]]:
    """(work id, score) of every image: what a benchmark, the suite's own included, computes from several scores of one
    image; nothing without other benchmarks. These scores follow from stored ones and are not stored."""
    by_image: dict[str, list[Score]] = {image.work_id: [] for image in results.images}
    for other in (*map(_lender, names), suite(suite_name)) if names else ():
        for work_id, score in other.derived_scores(results, other.name != suite_name):
            by_image[work_id].append(score)
    yield from ((work_id, score) for work_id, scores in by_image.items() for score in scores)


def pass_fail(names: Sequence[str]) -> tuple[str, ...]:
    """The scores of the other benchmarks on which a panel votes."""
    return tuple(other.lent[score] for other in map(_lender, names) for score in other.pass_fail if score in other.lent)


def scale_of(suite_name: str, score: str) -> tuple[float, float] | None:
    """The ends of the scale of a judge's score of the suite or of another benchmark; None for other scores."""
    own = suite(suite_name)
    if score in own.scores_of_judge:
        top = own.top_score
    else:
        top = next((other.top_score for other in (*all_suites(), _VQASCORE) if score in other.lent.values()), None)
    return None if top is None else (0.0, top)


def _lender(name: str) -> Suite:
    return _VQASCORE if name == _VQASCORE.name else suite(name)


def _alone(task: Task, number: int) -> Task:
    return replace(task, deliverables=(task.deliverables[number - 1],))
