"""run -> export -> `score` on what was written gives what the run itself comes to, in all four layouts."""

import json
import re
import shlex
import shutil
from fractions import Fraction
from pathlib import Path
from statistics import fmean
from unittest.mock import ANY

import pytest
from click.testing import CliRunner

from local_bench.analysis.economics import economics
from local_bench.analysis.official import MARK, export, official
from local_bench.analysis.settlement import accounting
from local_bench.cli.main import cli, main
from local_bench.core.errors import LedgerError, UserError
from local_bench.core.images import load_image, pixel_digest
from local_bench.core.money import MICRO
from local_bench.report.render import columns_text, with_unit
from local_bench.runs.rundir import RunDir
from local_bench.suites.hype_edit_1.results import read_judgements
from local_bench.suites.ice_bench.scoring import composite, needed
from local_bench.suites.idea_bench.results import HEADER
from tests.analysis.simulated import LAYOUTS, config, draw, judged
from tests.report.exported import assert_exports_are_those_of_load_run
from tests.report.written import report
from tests.suites.benchmarks import layouts


def scored(name, *arguments):
    done = CliRunner().invoke(cli, ["score", name, *map(str, arguments), "--json"], standalone_mode=False)
    assert done.exception is None, done.output
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One run a layout, each with two models."""
    found = {}
    for seed, (name, layout) in enumerate(LAYOUTS.items()):
        folder = tmp_path_factory.mktemp(layout)
        path = getattr(layouts, layout)(folder / "data")
        attempts = 3 if name == "hype-edit-1" else 1
        seeds = {"one": seed, "two": seed + 7}
        made = {label: draw(name, path, folder / label, number, attempts) for label, number in seeds.items()}
        judged(folder / "run", config(name, path, made, attempts), seed)
        with RunDir.open(folder / "run") as run:
            files = export(run, name, folder / "out")
            found[name] = (folder / "run", folder / "out", files, official(run))
    return found


def test_ice_bench(runs):
    _, out, files, own = runs["ice-bench"]
    assert [file.parent.name for file in files] == ["one", "two"] == list(own)
    for file, published in zip(files, own.values(), strict=True):
        output = scored("ice-bench", file)
        assert output == json.loads(json.dumps(published.data))
        assert output["unscored_tasks"] == [], "a task without a needed metric is not in the file"
        complete = complete_tasks(runs["ice-bench"][0], file.parent.name)
        assert set(output["n_items"]) == complete
        omitted = [note.split(": ")[1] for note in published.notes if note.startswith("omitted")]
        left = [task for names in omitted for task in names.split(", ")]
        assert len(left) == len(set(left)) == 5 - len(complete)
        assert official_overall(file) == pytest.approx(output["overall"])
        places = json.loads((file.parent / "gen_info.json").read_text())
        assert places
        assert all((out / place).is_file() for place in places.values())


def complete_tasks(run_dir, model):
    """The tasks of which some image has every needed metric, from the ledger's rows."""
    with RunDir.open(run_dir) as run:
        rows = run.store.rows(
            """SELECT t.category, s.name FROM scores s JOIN candidates c USING (work_id) JOIN tasks t USING (task_id)
               WHERE c.model = ? AND c.state = 'done' AND s.value IS NOT NULL""",
            model,
        )
    pairs = {(row["category"], row["name"]) for row in rows}
    return {task for task in {task for task, _ in pairs} if all((task, name) in pairs for name in needed(task))}


def official_overall(file):
    """As the authors' cal_scores.py: means of every key that a task's lines have, KeyError for one that it needs."""
    by_task = {}
    for line in file.read_text().splitlines():
        _, task, metrics = line.split("#;#")
        for name, value in json.loads(metrics).items():
            by_task.setdefault(task, {}).setdefault(name, []).append(value)
    means = {task: {name: fmean(values) for name, values in of.items()} for task, of in by_task.items()}
    return fmean(composite(task, of) for task, of in means.items())


def test_an_ice_bench_variant_is_no_official_metric(runs, tmp_path, capsys):
    """`clip_cap` of another model than the benchmark's: under its own name alone, and every task needs `clip_cap`."""
    run_dir = shutil.copytree(runs["ice-bench"][0], tmp_path / "run")
    with RunDir.open(run_dir) as run:
        run.store.write("UPDATE scores SET name = 'clip_cap:tiny-clip' WHERE name = 'clip_cap'")
        own = official(run)["one"]
    assert own.data["overall"] is None
    assert own.data["tasks"] == {}
    output = call_main(capsys, "export", run_dir, "--format", "ice-bench", "--out", tmp_path / "out", "--json")
    assert output["files"] == []
    assert not (tmp_path / "out/results/one/eval_result.txt").exists()
    assert any("clip_cap: " in note or "clip_cap, " in note for note in output["notes"])
    assert "one: not among the official metrics, written under their own names: clip_cap:tiny-clip" in output["notes"]
    with RunDir.open(run_dir) as run:  # one task has it again: its line has both names
        run.store.write(
            """INSERT INTO scores SELECT work_id, 'clip_cap', kind, 0.25, NULL, 1, NULL FROM scores
               JOIN candidates USING (work_id) JOIN tasks USING (task_id)
               WHERE category = 'Text2Image' AND scores.name = 'clip_cap:tiny-clip'"""
        )
        own = official(run)["one"].data
    output = call_main(capsys, "export", run_dir, "--format", "ice-bench", "--out", tmp_path / "out", "--json")
    (file,) = [file for file in output["files"] if "/one/" in file]
    (line,) = Path(file).read_text().splitlines()
    metrics = json.loads(line.split("#;#")[2])
    assert metrics["clip_cap"] == 0.25
    assert "clip_cap:tiny-clip" in metrics
    assert scored("ice-bench", file) == json.loads(json.dumps(own))
    assert list(own["tasks"]) == ["Text2Image"]


def call_main(capsys, *arguments):
    assert main([*map(str, arguments)]) == 0
    return json.loads(capsys.readouterr().out)


def test_idea_bench(runs):
    _, out, files, own = runs["idea-bench"]
    for file, published in zip(files, own.values(), strict=True):
        output = scored("idea-bench", file)
        assert output == json.loads(json.dumps(published.data))
        assert output["n_rows"] == 18
        assert output["n_missing"] == 0
        assert file.read_text().splitlines()[0] == ",".join(HEADER)
        assert (out / "outputs" / file.stem / "pair_0001" / "0001.jpg").is_file()
    assert (out / "outputs" / "one_stitched" / "pair_0001" / "0006.jpg").is_file()


def test_hype_edit_1(runs):
    run_dir, out, files, own = runs["hype-edit-1"]
    output = scored("hype-edit-1", *files, "--scores", out / "ratings.jsonl")
    assert output == json.loads(json.dumps(own["all"].data))
    assert {way["way"] for way in output["models"]["one"]["workflows"]} > {"best of 3"}
    with RunDir.open(run_dir) as run:
        rows = run.store.rows("SELECT * FROM candidates JOIN decisions USING (work_id)")
        decided = {(r["model"], r["task_id"], r["attempt"]): r["accepted"] for r in rows}
        for r in rows:
            place = out / "outputs" / "public" / r["model"] / r["task_id"] / f"{r['attempt']:03d}.webp"
            assert place.exists() == (r["state"] == "done")
            if r["state"] == "done":
                assert pixel_digest(load_image(place)) == r["pixels_sha256"]  # WebP without loss
    judgements = read_judgements(files)
    assert len(judgements.rows) == len(decided) == 18
    assert all(decided[row.model, row.task_id, row.attempt] == row.passed for row in judgements.rows)
    assert None in decided.values()


def test_hype_edit_1_numbers_its_models_by_sorted_name(runs, tmp_path):
    with RunDir.open(shutil.copytree(runs["hype-edit-1"][0], tmp_path / "run")) as run:
        run.store.write(
            "UPDATE candidates SET model = 'zero' WHERE model = 'one'"
        )  # the plan's first, the last by name
        (file,) = export(run, "hype-edit-1", tmp_path / "out")
    assert json.loads(file.read_text())["models"] == {"M01": "two", "M02": "zero"}


def test_servimage(runs):
    run_dir, out, files, own = runs["servimage"]
    output = scored("servimage", *files, "--tasks", out / "tasks.jsonl", "--scores", out / "scores.jsonl")
    assert output == json.loads(json.dumps(own["all"].data))
    with RunDir.open(run_dir) as run:
        money = accounting(run.store, run.config.settlement)
        found = economics(run.store, money, {}, {})
    for settled in money.settlements:  # another way to the same: whole micro-dollars an image
        of_model = output["models"][settled.model]
        assert of_model["revenue_usd"] == pytest.approx(settled.total.revenue_micro_usd / MICRO, abs=1e-5)
        assert of_model["n_accepted"] == settled.total.n_accepted
        assert of_model["n_unscored"] + of_model["n_missing"] == settled.total.n_unscored
    for model, placed in found.competition.placed.items():
        assert Fraction(output["competition"][model]["revenue_usd"]) == Fraction(float(placed.revenue_usd))
        assert output["competition"][model]["rank"] == placed.rank


def test_a_layout_of_another_suite_or_none_is_refused(runs, capsys, monkeypatch):
    for name, message in (("servimage", "give --format ice-bench"), ("icebench", "did you mean 'ice-bench'")):
        assert main(["export", str(runs["ice-bench"][0]), "--format", name]) == 2
        assert message in capsys.readouterr().err
    monkeypatch.setattr("local_bench.analysis.official.format_of", lambda run: None)
    assert main(["export", str(runs["ice-bench"][0]), "--format", "servimage"]) == 2
    said = capsys.readouterr().err
    assert f"a suite without a file layout: use the tables in {runs['ice-bench'][0]}/exports" in said
    assert "None" not in said


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_exports_are_the_frames_of_load_run(runs, name, tmp_path):
    path = shutil.copytree(runs[name][0], tmp_path / "run")
    assert_exports_are_those_of_load_run(path)


@pytest.mark.parametrize("name", ["ice-bench", "idea-bench", "hype-edit-1"])
def test_the_page_has_what_the_benchmark_publishes(runs, name):
    path, _, _, own = runs[name]
    written = report(path)
    assert "benchmark" in written.sections
    assert "scenarios" not in written.sections  # nothing in it has a price
    assert not re.search(r"Revenue|eq\. 1|Profit", written.text)
    tables = [table for found in own.values() for table in found.tables]
    cells = [with_unit(*cell) for t in tables for row in t.rows for cell in zip(row, t.columns, strict=True)]
    assert len(cells) > 4
    assert all(cell in written.text for cell in cells)


def test_the_result_of_an_order_suite_is_its_settlement(runs):
    written = report(runs["servimage"][0])
    assert ("benchmark" in written.sections, "scenarios" in written.sections) == (False, True)


def test_a_forged_digest_and_a_forged_model_name_stay_inside_the_run(runs, tmp_path):
    path = shutil.copytree(runs["servimage"][0], tmp_path / "run")
    with RunDir.open(path) as run:
        run.store.write("UPDATE candidates SET pixels_sha256 = '../../../secret' WHERE state = 'done'")
        with pytest.raises(UserError, match="is not the digest of an image"):
            export(run, "servimage", tmp_path / "out")
        run.store.write("UPDATE candidates SET model = 'x/../../../../evil' WHERE model = 'one'")
    with pytest.raises(LedgerError, match="damaged or forged"), RunDir.open(path):
        pass


@pytest.mark.parametrize("name", list(LAYOUTS))
def test_the_printed_score_command_has_all_that_it_needs(name, runs, tmp_path, capsys):
    """Run as printed, it gives the run's own numbers, costs and overall score included."""
    run_dir, _, _, own = runs[name]
    assert main(["export", str(run_dir), "--format", name, "--out", str(tmp_path / "an export")]) == 0
    lines = capsys.readouterr().out.strip().splitlines()
    for line, published in zip(lines, own.values(), strict=True):
        program, *arguments = shlex.split(line)
        assert program == "local-bench"
        assert main([*arguments, "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(published.data))


@pytest.mark.parametrize("name", ["ice-bench", "idea-bench"])
def test_the_terminal_has_the_cost_of_an_image(name, runs, monkeypatch):
    """Of benchmarks whose numbers have no money; the others' tables have it."""
    monkeypatch.setattr("local_bench.analysis.official.usd_per_image", lambda *_: {"one": Fraction(1, 800)})
    with RunDir.open(runs[name][0]) as run:
        shown = {model: of.tables[-1] for model, of in official(run).items()}
    assert columns_text(shown["one"]).split() == [*["generation", "cost", "per", "image"], ANY, ANY, "one", "$0.001250"]
    assert shown["two"].title != "generation"


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_second_export_removes_what_only_the_first_one_wrote(runs, tmp_path, name):
    """A model that the run does not have any more; what a person put into the folder stays."""
    shutil.copytree(runs[name][0], tmp_path / "run")
    out, own, fresh = tmp_path / "out", tmp_path / "run/exports/own", tmp_path / "fresh"
    with RunDir.open(tmp_path / "run") as run:
        for folder in (out, own):
            export(run, name, folder)
            (folder / "mine").mkdir()
            (folder / "mine/one.txt").write_text("mine")
        run.store.write("UPDATE candidates SET model = 'three' WHERE model = 'two'")
        for folder in (out, own, fresh):
            export(run, name, folder)
        left = [{path.relative_to(folder) for path in folder.rglob("*")} for folder in (out, own, fresh)]
        assert left[0] == left[1] == left[2] | {Path("mine"), Path("mine/one.txt")}
        forged = (out / MARK).read_text().replace('": [', '": ["mine/../../fresh/' + MARK + '", "gone", ', 1)
        (out / MARK).write_text(forged)
        export(run, name, out)
        assert (fresh / MARK).exists()
        (out / MARK).write_text("Written by local-bench export.\n{")
        with pytest.raises(UserError, match="is damaged: give another folder"):
            export(run, name, out)
