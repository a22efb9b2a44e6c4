"""IDEA-Bench: briefs in five categories, with or without input images, for one or several images; six yes-or-no
questions per case.

Each question is repeated three times with one collage (sec. 3.3.2). A model receives the brief verbatim and its input
images. A case is not supported (a dash in table 2) if it has more input images than the model takes, or requests
several images at once, which no family here generates. If the case has rephrased prompts, such a model receives these
instead, one per image and without input images (the paper's dagger).
"""

from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import Any

from local_bench.core.types import UNSUPPORTED, Collage, Deliverable, Question, Score, Task, Verdict
from local_bench.models.cards import Takes
from local_bench.suites.base import QuestionKey as Key
from local_bench.suites.idea_bench.results import QUESTIONS, REPEATS, RUBRIC
from local_bench.suites.idea_bench.tasks import FOR_PEOPLE

MET = "met"
LENT = {MET: "idea_met"}
SCORES = tuple(f"question_{k}" for k in range(1, QUESTIONS + 1))
THRESHOLDS = dict.fromkeys(SCORES, 0.5)
"""Accepted if at least half of the repeats of each of the six questions are answered yes; the published score is
hierarchical (`scoring`)."""


def deliverables(task: Task) -> list[Deliverable]:
    """The images that a case requests, each with the whole brief as prompt."""
    return [Deliverable(task.task_id, i, task.brief, task.reference_sha256) for i in _numbers(task)]


def fitted(task: Task, takes: Takes) -> list[Deliverable] | str:
    """The deliverables, or one sentence why the model does not support the task."""
    beyond = _beyond(task, takes)
    if beyond is None:
        return deliverables(task)
    prompts = task.own.get("prompts")
    if prompts is None or not takes.text_alone or takes.condition:
        return f"{UNSUPPORTED}{beyond}"
    return [Deliverable(task.task_id, i, prompt) for i, prompt in enumerate(prompts, 1)]


def enrichment_question(task: Task) -> Question | None:
    """The question that requests the brief as prompts for text-only models; None if the brief itself can be used."""
    inputs = task.reference_sha256
    if "prompts" in task.own or (not inputs and len(task.deliverables) == 1):
        return None
    slots = (("brief", task.brief), ("count", str(len(task.deliverables))))
    return Question("rephrase", 0, inputs, slots, ("input",) * len(inputs))


def questions(task: Task, images: Mapping[int, str], order_swap: bool = False) -> Iterator[tuple[Key, Question]]:
    """The six questions, three times each, about collages of the existing outputs; they are keyed to the first existing
    image."""
    first = min(images, default=1)
    for k, (text, collage) in enumerate(zip(task.evaluation_points, task.own["sheets"], strict=True)):
        outputs = [images[i] for i in collage["outputs"] if i in images]
        if not outputs:
            continue
        images_shown = () if collage["card"] else (*collage["given"], *outputs)
        rows = Collage(count=len(outputs)) if collage["card"] else Collage(rows=(len(collage["given"]), len(outputs)))
        for repeat in range(REPEATS):
            question = Question(RUBRIC, k, images_shown, (("question", text),), (), repeat, rows)
            yield (first, RUBRIC, k, repeat), question


def points_for_people(task: Task) -> tuple[str, ...]:
    """The questions of the case's eval.json (sec. 3.3.1); if it has none, the judge's, each preceded by the images of
    its collage, since annotators see the images of the case instead."""
    sheets = zip(task.evaluation_points, task.own["sheets"], strict=True)
    return tuple(task.own.get(FOR_PEOPLE, ())) or tuple(_collage_text(task, sheet) + text for text, sheet in sheets)


def _collage_text(task: Task, collage: Mapping[str, Any]) -> str:
    """The content of a collage of several images, by the numbers that annotators see, as one line."""
    if collage["card"]:
        return "[About an image that shows the number of results as a digit]\n"
    number = {sha: i for i, sha in enumerate(task.reference_sha256, 1)}
    references = [number[sha] for sha in collage["given"] if sha in number]
    rows = [
        f"{name} {', '.join(map(str, numbers))}"
        for name, numbers in (("reference", references), ("image", collage["outputs"]))
        if numbers
    ]
    several = len(references) + len(collage["outputs"]) > 1
    return f"[About {' in the upper row, '.join(rows)}{' in the lower row' * (len(rows) - 1)}]\n" if several else ""


def scores(task: Task, verdicts: Mapping[Key, Verdict]) -> dict[int, list[Score]]:
    """For each question the fraction of its repeats that were answered yes; the images of a case share the scores."""
    by_question = []
    for k, name in enumerate(SCORES):
        repeats = [
            next((v for i in _numbers(task) if (v := verdicts.get((i, RUBRIC, k, repeat)))), None)
            for repeat in range(REPEATS)
        ]
        values = [verdict.value("met") for verdict in repeats if verdict is not None]
        answered = [value for value in values if value is not None]
        if len(answered) == REPEATS:
            by_question.append(Score(name, fmean(answered)))
        else:
            by_question.append(Score(name, None, f"{REPEATS - len(answered)} of {REPEATS} askings have no answer"))
    return dict.fromkeys(_numbers(task), by_question)


def lent_scores(task: Task, verdicts: Mapping[Key, Verdict]) -> list[Score]:
    """The fraction of points that the image meets, each the mean over its repeats, in [0, 1]."""
    values = []
    for k in range(len(task.evaluation_points)):
        repeats = [verdicts.get((1, RUBRIC, k, repeat)) for repeat in range(REPEATS)]
        answered = [value for v in repeats if v is not None and (value := v.value("met")) is not None]
        if len(answered) < len(repeats):
            return [Score(MET, None, f"{len(repeats) - len(answered)} askings of point {k + 1} have no answer")]
        values.append(fmean(answered))
    return [Score(MET, fmean(values))]


def _numbers(task: Task) -> range:
    return range(1, len(task.deliverables) + 1)


def rephrased(task: Task, prompt: str) -> bool:
    """Whether a model with this prompt received one of the case's rephrased prompts instead of the brief."""
    return prompt != task.brief and prompt in task.own.get("prompts", ())


def _beyond(task: Task, takes: Takes) -> str | None:
    n = len(task.reference_sha256)
    if takes.condition:
        return f"the model takes a {takes.condition} map, and no brief gives one"
    if n > takes.pictures:
        return f"the brief goes with {n} picture{'s' * (n > 1)}, and the model takes {takes.pictures}"
    if not n and not takes.text_alone:
        return "the model works on a picture, and the brief gives none"
    if len(task.deliverables) > 1:
        return f"the brief asks for {len(task.deliverables)} images, and the model makes one"
    return None
