"""From verdicts to scores: what each judge's answers come to under the suite's rules, and the panel's word on them."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import pstdev

from local_bench.core.hardrules import HardRules
from local_bench.core.types import Score, Task, Verdict
from local_bench.judges.rules import RULES, check_rules, rules_score
from local_bench.judges.vlm.variants import read_stored, wording_of
from local_bench.runs.rundir import RunDir
from local_bench.runs.store import RepeatRow, Store, VerdictRow
from local_bench.settle.agreement import majority, mean_word
from local_bench.suites.questions_from import borrowed_scores, pass_fail
from local_bench.suites.registry import suite

VerdictKey = tuple[str, int, int]
"""(rubric, point, repeat)"""
OfWork = Mapping[str, Mapping[VerdictKey, Verdict]]
"""Work id -> what one judge said of it."""
OfScores = dict[str, dict[str, Score]]
"""Work id -> score name -> score."""


def sets(store: Store) -> dict[tuple[str, str, int], dict[int, tuple[str, str | None]]]:
    """(task, model, attempt) -> deliverable -> (work id, pixel digest or None where there is no image)."""
    found: dict[tuple[str, str, int], dict[int, tuple[str, str | None]]] = defaultdict(dict)
    for row in store.candidates():
        found[row.task_id, row.model, row.attempt][row.deliverable] = (row.work_id, row.image)
    return dict(found)


def verdicts_of(store: Store, judge_id: str) -> OfWork:
    """All that one judge said."""
    said: dict[str, dict[VerdictKey, Verdict]] = defaultdict(dict)
    for row in store.verdicts(judge_id):
        said[row.work_id][row.rubric, row.point, row.repeat] = verdict_of(row)
    return said


def verdict_of(row: VerdictRow | RepeatRow) -> Verdict:
    """A stored answer; unscored where its answer is none that the rubric allows, for a run directory
    may be anybody's (law 7)."""
    if row.answer_json is None:
        return Verdict(None, row.unscored, row.raw)
    answer, fault = read_stored(row.rubric, json.loads(row.answer_json))
    labels = None if row.labels_json is None else json.loads(row.labels_json)
    return Verdict(answer, fault, row.raw, labels if answer else None)


def scores_of(run: RunDir, tasks: Mapping[str, Task], said: OfWork) -> OfScores:
    """What one judge's verdicts come to, for every image that is there."""
    asked = suite(run.config.suite.name)
    scored: OfScores = {}
    for (task_id, _, _), images in sets(run.store).items():
        answers = {(i, *key): v for i, (work_id, _) in images.items() for key, v in said.get(work_id, {}).items()}
        further = borrowed_scores(run.config.suite.questions_from, tasks[task_id], answers)
        for deliverable, scores in asked.scores(tasks[task_id], answers).items():
            work_id, sha = images[deliverable]
            if sha:
                scored[work_id] = {score.name: score for score in (*scores, *further[deliverable])}
    return scored


def _rules(run: RunDir, tasks: Mapping[str, Task]) -> list[tuple[str, Score]]:
    """The orders' hard rules, checked by code on the files that were made; unscored where a file is faulty."""
    ruled = [
        (work_id, sha, tasks[task_id].rules[i - 1])
        for (task_id, _, _), images in sets(run.store).items()
        if tasks[task_id].rules
        for i, (work_id, sha) in images.items()
        if sha
    ]
    faulty = run.pictures.faulty((sha for _, sha, _ in ruled), run.config.engine.io_workers)
    return [
        (work_id, Score(RULES, None, faulty[sha].sentence))
        if sha in faulty
        else (work_id, rules_score(check_rules(run.image(sha), HardRules.model_validate(rules))))
        for work_id, sha, rules in ruled
    ]


def score(run: RunDir, tasks: Mapping[str, Task], judge_ids: Sequence[str]) -> None:
    """Enters the run's scores: its judge's, or where there are several the panel's word."""
    said = [verdicts_of(run.store, judge_id) for judge_id in judge_ids]
    each = [scores_of(run, tasks, one) for one in said]
    word = each[0]
    if len(said) > 1:
        majority_word = run.config.panel_word == "majority"
        graded = scores_of(run, tasks, majority_of(said)) if majority_word else _mean(each)
        own = suite(run.config.suite.name).pass_fail
        word = with_votes(graded, each, (*own, *pass_fail(run.config.suite.questions_from)))
    judged = [(work_id, score) for work_id, of in word.items() for score in of.values()]
    run.store.enter_scores("judge", judged + _rules(run, tasks), replace_all=True)


def _mean(each: Sequence[OfScores]) -> OfScores:
    return {
        work_id: {
            name: mean_score([one[work_id][name] for one in each])
            for name in of
            if all(name in one[work_id] for one in each)  # expectations are there only for judges with probabilities
        }
        for work_id, of in each[0].items()
    }


def mean_score(scores: Sequence[Score]) -> Score:
    """The mean of those that have a value, its spread that between the judges; unscored where fewer than half of the
    judges have one, not applicable where most say so."""
    name = scores[0].name
    values = [score.value for score in scores if score.value is not None]
    mean = mean_word([score.value for score in scores])
    if sum(not score.applies for score in scores) * 2 > len(scores):
        return Score(name, None, applies=False)
    if mean is None:
        return Score(name, None, f"{len(values)} of {len(scores)} judges could score it")
    return Score(name, mean, spread=pstdev(values))


def with_votes(word: OfScores, each: Sequence[OfScores], pass_fail: Sequence[str]) -> OfScores:
    """`word` with every score named in `pass_fail` replaced by the vote of the judges (`vote_score`).

    `each` has one entry per judge, all with the same work ids and score names as `word`.
    """
    return {
        work_id: {
            name: vote_score([one[work_id][name] for one in each]) if name in pass_fail else score
            for name, score in of.items()
        }
        for work_id, of in word.items()
    }


def vote_score(scores: Sequence[Score]) -> Score:
    """The panel's pass (1.0) or fail (0.0) from one score of 1.0 or 0.0 per judge.

    Pass if more than half of all judges pass it; a tie fails. Unscored if the missing votes could change the result,
    not applicable if most judges say so. The spread is the standard deviation between the votes.
    """
    name, n_judges = scores[0].name, len(scores)
    if sum(not score.applies for score in scores) * 2 > n_judges:
        return Score(name, None, applies=False)
    votes = [score.value for score in scores if score.value is not None]
    n_pass = sum(vote == 1 for vote in votes)
    if n_pass * 2 > n_judges:
        return Score(name, 1.0, spread=pstdev(votes))
    if (len(votes) - n_pass) * 2 >= n_judges:
        return Score(name, 0.0, spread=pstdev(votes))
    return Score(name, None, f"{n_pass} of {n_judges} judges pass it and {n_judges - len(votes)} have no vote")


def majority_of(said: Sequence[OfWork]) -> OfWork:
    """What most judges say, question by question."""
    words: dict[str, dict[VerdictKey, Verdict]] = defaultdict(dict)
    for work_id in {work_id for one in said for work_id in one}:
        for key in {key for one in said for key in one.get(work_id, {})}:
            heard = [one[work_id][key] for one in said if key in one.get(work_id, {})]
            words[work_id][key] = majority_verdict(key[0], heard, len(said))
    return words


def majority_verdict(name: str, heard: Sequence[Verdict], n_judges: int) -> Verdict:
    """The answer whose every criterion has the label that most judges gave; a tie takes the lower label."""
    asked = wording_of(name, (field for verdict in heard for field in verdict.answer or ()))
    given = [asked.labels_of(verdict.answer) for verdict in heard if verdict.answer is not None]
    if len(given) * 2 < n_judges or not given:
        return Verdict(None, f"{len(given)} of {n_judges} judges answered", "")
    best = {}
    for criterion in asked.criteria:
        votes = [labels[criterion.name] for labels in given if criterion.name in labels]
        best[criterion.name] = majority(votes) if votes else criterion.labels[0]
    return Verdict(asked.from_labels(best), None, "")  # type: ignore[arg-type]
