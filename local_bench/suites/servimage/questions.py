"""ServImage: paid design tasks, judged like their clients would (sec. 3.3 of the paper). Scores range from 0 to 5.

BRF: 5 x the fraction of evaluation points met; a point of a task is met if any of its images meets it; the task's
images share the score. VEQ: the mean of technical (clarity and realism), aesthetic and text quality; text quality is
omitted if the image has no text. CNS, 1 to 5: for edits the preservation of the source, for sets the consistency of the
images (the mean over the set, shared by its images); the mean of both if both apply, not applicable if neither does.
A set is judged by the images that were made: the paper's OR and mean over a set do not say what one that is missing
counts, and it must not leave the others without a score. A set of which one image was made has no consistency.

If the judge gives probabilities, the value of a VEQ or CNS question is the expectation over the labels, and the spread
of a score follows from the judge's own uncertainty. BRF counts the most likely answers, 0 or 1, as the paper does;
`brf_expected`, our addition, uses for each point the highest expectation over its images.
"""

from collections.abc import Collection, Iterator, Mapping
from math import sqrt
from statistics import fmean

from local_bench.core.types import Deliverable, Question, Score, Task, Verdict
from local_bench.suites.base import CNS_SET, score_of, which_image
from local_bench.suites.base import QuestionKey as Key

BRF = "brf"
BRF_EXPECTED = "brf_expected"
VEQ = "veq"
VEQ_CLARITY = "veq_clarity"
VEQ_REALISM = "veq_realism"
VEQ_AESTHETIC = "veq_aesthetic"
VEQ_TEXT = "veq_text"
CNS = "cns"
CNS_EDIT = "cns_edit"
LENT = {VEQ: "servimage_veq", CNS: "servimage_cns"}
SCORES = (BRF, BRF_EXPECTED, VEQ, CNS, VEQ_CLARITY, VEQ_REALISM, VEQ_AESTHETIC, VEQ_TEXT, CNS_EDIT, CNS_SET)

_IMAGE_RUBRICS = ("veq_technical", "veq_aesthetic", "veq_text")
Slots = tuple[tuple[str, str], ...]


def deliverables(task: Task) -> list[Deliverable]:
    """The images that a task requests, each with its prompt: the deliverable, then the task."""
    return [
        Deliverable(task.task_id, i, f"{what}. {task.title}. {task.brief}", task.input_images, task.mask_sha256)
        for i, what in enumerate(task.deliverables, 1)
    ]


def questions(task: Task, images: Mapping[int, str], order_swap: bool = False) -> Iterator[tuple[Key, Question]]:
    """The questions about one model's images of one task (deliverable -> pixel digest). A question about a point also
    has all images and points, for rubrics with all of them in one request.

    All questions about one image are adjacent and have it as first image, so that the judge's caches are used. With
    `order_swap` a set is also judged in reverse order.
    """
    source = () if task.source_sha256 is None else (task.source_sha256,)
    delivered = tuple(pixels for _, pixels in sorted(images.items()))
    inputs = (*task.input_images, *delivered)
    roles = ("delivered", *("source",) * len(source), *("reference",) * len(task.reference_sha256))
    roles += ("set",) * len(delivered)
    of_task = (
        ("task_id", task.task_id),
        ("points", "\n".join(f"{k}. {point}" for k, point in enumerate(task.evaluation_points, 1))),
        ("n_points", str(len(task.evaluation_points))),
        ("n_images", str(len(delivered))),
    )
    for at, (deliverable, pixels) in enumerate(sorted(images.items()), 1):
        for rubric in _IMAGE_RUBRICS:
            yield (deliverable, rubric, 0, 0), Question(rubric, 0, (pixels,), ())
        for k, point in enumerate(task.evaluation_points):
            which = which_image(task, deliverable)
            slots: Slots = (("title", task.title), ("brief", task.brief), ("deliverable", which), ("point", point))
            slots += (*of_task, ("image", str(at)), ("point_number", str(k + 1)))
            yield (deliverable, BRF, k, 0), Question(BRF, k, (pixels, *inputs), slots, roles)
        if source:
            yield (deliverable, CNS_EDIT, 0, 0), Question(CNS_EDIT, 0, (pixels, *source), (), ("result", "source"))
    if len(images) > 1:
        for repeat, order in enumerate([sorted(images), sorted(images, reverse=True)][: 1 + order_swap]):
            for at, deliverable in enumerate(order, 1):
                slots = (("count", str(len(order))), ("index", str(at)))
                ordered = tuple(images[i] for i in order)
                question = Question(CNS_SET, 0, ordered, slots, ("image",) * len(order), repeat)
                yield (deliverable, CNS_SET, 0, repeat), question


def scores(
    task: Task, verdicts: Mapping[Key, Verdict], images: Collection[int] | None = None
) -> dict[int, list[Score]]:
    """All scores of all deliverables of one model for a task, computed from the verdicts; `images` are those that
    were made, by default all."""
    numbers = range(1, len(task.deliverables) + 1)
    delivered = numbers if images is None else sorted(images)
    brf = _brf(task, verdicts, delivered)
    not_made = Score(CNS_SET, None, "the image was not made")
    in_set = dict.fromkeys(delivered, Score(CNS_SET, None, applies=False))
    for i in delivered if len(delivered) > 1 else ():
        orders = [verdicts.get((i, CNS_SET, 0, repeat)) for repeat in (0, 1)]
        answered = [verdict for verdict in orders if verdict is not None] or orders[:1]
        in_set[i] = _mean(CNS_SET, [score_of(CNS_SET, verdict, "score") for verdict in answered])
    of_set = _mean(CNS_SET, list(in_set.values()))
    by_image = {}
    for i in numbers:
        edit = Score(CNS_EDIT, None, applies=False)
        if task.source_sha256 is not None:
            edit = score_of(CNS_EDIT, verdicts.get((i, CNS_EDIT, 0, 0)), "score")
        by_image[i] = [*brf, *_veq(i, verdicts), _mean(CNS, [edit, of_set]), edit, in_set.get(i, not_made)]
    return by_image


def _brf(task: Task, verdicts: Mapping[Key, Verdict], delivered: Collection[int]) -> list[Score]:
    """`brf` from the answers, each 0 or 1; also `brf_expected` if the judge gives probabilities."""
    expects = any(verdict.labels is not None for verdict in verdicts.values())
    names = (BRF, BRF_EXPECTED) if expects else (BRF,)
    total = len(task.evaluation_points)
    if not total:
        reason = "the order has no evaluation points: have them extracted, or write them down"
        return [Score(name, None, reason) for name in names]
    n_met, unknown = 0, 0
    expected: list[tuple[float, float]] = []
    for k in range(total):
        of_images = [verdicts.get((i, BRF, k, 0)) for i in delivered]
        answered = [v for v in of_images if v is not None and v.answer is not None]
        met = any(v.answer["met"] for v in answered if v.answer is not None)
        n_met += met
        unknown += not met and len(answered) < len(of_images)
        expected.append(max(((v.value("met") or 0.0, v.variance("met") or 0.0) for v in answered), default=(0.0, 0.0)))
    if unknown:
        reason = f"{unknown} of {total} evaluation points could not be judged"
        return [Score(name, None, reason) for name in names]
    brf = Score(BRF, 5 * n_met / total)
    if not expects:
        return [brf]
    spread = 5 * sqrt(sum(variance for _, variance in expected)) / total
    return [brf, Score(BRF_EXPECTED, 5 * sum(value for value, _ in expected) / total, spread=spread)]


def _veq(deliverable: int, verdicts: Mapping[Key, Verdict]) -> list[Score]:
    technical = verdicts.get((deliverable, "veq_technical", 0, 0))
    lettering = verdicts.get((deliverable, "veq_text", 0, 0))
    clarity = score_of(VEQ_CLARITY, technical, "clarity")
    realism = score_of(VEQ_REALISM, technical, "realism")
    aesthetic = score_of(VEQ_AESTHETIC, verdicts.get((deliverable, "veq_aesthetic", 0, 0)), "aesthetic")
    has_text = None if lettering is None or lettering.answer is None else lettering.answer["has_text"]
    text = Score(VEQ_TEXT, None, applies=False) if has_text is False else score_of(VEQ_TEXT, lettering, "text")
    quality = _mean(VEQ, [_mean("veq_technical", [clarity, realism]), aesthetic, text])
    return [quality, clarity, realism, aesthetic, text]


def _mean(name: str, parts: list[Score]) -> Score:
    """The mean of the applicable parts; unscored if one of these is unscored, not applicable if none applies."""
    parts = [part for part in parts if part.applies]
    unscored = next((part for part in parts if part.unscored), None)
    if unscored:
        return Score(
            name, None, unscored.unscored if unscored.name == name else f"{unscored.name}: {unscored.unscored}"
        )
    if not parts:
        return Score(name, None, applies=False)
    spreads = [part.spread for part in parts if part.spread is not None]
    spread = sqrt(sum(s * s for s in spreads)) / len(parts) if spreads else None
    return Score(name, fmean(part.value for part in parts if part.value is not None), spread=spread)
