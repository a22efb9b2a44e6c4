"""ServImage: paid design orders, judged as their clients would (sec. 3.3 of the paper).

BRF: 5 x the fraction of evaluation points met; a point of an order is met when any of its images meets it; the order's
images share it. VEQ: the mean of technical (clarity and realism), aesthetic and text quality; text is left out where
the image has none. All on 0 to 5.
"""

from collections.abc import Iterator, Mapping
from statistics import fmean

from local_bench.core.nouns import Deliverable, Question, Score, Task, Verdict

BRF = "brf"
VEQ = "veq"
VEQ_CLARITY = "veq_clarity"
VEQ_REALISM = "veq_realism"
VEQ_AESTHETIC = "veq_aesthetic"
VEQ_TEXT = "veq_text"
SCORES = (BRF, VEQ, VEQ_CLARITY, VEQ_REALISM, VEQ_AESTHETIC, VEQ_TEXT)

_IMAGE_RUBRICS = ("veq_technical", "veq_aesthetic", "veq_text")
Key = tuple[int, str, int]
"""(deliverable, rubric, point)"""


def deliverables(task: Task) -> list[Deliverable]:
    """The images that an order asks for, each with the words that the generator gets: what it is, then the order."""
    source = () if task.source_sha256 is None else (task.source_sha256,)
    pictures = (*source, *task.reference_sha256)
    return [
        Deliverable(task.task_id, i, f"{what}. {task.title}. {task.brief}", pictures)
        for i, what in enumerate(task.deliverables, 1)
    ]


def questions(task: Task, images: Mapping[int, str]) -> Iterator[tuple[Key, Question]]:
    """What the judge is asked about one model's images of one order (deliverable -> pixel digest).

    All the questions about one image stand together, so that the judge's prefix cache serves them.
    """
    for deliverable, pixels in sorted(images.items()):
        for rubric in _IMAGE_RUBRICS:
            yield (deliverable, rubric, 0), Question(rubric, 0, (pixels,), ())
        for k, point in enumerate(task.evaluation_points):
            slots = (("title", task.title), ("brief", task.brief), ("point", point))
            yield (deliverable, BRF, k), Question(BRF, k, (pixels,), slots)


def scores(task: Task, verdicts: Mapping[Key, Verdict]) -> dict[int, list[Score]]:
    """Every score of every deliverable of one model's work on an order, from what the judge answered."""
    brf = _brf(task, verdicts)
    return {i: [brf, *_veq(i, verdicts)] for i in range(1, len(task.deliverables) + 1)}


def _brf(task: Task, verdicts: Mapping[Key, Verdict]) -> Score:
    met, unknown = 0, 0
    for k in range(len(task.evaluation_points)):
        answers = [_field(verdicts.get((i, BRF, k)), "met") for i in range(1, len(task.deliverables) + 1)]
        if 1 in answers:
            met += 1
        elif None in answers:
            unknown += 1
    if unknown:
        total = len(task.evaluation_points)
        return Score(BRF, None, f"{unknown} of {total} evaluation points could not be judged")
    return Score(BRF, 5 * met / len(task.evaluation_points))


def _veq(deliverable: int, verdicts: Mapping[Key, Verdict]) -> list[Score]:
    technical = verdicts.get((deliverable, "veq_technical", 0))
    text_verdict = verdicts.get((deliverable, "veq_text", 0))
    clarity = _score(VEQ_CLARITY, technical, "clarity")
    realism = _score(VEQ_REALISM, technical, "realism")
    aesthetic = _score(VEQ_AESTHETIC, verdicts.get((deliverable, "veq_aesthetic", 0)), "aesthetic")
    has_text = None if text_verdict is None or text_verdict.answer is None else text_verdict.answer["has_text"]
    text = Score(VEQ_TEXT, None, applies=False) if has_text is False else _score(VEQ_TEXT, text_verdict, "text")
    parts = [clarity, realism, aesthetic, text]
    return [_mean_quality(clarity, realism, aesthetic, text), *parts]


def _mean_quality(clarity: Score, realism: Score, aesthetic: Score, text: Score) -> Score:
    unscored = next((s for s in (clarity, realism, aesthetic, text) if s.unscored), None)
    if unscored:
        return Score(VEQ, None, f"{unscored.name}: {unscored.unscored}")
    assert clarity.value is not None
    assert realism.value is not None
    assert aesthetic.value is not None
    aspects = [fmean((clarity.value, realism.value)), aesthetic.value]
    if text.value is not None:
        aspects.append(text.value)
    return Score(VEQ, fmean(aspects))


def _score(name: str, verdict: Verdict | None, field: str) -> Score:
    if verdict is None:
        return Score(name, None, "the judge was not reached")
    if verdict.answer is None:
        return Score(name, None, verdict.unscored)
    return Score(name, float(verdict.answer[field]))


def _field(verdict: Verdict | None, field: str) -> object:
    return None if verdict is None or verdict.answer is None else verdict.answer[field]
