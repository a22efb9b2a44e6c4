"""Computes scores from verdicts by the suite's rules, for each judge and for the panel, and from the scores whether a
deliverable is paid for, by the suite's rule if it defines one, else by the config's."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import pstdev

import numpy as np
import pandas as pd

from local_bench.core import strictjson
from local_bench.core.hardrules import HardRules
from local_bench.core.types import Decision, Question, Score, Task, Verdict
from local_bench.judges.rules import OF_FILE, RULES, check_rules, rules_score
from local_bench.judges.vlm.rubrics import has_probabilities, read_stored, wording_of
from local_bench.runs.config import RunConfig
from local_bench.runs.rundir import RunDir
from local_bench.runs.store import Store, VerdictRow, plain, scores_by_image
from local_bench.settle.acceptance import ALL_RULES, by_rules, by_threshold
from local_bench.settle.agreement import majority, panel_mean
from local_bench.suites.questions_from import all_questions, borrowed_scores, pass_fail
from local_bench.suites.registry import suite

_Image = tuple[str, str, int, int, str, str | None]
"""(task, model, attempt, deliverable, work id, pixel digest), as `Store.images`."""
Sets = Mapping[tuple[str, str, int], dict[int, tuple[str, str | None]]]
"""(task, model, attempt) -> deliverable -> (work id, pixel digest or None where there is no image)."""
VerdictKey = tuple[str, int, int]
"""(rubric, point, repeat)"""
VerdictsByWork = Mapping[str, Mapping[VerdictKey, Verdict]]
"""Work id -> one judge's verdicts."""
ScoresByWork = dict[str, dict[str, Score]]
"""Work id -> score name -> score."""


def sets(images: Iterable[_Image]) -> Sets:
    """Images by set, in the order of the rows of `Store.images`."""
    by_set: dict[tuple[str, str, int], dict[int, tuple[str, str | None]]] = defaultdict(dict)
    for task_id, model, attempt, deliverable, work_id, image in images:
        by_set[task_id, model, attempt][deliverable] = (work_id, image)
    return dict(by_set)


@dataclass(frozen=True)
class Part:
    """Some tasks with all of their candidates."""

    tasks: Mapping[str, Task]
    images: Sets

    @property
    def work_ids(self) -> list[str]:
        return [work_id for images in self.images.values() for work_id, _ in images.values()]


_PART = 500
"""Images from which on a part ends."""


def parts(store: Store) -> Iterator[Part]:
    """All tasks with candidates, by task id, some hundred images at a time, so that memory does not grow with them."""
    images: list[_Image] = []
    for row in store.images("task_id, deliverable, model, attempt"):
        if len(images) >= _PART and row[0] != images[-1][0]:
            yield _part(store, images)
            images = []
        images.append(row)
    if images:
        yield _part(store, images)


def _part(store: Store, images: Sequence[_Image]) -> Part:
    return Part({task.task_id: task for task in store.tasks({task_id for task_id, *_ in images})}, sets(images))


def verdicts_of(store: Store, judge_id: str) -> VerdictsByWork:
    """All verdicts of one judge."""
    return _by_judge(store.verdicts(judge_id)).get(judge_id, {})


def _by_judge(rows: Iterable[VerdictRow]) -> dict[str, VerdictsByWork]:
    by_judge: dict[str, dict[str, dict[VerdictKey, Verdict]]] = {}
    for row in rows:
        of_image = by_judge.setdefault(row.judge, {}).setdefault(row.work_id, {})
        of_image[row.rubric, row.point, row.repeat] = verdict_of(row)
    return {**by_judge}


def verdict_of(row: VerdictRow) -> Verdict:
    """A stored verdict; unscored if the rubric does not allow its answer or its label probabilities, because run
    directories are untrusted input."""
    if row.answer_json is None:
        return Verdict(None, row.unscored, row.raw)
    answer, fault = read_stored(row.rubric, strictjson.stored(row.answer_json))
    if answer is None or row.labels_json is None:
        return Verdict(answer, fault, row.raw)
    labels = strictjson.stored(row.labels_json)
    if not has_probabilities(row.rubric, labels):
        return Verdict(None, f"its label probabilities are not those of {row.rubric}", row.raw)
    return Verdict(answer, None, row.raw, labels)


def questions_of(run: RunDir, tasks: Mapping[str, Task], images: Sets) -> Iterator[list[tuple[str, Question]]]:
    """For each set, the work ids and questions of its existing images."""
    entry, settings = suite(run.config.suite.name), run.config.suite
    for (task_id, _, _), of_set in images.items():
        shown = {deliverable: sha for deliverable, (_, sha) in of_set.items() if sha}
        keyed = all_questions(entry, settings.questions_from, tasks[task_id], shown, run.config.order_swap)
        yield [(of_set[key[0]][0], question) for key, question in keyed]


def scores_of(
    run: RunDir, tasks: Mapping[str, Task], verdicts: VerdictsByWork, images: Sets | None = None
) -> ScoresByWork:
    """Scores of every existing image, or of those in `images`, from one judge's verdicts."""
    entry = suite(run.config.suite.name)
    scored: ScoresByWork = {}
    for (task_id, _, _), of_task in (sets(run.store.images()) if images is None else images).items():
        answers = {(i, *key): v for i, (work_id, _) in of_task.items() for key, v in verdicts.get(work_id, {}).items()}
        further = borrowed_scores(run.config.suite.questions_from, tasks[task_id], answers)
        shas = {i: sha for i, (_, sha) in of_task.items() if sha}
        for deliverable, scores in entry.scores_of_made(tasks[task_id], answers, shas).items():
            work_id, sha = of_task[deliverable]
            if sha:
                scored[work_id] = {score.name: score for score in (*scores, *further[deliverable])}
    return scored


_UNKNOWN = "the imported file is not known, as an earlier release did not note it: run `local-bench generate` again"


def _rules(run: RunDir, part: Part) -> list[tuple[str, Score]]:
    """Scores of the tasks' hard rules, checked by code on the image files, or what is known of the imported ones;
    unscored if a file is faulty."""
    images_with_rules = [
        (work_id, sha, model, HardRules.model_validate(part.tasks[task_id].rules[i - 1]))
        for (task_id, model, _), images in part.images.items()
        if part.tasks[task_id].rules
        for i, (work_id, sha) in images.items()
        if sha
    ]
    if not images_with_rules:
        return []
    imported = {m.label: run.store.json_meta(f"delivered:{m.label}") or {} for m in run.config.models if m.imported}
    faulty = run.image_store.faulty((sha for _, sha, *_ in images_with_rules), run.config.engine.io_workers)
    scores = []
    for work_id, sha, model, rules in images_with_rules:
        delivered = imported.get(model, {}).get(work_id)
        outcomes = check_rules(run.image(sha), rules, delivered)
        if model in imported and delivered is None:  # by an earlier release
            outcomes = [replace(o, met=None, sentence=_UNKNOWN) if o.rule in OF_FILE else o for o in outcomes]
        scores.append((work_id, Score(RULES, None, faulty[sha].sentence) if sha in faulty else rules_score(outcomes)))
    return scores


def score(run: RunDir, judge_ids: Sequence[str]) -> None:
    """Store the run's scores, replacing all earlier ones."""
    scores = (computed for part in parts(run.store) for computed in computed_scores(run, part, judge_ids))
    run.store.enter_scores("judge", scores, replace_all=True)


def computed_scores(run: RunDir, part: Part, judge_ids: Sequence[str]) -> list[tuple[str, Score]]:
    """(work id, score) from the stored verdicts and the hard rules: the judge's scores, or the panel's combined scores
    if there are several judges."""
    by_judge = _by_judge(run.store.verdicts(work_ids=part.work_ids))
    verdicts = [by_judge.get(judge_id, {}) for judge_id in judge_ids]
    each = [scores_of(run, part.tasks, of_judge, part.images) for of_judge in verdicts]
    combined = next(iter(each), {})
    if len(verdicts) > 1:
        by_majority = run.config.panel_word == "majority"
        graded = scores_of(run, part.tasks, majority_verdicts(verdicts), part.images) if by_majority else each[0]
        by_vote = {*suite(run.config.suite.name).pass_fail, *pass_fail(run.config.suite.questions_from)}
        combined = {work_id: {} for work_id in graded}
        for work_id, of_image in graded.items():
            for name, of_majority in of_image.items():
                of_judges = [of_judge[work_id][name] for of_judge in each if name in of_judge[work_id]]
                if by_majority and name not in by_vote:
                    combined[work_id][name] = of_majority
                elif by_majority or len(of_judges) == len(each):  # expected values need a judge's probabilities
                    combined[work_id][name] = panel_score(of_judges, name in by_vote)
    judged = [(work_id, score) for work_id, of_image in combined.items() for score in of_image.values()]
    return judged + _rules(run, part)


def panel_score(scores: Sequence[Score], by_vote: bool) -> Score:
    """The score of a panel, with the standard deviation of its judges' values; not applicable if it is so for most
    judges. By vote it is pass (1.0) if more than half of all judges give 1.0, else fail (0.0), also with a tie, and
    unscored if the missing votes could change that. Else it is the mean of the values, and unscored if fewer than half
    of the judges have one."""
    name, n_judges = scores[0].name, len(scores)
    if sum(not score.applies for score in scores) * 2 > n_judges:
        return Score(name, None, applies=False)
    values = [score.value for score in scores if score.value is not None]
    combined, why = panel_mean([score.value for score in scores]), f"{len(values)} of {n_judges} judges could score it"
    if by_vote:
        n_pass = sum(value == 1 for value in values)
        decided = n_pass * 2 > n_judges or (len(values) - n_pass) * 2 >= n_judges
        combined = float(n_pass * 2 > n_judges) if decided else None
        why = f"{n_pass} of {n_judges} judges pass it and {n_judges - len(values)} have no vote"
    return Score(name, None, why) if combined is None else Score(name, combined, spread=pstdev(values))


def majority_verdicts(verdicts: Sequence[VerdictsByWork]) -> VerdictsByWork:
    """The majority verdict on each question."""
    combined: dict[str, dict[VerdictKey, Verdict]] = defaultdict(dict)
    for work_id in {work_id for of_judge in verdicts for work_id in of_judge}:
        for key in {key for of_judge in verdicts for key in of_judge.get(work_id, {})}:
            answers = [of_judge[work_id][key] for of_judge in verdicts if key in of_judge.get(work_id, {})]
            combined[work_id][key] = majority_verdict(key[0], answers, len(verdicts))
    return combined


def majority_verdict(name: str, verdicts: Sequence[Verdict], n_judges: int) -> Verdict:
    """The answer with the majority label of every criterion; a tie takes the lower label."""
    rubric = wording_of(name, (field for verdict in verdicts for field in verdict.answer or ()))
    answered = [rubric.labels_of(verdict.answer) for verdict in verdicts if verdict.answer is not None]
    if len(answered) * 2 < n_judges or not answered:
        return Verdict(None, f"{len(answered)} of {n_judges} judges answered", "")
    best = {}
    for criterion in rubric.criteria:
        votes = [labels[criterion.name] for labels in answered if criterion.name in labels]
        best[criterion.name] = majority(votes) if votes else criterion.labels[0]
    return Verdict(rubric.from_labels(best), None, "")  # type: ignore[arg-type]


# ---- decisions


def thresholds_of(config: RunConfig) -> Mapping[str, float]:
    """Score name -> minimum value. Suites with pass/fail judges define their own thresholds."""
    thresholds = suite(config.suite.name).thresholds
    return config.acceptance.thresholds if thresholds is None else thresholds


def decision_of(config: RunConfig, scores: Sequence[Score]) -> Decision:
    """The decision on an image with these scores, including its hard rules if `acceptance.rules` is set."""
    decision = by_threshold(scores, thresholds_of(config))
    if not config.acceptance.rules:
        return decision
    return by_rules(decision, next((score for score in scores if score.name == RULES), None))


def decide(run: RunDir) -> None:
    """The settle phase: replace the decisions that do not follow from the stored scores, in one transaction."""
    changed = changed_decisions(run)
    if len(changed):
        run.store.enter_decisions(plain(changed).itertuples(index=False, name=None))


def changed_decisions(run: RunDir) -> pd.DataFrame:
    """The decisions that follow from the scores, the rule and the prices of the tasks, and are not stored so: the
    columns of `decisions`, by work id. The rule is applied to one image of all whose scores compare with the thresholds
    in the same way."""
    rule = deciding(run.config)
    rows = run.store.frame("outcomes", ["work_id", "state", "unscored", "task_price_micro_usd"])
    made = (rows["state"] == "done").to_numpy(bool)
    cases = scores_by_image(run.store, rows["work_id"], list(rule), "judge", reasons=True)
    for name, threshold in rule.items():
        reached = [cell >= threshold if type(cell) is float else cell for cell in cases[name]]
        cases[name] = pd.Series(reached, dtype=object).where(made, None)
    reason = np.where(rows["state"] == "unscored", rows["unscored"].fillna("no reason given"), _NOT_MADE)
    cases[_WITHOUT_IMAGE] = pd.Series(reason, dtype=object).where(~made, None)
    number = cases.groupby(list(cases), dropna=False, sort=False).ngroup().to_numpy()
    first = np.unique(number, return_index=True)[1]
    examples, scores = list(rows["work_id"].iloc[first]), defaultdict[str, list[Score]](list)
    for work_id, score in run.store.scores("judge", examples):
        scores[work_id].append(score)
    by_case = [
        decision_of(run.config, scores[work_id]) if no_image is None else Decision(None, no_image)
        for work_id, no_image in zip(examples, cases[_WITHOUT_IMAGE].iloc[first], strict=True)
    ]
    decided = pd.DataFrame(
        {
            "work_id": rows["work_id"],
            "accepted": pd.array([by_case[i].accepted for i in number], dtype="Int64"),
            "unscored": pd.array([by_case[i].unscored for i in number], dtype="string"),
            "price_micro_usd": rows["task_price_micro_usd"],
        }
    )
    stored = run.store.frame("decisions").set_index("work_id").reindex(decided["work_id"])
    same = np.ones(len(decided), dtype=bool)
    for name, missing in (("accepted", -1), ("unscored", ""), ("price_micro_usd", -1)):
        same &= decided[name].fillna(missing).to_numpy() == stored[name].fillna(missing).to_numpy()
    return decided[~same]


_NOT_MADE = "its image has not been made"
_WITHOUT_IMAGE = "\0without image"
"""A column in addition to those of the scores: why there is no image."""


def deciding(config: RunConfig) -> Mapping[str, float]:
    """Score name -> minimum value, for all scores that a decision depends on."""
    thresholds = thresholds_of(config)
    return {**thresholds, RULES: ALL_RULES} if config.acceptance.rules else thresholds
