"""A run with three attempts at each image, settled in every way of working, against a computation row by row."""

from collections import defaultdict
from dataclasses import replace
from fractions import Fraction
from itertools import takewhile

import pytest

from local_bench.analysis.settlement import accounting
from local_bench.analysis.workflows import workflow_results
from local_bench.core.money import split
from local_bench.runs.rundir import RunDir
from tests.analysis.simulated import config, draw, judged
from tests.report.written import section_rows
from tests.suites.benchmarks import layouts


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ways")
    path = layouts.servimage(folder / "data")
    made = {name: draw("servimage", path, folder / name, seed, 3) for seed, name in enumerate(("one", "two"))}
    settings = config("servimage", path, made, 3)
    lenient = settings.acceptance.model_copy(update={"brf": 2.0, "veq": 2.0, "cns": 2.0})
    judged(folder / "run", settings.model_copy(update={"acceptance": lenient}), 5)
    return folder / "run"


def by_hand(store):
    """(model, workflow) -> (passed, images, reviews, revenue), computed from the rows."""
    by_deliverable, scores = defaultdict(dict), defaultdict(dict)
    for row in store.rows("SELECT work_id, name, value, applies FROM scores WHERE name IN ('brf', 'veq', 'cns')"):
        scores[row["work_id"]][row["name"]] = row["value"] if row["applies"] else 0
    deliverables = defaultdict(set)
    rows = store.rows("SELECT * FROM candidates JOIN tasks USING (task_id) LEFT JOIN decisions USING (work_id)")
    for row in rows:
        deliverables[row["task_id"]].add(row["deliverable"])
        by_deliverable[row["model"], row["task_id"], row["deliverable"]][row["attempt"]] = row
    found = defaultdict(lambda: [0, 0, 0, 0])
    for (model, task_id, deliverable), attempts in by_deliverable.items():
        tried = [attempts[n] for n in sorted(attempts)]
        pays = split(tried[0]["price_micro_usd"], len(deliverables[task_id]))[deliverable - 1]
        summed = [
            sum(s.values()) if len(s := scores[t["work_id"]]) == 3 and None not in s.values() else -1 for t in tried
        ]
        made = [t["state"] == "done" for t in tried]
        pick = tried[summed.index(max(summed))] if max(summed) >= 0 else {"accepted": None}
        failed = len(list(takewhile(lambda t: not t["accepted"], tried)))
        for workflow, passed, images, reviews in (
            ("single shot", tried[0]["accepted"], made[0], made[0]),
            ("up to 3 tries", any(t["accepted"] for t in tried), sum(made[: failed + 1]), sum(made[: failed + 1])),
            ("best of 3", pick["accepted"], sum(made), any(made)),
        ):
            row = found[model, workflow]
            row[0] += bool(passed)
            row[1] += images
            row[2] += reviews
            row[3] += pays if passed else 0
    return found


def test_every_workflow_agrees_with_the_rows_single_shots_with_the_run_and_all_are_in_the_report(run_dir):
    with RunDir.open(run_dir) as run:
        results, expected = (
            workflow_results(run.store, accounting(run.store, run.config.settlement)),
            by_hand(run.store),
        )
    assert len(results) == len(expected) == 6
    assert len({tuple(row) for row in expected.values()}) > 3
    for entry in results:
        w = entry.result
        found = [w.n_passed, w.n_images, w.n_reviews, entry.revenue_micro_usd]
        assert found == expected[entry.model, w.way], (entry.model, w.way)
    # the images that the run's cost is divided by; some first attempts were not made
    with RunDir.open(run_dir) as run:
        money = accounting(run.store, run.config.settlement)
        results = workflow_results(run.store, money)
        first = list(run.store.outcomes(attempt=1))
    for model in ("one", "two"):
        made = sum(row.candidate.state == "done" for row in first if row.candidate.model == model)
        (shot,) = (w.result for w in results if w.model == model and w.result.way == "single shot")
        assert (shot.n_images, shot.n_reviews) == (made, made)
    with RunDir.open(run_dir) as run:
        rows = section_rows(run, "scenarios")["Workflows on the same attempts"]
    assert any("up to 3 tries" in row["result.way"] for row in rows)


def test_images_of_a_workflow_cost_as_in_the_run(run_dir):
    with RunDir.open(run_dir) as run:
        money = accounting(run.store, run.config.settlement)
        assert {entry.images_usd for entry in workflow_results(run.store, money)} == {None}  # imported: unknown cost
        first, *others = money.settlements
        paid = replace(money, settlements=[replace(first, cost_micro_usd=7_000_001), *others])
        results = workflow_results(run.store, paid)
        (n_made,) = run.store.rows(
            "SELECT count(*) AS n FROM candidates WHERE model = ? AND state = 'done'", first.model
        )
    for entry in results:
        due = (
            Fraction(7_000_001 * entry.result.n_images, 1_000_000 * n_made["n"]) if entry.model == first.model else None
        )
        assert entry.images_usd == due
