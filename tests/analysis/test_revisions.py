"""Refused images revised by an editing model: the orders that are written, and both runs settled as one."""

import json
import shutil

import pytest

from local_bench.analysis.agreement import judge_labels
from local_bench.analysis.revisions import reasons, revised_workflows, write_revisions
from local_bench.cli.main import main
from local_bench.core.errors import UserError
from local_bench.core.images import load_image, pixel_digest
from local_bench.core.money import split
from local_bench.core.types import Task, Verdict
from local_bench.runs.config import AcceptanceConfig
from local_bench.runs.rundir import RunDir, read_run_config
from local_bench.runs.scoring import verdicts_of
from local_bench.suites.registry import suite
from tests.analysis.simulated import config, draw, judged
from tests.stages import run_stages
from tests.suites.benchmarks import layouts


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of two models, one of which is refused often; the orders of its refused images; a run of these by two
    editors (images and judgements by dice)."""
    folder = tmp_path_factory.mktemp("revisions")
    path = layouts.servimage(folder / "data")
    made = {name: draw("servimage", path, folder / name, seed, 1) for seed, name in enumerate(("one", "two"))}
    settings = config("servimage", path, made, 1)
    middling = settings.acceptance.model_copy(update={"brf": 2.0, "veq": 2.0, "cns": 2.0})
    judged(folder / "run", settings.model_copy(update={"acceptance": middling}), 5)
    with RunDir.open(folder / "run") as run:
        written = write_revisions(run, folder / "revisions")
    edited = {name: draw("servimage", written.tasks, folder / name, seed, 1) for seed, name in ((7, "x"), (8, "y"))}
    again = config("servimage", written.tasks, edited, 1)
    lenient = again.acceptance.model_copy(update={"brf": 1.0, "veq": 1.0, "cns": 1.0})
    judged(folder / "again", again.model_copy(update={"acceptance": lenient}), 6)
    return folder, written


def decisions(path):
    with RunDir.open(path) as run:
        return [
            dict(row)
            for row in run.store.rows(
                """SELECT c.*, d.accepted, t.price_micro_usd FROM candidates c JOIN tasks t USING (task_id)
                   LEFT JOIN decisions d USING (work_id) WHERE attempt = 1 ORDER BY position"""
            )
        ]


def test_every_rejected_image_is_the_source_of_an_order(runs):
    folder, written = runs
    rows, fewer = decisions(folder / "run"), 0
    refused = [row for row in rows if row["accepted"] == 0]
    with RunDir.open(folder / "run") as run:
        (judge_id,) = judge_labels(run)
        met = {
            (work_id, key[1]): verdict.answer["met"]
            for work_id, of_image in verdicts_of(run.store, judge_id).items()
            for key, verdict in of_image.items()
            if key[0] == "brf" and verdict.answer
        }
    lines = [json.loads(line) for line in written.tasks.read_text().splitlines()]
    assert len(lines) == written.n == len(refused) > 0
    manifest = json.loads((folder / "revisions" / "revisions.json").read_text())["revisions"]
    first = {task.task_id: task for task in suite("servimage").tasks(str(folder / "data"), pixel_digest)}
    for line, row in zip(lines, refused, strict=True):
        task = first[row["task_id"]]
        assert manifest[line["task_id"]]["work_id"] == row["work_id"]
        assert pixel_digest(load_image(folder / "revisions" / line["source_image"])) == row["pixels_sha256"]
        of_set = [other for other in rows if (other["model"], other["task_id"]) == (row["model"], row["task_id"])]
        elsewhere = {k for k in range(len(task.evaluation_points)) for w in of_set if met.get((w["work_id"], k))}
        kept = [
            point
            for k, point in enumerate(task.evaluation_points)
            if met.get((row["work_id"], k)) or k not in elsewhere
        ]
        assert line["evaluation_points"] == (kept or list(task.evaluation_points))
        fewer += len(kept) < len(task.evaluation_points)
        assert line["deliverables"] == [task.deliverables[row["deliverable"] - 1]]
        share = split(task.price_micro_usd, len(task.deliverables))[row["deliverable"] - 1]
        assert line["price_usd"] == pytest.approx(share / 1e6)
        others = [sha for sha in (task.source_sha256, *task.reference_sha256) if sha]
        assert [pixel_digest(load_image(folder / "revisions" / name)) for name in line["reference_images"]] == others
        assert task.brief in line["brief"]
        assert "\n- " in line["brief"]
    assert fewer  # points that only other images of a set meet are theirs
    assert suite("servimage").tasks(str(written.tasks), pixel_digest)


def test_a_revision_is_a_workflow_of_both_runs(runs):
    folder, _ = runs
    with RunDir.open(folder / "run") as run, RunDir.open(folder / "again") as again:
        found = {(way.model, way.result.way): way for way in revised_workflows(run, folder / "revisions", again)}
    manifest = json.loads((folder / "revisions" / "revisions.json").read_text())["revisions"]
    first, second = decisions(folder / "run"), decisions(folder / "again")
    per_order = {}
    for row in first:
        per_order.setdefault((row["model"], row["task_id"]), []).append(row)
    for model in ("one", "two"):
        mine = [row for row in first if row["model"] == model]
        assert found[model, "single shot"].result.n_passed == sum(row["accepted"] == 1 for row in mine)
        for editor in ("x", "y"):
            after = {
                (entry["task_id"], entry["deliverable"]): row["accepted"]
                for row in second
                if row["model"] == editor and (entry := manifest[row["task_id"]])["model"] == model
            }
            way = found[model, f"revised once by {editor}"]
            passed = [
                row
                for row in mine
                if row["accepted"] == 1
                or (row["accepted"] == 0 and after.get((row["task_id"], row["deliverable"])) == 1)
            ]
            assert way.result.n_passed == len(passed)
            made = sum(row["state"] == "done" for row in mine) + sum(
                row["model"] == editor and row["state"] == "done" and manifest[row["task_id"]]["model"] == model
                for row in second
            )
            assert way.result.n_images == way.result.n_reviews == made
            assert way.revenue_micro_usd == sum(
                split(row["price_micro_usd"], len(per_order[model, row["task_id"]]))[row["deliverable"] - 1]
                for row in passed
            )
    assert any(
        found[model, f"revised once by {e}"].result.n_passed > found[model, "single shot"].result.n_passed
        for model in ("one", "two")
        for e in ("x", "y")
    )


def test_the_commands_report_revisions_and_refuse_other_runs(runs, capsys, tmp_path):
    folder, _ = runs

    def revise(*arguments, status=0):
        assert main(["revise", *map(str, arguments)]) == status, arguments
        out, err = capsys.readouterr()
        return err if status else json.loads(out) if "--json" in arguments else out

    def settle(*names, more=(), status=0):
        return revise("settle", *(folder / name for name in names), *more, status=status)

    assert "revised once by x" in settle("run", "revisions", "again")
    ways = settle("run", "revisions", "again", more=["--json"])["ways"]
    assert {way["model"] for way in ways} == {"one", "two"}
    lenient = shutil.copytree(folder / "again", tmp_path / "lenient")
    with RunDir.open(lenient) as run:
        text = run.config.model_copy(update={"acceptance": AcceptanceConfig(brf=0.5)}).model_dump_json()
    (lenient / "run.yaml").write_text(text)
    assert main(["revise", "settle", *(str(folder / name) for name in ("run", "revisions")), str(lenient)]) == 0
    assert "differ in the acceptance rule: revisions pass by another measure" in capsys.readouterr().err
    write = ("write", folder / "run", "--out")
    assert set(revise(*write, tmp_path / "o", "--model", "one", "--json")["by_model"]) == {"one"}
    assert "exists and is not empty" in revise(*write, folder / "revisions", status=2)
    assert "has no model 'three'" in revise(*write, tmp_path / "p", "--model", "three", status=2)
    assert "revisions.json does not exist" in settle("run", "", "again", status=2)
    assert "of another run" in settle("again", "revisions", "again", status=2)
    assert "has no revision" in settle("run", "revisions", "run", status=2)
    assert not (tmp_path / "p").exists()


def test_the_run_may_have_grown_and_its_images_must_be_the_sources(runs, tmp_path):
    folder, _ = runs
    path = shutil.copytree(folder / "run", tmp_path / "run")
    made = {name: folder / name for name in ("one", "two", "x")}
    run_stages(config("servimage", folder / "data", made, 1), path, ("generate",))

    def ways():
        with RunDir.open(path) as run, RunDir.open(folder / "again") as again:
            return {(way.model, way.result.way): way for way in revised_workflows(run, folder / "revisions", again)}

    with RunDir.open(folder / "run") as run, RunDir.open(folder / "again") as again:
        before = {(way.model, way.result.way): way for way in revised_workflows(run, folder / "revisions", again)}
    assert before.items() < ways().items()
    with RunDir.begin(path, read_run_config(path)) as run:
        run.store.write("UPDATE candidates SET pixels_sha256 = ? WHERE state = 'done'", "0" * 64)
    with pytest.raises(UserError, match="revises images of another run than"):
        ways()


def verdict(**answer):
    return Verdict(answer, None, "")


def test_reasons_of_the_majority_and_of_the_full_set():
    task = Task("t", "Product", 0, "T", "B", ("front", "back"), ("It is red", "It says Nord"))
    judges = [
        {
            "w1": {
                ("brf", 0, 0): verdict(met=0),
                ("brf", 1, 0): verdict(met=0),
                ("veq_technical", 0, 0): verdict(clarity=mark, realism=5),
                ("cns_edit", 0, 0): verdict(evidence="the sky  is darker", score=2, flags=[]),
            },
            "w2": {("brf", 0, 0): verdict(met=met), ("brf", 1, 0): verdict(met=0)},
        }
        for mark, met in ((1, 1), (2, 1), (5, 0))
    ]
    assert reasons(task, "w1", ["w1", "w2"], judges[:2]) == [
        "Not met: It says Nord",  # the other image is red
        "Changed against the source: the sky is darker",
        "Changed against the source: the sky is darker",
        "Its clarity is rated 1.5 of 5",
    ]
    assert reasons(task, "w1", ["w1"], judges)[:2] == ["Not met: It is red", "Not met: It says Nord"]
    assert reasons(task, "w1", ["w1"], [{}]) == []


def test_a_run_that_is_not_settled_is_refused(runs, tmp_path):
    folder, _ = runs
    run_stages(config("servimage", folder / "data", {"one": folder / "one"}, 1), tmp_path / "run", ("generate",))
    with RunDir.open(tmp_path / "run") as run, pytest.raises(UserError, match="has no decisions"):
        write_revisions(run, tmp_path / "o")
    assert not (tmp_path / "o").exists()
