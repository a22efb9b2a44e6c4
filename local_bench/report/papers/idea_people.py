"""People's answers to IDEA-Bench's questions, from `local-bench annotate RUN --protocol points`."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from local_bench.analysis.official import run_results
from local_bench.annotation.ratings import load_annotations
from local_bench.core.errors import UserError
from local_bench.core.types import Task
from local_bench.report.papers.inputs import Request, once
from local_bench.suites.idea_bench.questions import SCORES
from local_bench.suites.idea_bench.results import REPEATS, Row, results_by_model
from local_bench.suites.idea_bench.tasks import FOR_PEOPLE
from local_bench.suites.registry import suite

NO = (0,) * REPEATS
Case = tuple[str, str]
"""(the task's uid, case id)"""


@dataclass
class Labels:
    """The labels of all runs."""

    answers: dict[str, list[Row]] = field(default_factory=dict)
    """Model -> the annotators' consensus; a question without one has no score."""
    raters: set[str] = field(default_factory=set)
    tied: set[tuple[str, Case, int]] = field(default_factory=set)
    """(model, case, question) with as many annotators for yes as for no."""
    not_made: set[tuple[str, Case]] = field(default_factory=set)
    """(model, case) without any image, for which the model failed: it scores 0 (sec. 3.3.1)."""
    combined: set[tuple[str, Case, int]] = field(default_factory=set)
    """(model, case, question) that an annotator answered with a fraction: repeats of a result file combined."""
    by_judges_questions: set[Case] = field(default_factory=set)
    """Mini cases without questions for people."""

    def notes(self, counted: Callable[[Row], bool] = lambda _: True) -> list[str]:
        """The numbers of annotators and of labelled, tied and unlabelled questions in the counted rows, and how they
        differ from the paper's."""
        rows = [
            (m, (row.task_id, row.case_id), row) for m, part in self.answers.items() for row in part if counted(row)
        ]
        shown = [(m, case, row) for m, case, row in rows if (m, case) not in self.not_made]
        labelled = sum(row.scores[0] is not None for _, _, row in shown)
        tied = sum((m, case, row.question) in self.tied for m, case, row in shown)
        cases = {case for _, case, _ in rows}
        notes = [
            f"people: {len(self.raters)} annotators; {labelled} of {len(shown)} questions have a label, {tied} are "
            f"tied and {len(shown) - labelled - tied} have none; a score that depends on these is missing"
        ]
        if n := sum((m, case, row.question) in self.combined for m, case, row in shown):
            notes.append(f"people: {n} labels are fractions (combined repeats); each counts as one yes or no")
        if absent := len({(m, case) for m, case, _ in rows} & self.not_made):
            notes.append(f"people: {absent} cases have no image and score 0")
        if cases & self.by_judges_questions:
            notes.append(
                f"people: {len(cases & self.by_judges_questions)} mini cases have no eval.json in the run, so the "
                "questions are the judge's; in the paper they are those of eval.json"
            )
        return notes


def labels_of(request: Request) -> Labels:
    """The labels of every run. UserError if they cannot be read, and if a model is in two runs."""
    file = next((path for path in request.options.people if path.suffix == ".csv"), None)
    if file is not None:
        raise UserError(f"--people {file} is a result file: give it instead of the run, or annotations as --people")
    once([(run.path, run.store.models()) for run in request.runs])
    result = Labels()
    for run, path in request.labelled:
        labels, results = load_annotations(path, run, {}), run_results(run)
        images = {image.work_id: image for image in results.images if image.attempt == 1}
        cases = {work_id: (image.model, _case(image.task)) for work_id, image in images.items()}
        failed = {cases[work_id] for work_id, image in images.items() if image.unscored is not None}
        failed -= {cases[work_id] for work_id, image in images.items() if image.unscored is None}
        consensus = {name: labels.consensus.get(name, {}) for name in SCORES}
        ratings = {w: {name: by_id[w].decision for name, by_id in consensus.items() if w in by_id} for w in images}
        for k, name in enumerate(SCORES, 1):
            result.tied |= {(*cases[work_id], k) for work_id in labels.tied.get(name, ()) if work_id in cases}
            rated = [by_id for opinion in labels.raters.values() for by_id in opinion.get(name, {}).items()]
            result.combined |= {(*cases[w], k) for w, r in rated if w in cases and r.number not in (None, 0, 1)}
        for model, rows in results_by_model(suite("idea-bench").annotated(results, ratings)).items():
            result.answers[model] = [
                replace(row, scores=NO) if (model, (row.task_id, row.case_id)) in failed else row for row in rows
            ]
        result.raters |= labels.raters.keys()
        result.not_made |= failed
        result.by_judges_questions |= {
            _case(task) for task in run.store.tasks() if "mini" in task.own["parts"] and FOR_PEOPLE not in task.own
        }
    return result


def _case(task: Task) -> Case:
    return str(task.own["uid"]), str(task.own["case_id"])
