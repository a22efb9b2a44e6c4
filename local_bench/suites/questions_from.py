"""Questions of other benchmarks about a suite's images (`suite.questions_from`), scored separately from its own.

Each image of a task is judged individually, as an image of the other benchmark: its `questions` and `scores` are
applied to the task in the form that it expects. The scores have a prefix (`ice_vllmqa`), decide nothing and are not
part of the suite's own statistics. Verdicts are keyed like the suite's; no two benchmarks share a rubric.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import fmean

from local_bench.core.errors import ConfigError
from local_bench.core.types import Question, Score, Task, Verdict
from local_bench.suites.base import Suite
from local_bench.suites.hype_edit_1 import questions as hype_edit_1
from local_bench.suites.ice_bench import questions as ice_bench
from local_bench.suites.ice_bench.published import image_score
from local_bench.suites.idea_bench import questions as idea_bench
from local_bench.suites.idea_bench.export import case_scores as idea_case_scores
from local_bench.suites.idea_bench.results import REPEATS
from local_bench.suites.registry import suite
from local_bench.suites.run_results import RunResults
from local_bench.suites.servimage import questions as servimage

Key = tuple[int, str, int, int]
"""(deliverable, rubric, point, repeat)"""
Questions = Callable[[Task, Mapping[int, str]], Iterator[tuple[Key, Question]]]
Scores = Callable[[Task, Mapping[Key, Verdict]], list[Score]]


@dataclass(frozen=True)
class ForeignQuestions:
    """One benchmark's questions."""

    fit: Callable[[Task], Task | None]
    """The task with one image in the form that the benchmark expects; None if it has no questions about such a task."""
    questions: Questions
    scores: Scores
    names: Mapping[str, str]
    """The benchmark's name of a score -> its prefixed name."""


def check_borrowed(suite_name: str, names: list[str]) -> None:
    """ConfigError for an unknown or duplicate benchmark, or one whose questions the suite asks itself."""
    for i, name in enumerate(names):
        if name not in BENCHMARKS:
            raise ConfigError(
                f"suite.questions_from: unknown benchmark {name!r}: available are {', '.join(BENCHMARKS)}"
            )
        if name == suite_name or (name == "servimage" and suite_name not in BENCHMARKS):
            raise ConfigError(f"suite.questions_from: {suite_name} already includes the questions of {name}: remove it")
        if name in names[:i]:
            raise ConfigError(f"suite.questions_from: duplicate {name!r}: keep one")


def borrowed_questions(
    entry: Suite, names: list[str], task: Task, images: Mapping[int, str]
) -> Iterator[tuple[Key, Question]]:
    """The other benchmarks' questions about the images (deliverable -> pixel digest) of a task of the suite `entry`."""
    prompts = {d.index: d.prompt for d in entry.deliverables(task)} if VQA in names and task.caption is None else {}
    for name in names:
        other = BENCHMARKS[name]
        for i, sha in sorted(images.items()):
            fitted = other.fit(replace(_alone(task, i), caption=prompts.get(i, task.caption)))
            for (_, rubric, point, repeat), question in () if fitted is None else other.questions(fitted, {1: sha}):
                yield (i, rubric, point, repeat), question


def borrowed_scores(names: list[str], task: Task, verdicts: Mapping[Key, Verdict]) -> dict[int, list[Score]]:
    """Deliverable -> scores of the other benchmarks; not applicable if one has no questions about the task."""
    by_deliverable: dict[int, list[Score]] = {i: [] for i in range(1, len(task.deliverables) + 1)}
    for name in names:
        other = BENCHMARKS[name]
        for i, scores in by_deliverable.items():
            fitted = other.fit(_alone(task, i))
            if fitted is None:
                scores += [Score(ours, None, applies=False) for ours in other.names.values()]
                continue
            mine = {(1, *key[1:]): verdict for key, verdict in verdicts.items() if key[0] == i}
            by_name = {score.name: score for score in other.scores(fitted, mine)}
            scores += [replace(by_name[theirs], name=ours) for theirs, ours in other.names.items()]
    return by_deliverable


def derived_scores(suite_name: str, names: list[str], results: RunResults) -> Iterator[tuple[str, Score]]:
    """(work id, score) of every image: what a benchmark, the suite's own included, computes from several scores of one
    image; nothing without other benchmarks. These scores follow from stored ones and are not stored.

    `ice_composite`: ICE-Bench's eqs. 1 to 10, in [0, 1]. `idea_case`: IDEA-Bench's score of a case, in percent; only in
    its own runs, because its six questions have three levels, which the points of other tasks do not have.
    """
    benchmarks = {suite_name, *names} if names else set()
    cases = idea_case_scores(results) if names and suite_name == "idea-bench" else {}
    for image in results.images:
        if image.pixels_sha256 is None:
            continue
        if "ice-bench" in benchmarks:
            names_here = BENCHMARKS["ice-bench"].names
            theirs = {name: image.scores[ours] for name, ours in names_here.items() if ours in image.scores}
            yield image.work_id, image_score(image.task, image.scores | theirs)
        if image.work_id in cases:
            yield image.work_id, cases[image.work_id]


def pass_fail(names: list[str]) -> tuple[str, ...]:
    """The scores on which a panel votes."""
    return tuple(
        BENCHMARKS[name].names[score] for name in names for score in (hype_edit_1.PASS_FAIL if name == HYPE else ())
    )


def scale_of(suite_name: str, score: str) -> tuple[float, float] | None:
    """The ends of the scale of a judge's score of the suite or of another benchmark; None for other scores."""
    benchmark = next((name for name, other in BENCHMARKS.items() if score in other.names.values()), suite_name)
    if benchmark == VQA:
        return (0.0, 1.0)
    entry = suite(benchmark)
    is_of_judge = benchmark != suite_name or score in entry.scores_of_judge
    return None if entry.top_score is None or not is_of_judge else (0.0, entry.top_score)


def _alone(task: Task, number: int) -> Task:
    """The task with this deliverable as its only one."""
    return replace(task, deliverables=(task.deliverables[number - 1],))


def _edit(task: Task) -> Task | None:
    return task if task.source_sha256 is not None else None


def _ice(task: Task) -> Task | None:
    return None if task.source_sha256 is None else replace(task, metrics=(ice_bench.VLLM_QA,))


def _idea(task: Task) -> Task | None:
    inputs = task.input_images
    collage = {"given": inputs, "outputs": (1,), "card": False}
    points = task.evaluation_points
    return replace(task, own=task.own | {"sheets": [collage] * len(points)}) if points else None


def _idea_scores(task: Task, verdicts: Mapping[Key, Verdict]) -> list[Score]:
    """The fraction of points that the image meets, each the mean over its repeats, in [0, 1]."""
    values = []
    for k in range(len(task.evaluation_points)):
        repeats = [verdicts.get((1, idea_bench.RUBRIC, k, repeat)) for repeat in range(REPEATS)]
        answered = [value for v in repeats if v is not None and (value := v.value("met")) is not None]
        if len(answered) < len(repeats):
            return [Score(IDEA_MET, None, f"{len(repeats) - len(answered)} askings of point {k + 1} have no answer")]
        values.append(fmean(answered))
    return [Score(IDEA_MET, fmean(values))]


def _servimage(task: Task) -> Task:
    return replace(task, evaluation_points=())  # other benchmarks' points are questions of another form


def _servimage_scores(task: Task, verdicts: Mapping[Key, Verdict]) -> list[Score]:
    return servimage.scores(task, verdicts)[1]


def _vqa_questions(task: Task, images: Mapping[int, str]) -> Iterator[tuple[Key, Question]]:
    """VQAScore's question about the caption that metrics use too: the task's own, or the prompt."""
    yield (1, VQA_SCORE, 0, 0), Question(VQA_SCORE, 0, (images[1],), (("caption", task.caption or ""),))


def _vqa_scores(task: Task, verdicts: Mapping[Key, Verdict]) -> list[Score]:
    verdict = verdicts.get((1, VQA_SCORE, 0, 0))
    if verdict is None:
        return [Score(VQA_SCORE, None, "the judge was not reached")]
    return [Score(VQA_SCORE, verdict.value("shown"), verdict.unscored)]


VQA, VQA_SCORE = "vqa-score", "vqa_score"
HYPE = "hype-edit-1"
IDEA_MET = "met"
BENCHMARKS: Mapping[str, ForeignQuestions] = {
    "servimage": ForeignQuestions(
        _servimage, servimage.questions, _servimage_scores, {"veq": "servimage_veq", "cns": "servimage_cns"}
    ),
    "idea-bench": ForeignQuestions(_idea, idea_bench.questions, _idea_scores, {IDEA_MET: "idea_met"}),
    HYPE: ForeignQuestions(
        _edit,
        hype_edit_1.questions,
        lambda task, verdicts: hype_edit_1.scores(task, verdicts)[1],
        {hype_edit_1.PASS: "hype_pass", hype_edit_1.RATING: "hype_rating"},
    ),
    "ice-bench": ForeignQuestions(
        _ice,
        ice_bench.questions,
        lambda task, verdicts: ice_bench.scores(task, verdicts)[1],
        {ice_bench.VLLM_QA: "ice_vllmqa"},
    ),
    VQA: ForeignQuestions(
        lambda task: None if task.caption == "" else task, _vqa_questions, _vqa_scores, {VQA_SCORE: VQA_SCORE}
    ),
}
"""By name."""
