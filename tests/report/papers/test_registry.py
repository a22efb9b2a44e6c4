"""The tables and figures of the papers: each has one entry, and what cannot be made has a reason."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from local_bench.cli.main import main
from local_bench.core.environment import load_object
from local_bench.core.types import digest
from local_bench.report.papers.contents import entries, entry, papers
from local_bench.runs.rundir import RunDir

PAPERS = {
    "servimage": (range(1, 14), range(1, 15)),
    "idea-bench": (range(1, 9), range(1, 4)),
    "hype-edit-1": (range(1, 5), range(1, 6)),
    "ice-bench": (range(1, 9), range(1, 8)),
}
"""The numbers of each paper's tables and figures; ICE-Bench's are its supplement's."""
ENTRIES = [one for paper in PAPERS for one in entries(paper)]


@pytest.mark.parametrize("paper", PAPERS)
def test_every_table_and_figure_has_one_entry(paper):
    tables, figures = PAPERS[paper]
    assert paper in papers()
    own = [(e.kind, e.number) for e in entries(paper)]
    assert own == [*(("table", n) for n in tables), *(("figure", n) for n in figures)]


def test_a_suite_with_the_layout_of_another_has_no_paper_of_its_own(monkeypatch):
    layouts = {"lab": "lab", "rounds": "their-files", "plain": None, "variant": "lab"}
    suites = [SimpleNamespace(name=name, layout=layout, paper=True) for name, layout in layouts.items()]
    monkeypatch.setattr("local_bench.suites.registry.all_suites", lambda: suites)
    assert papers() == ["lab", "rounds", "plain"]


def test_every_entry_has_names_and_a_builder_or_a_reason_with_which_it_exits(capsys):
    for one in ENTRIES:
        assert bool(one.build) != bool(one.reason), one
        assert not one.reason.endswith(".")
        assert set(one.required) <= set(one.options)
        if one.build:
            assert callable(load_object(one.where, one.name))
    entries = {entry("servimage", name) for name in ("table-2", "Table 2", "tab. 2", "t2", "2", "T02")}
    assert {(e.kind, e.number) for e in entries} == {("table", 2)}
    assert entry("servimage", "Fig 2").kind == "figure"
    for e in (e for e in ENTRIES if e.reason):
        assert main(["reproduce", e.paper, e.name]) == 2
        said = f"local-bench: {e.kind} {e.number} of {e.paper} ({e.title}) cannot be created: {e.reason}\n"
        assert capsys.readouterr().err == said


NEEDS_MORE = {
    "servimage": {"table-4", "table-9", "table-11", "figure-4"},
    "idea-bench": {"table-5", "table-7"},
    "hype-edit-1": {"figure-5"},
    "ice-bench": set(),
}
"""What needs a trained predictor, a second judge, or tasks that the small runs do not have."""


@pytest.mark.parametrize("paper", PAPERS)
def test_every_table_and_figure_of_a_run_names_the_rubric_set_and_the_number_of_images(
    paper, runs, reproduce, tmp_path
):
    path, labels = tmp_path / "run", tmp_path / "labels.jsonl"
    shutil.copytree(runs[paper][0], path)
    with RunDir.open(path) as run:
        rows = run.store.rows("SELECT model, task_id, deliverable FROM candidates WHERE state = 'done'")
        made, requested = run.store.n_candidates(made=True), run.store.n_candidates()
        judge = {"name": "dice", "rubric_variant": "paper", "rubrics": {"brf": "a" * 64}}
        run.store.set_meta("provenance", json.dumps((run.store.json_meta("provenance") or {}) | {"judge": judge}))
    labels.write_text("".join(json.dumps(dict(r) | {"overall": r["model"] != "one"}) + "\n" for r in rows))
    expected = f"judged by dice with the rubric set paper ({digest(judge['rubrics'])[:12]})"
    n = f"images made: {', '.join(f'{model} {made[model]} of {requested[model]}' for model in requested)}"
    for one in ENTRIES:
        if one.paper != paper or one.reason or one.name in NEEDS_MORE[paper]:
            continue
        people = ("--people", labels) if one.required else ()
        notes = reproduce(paper, one.name, path, *people)["notes"]
        assert expected in notes, one.name
        assert n in notes, one.name


def test_tables_by_people_name_the_labels_and_the_judges_of_what_people_do_not_decide(runs, reproduce, tmp_path):
    path, labels = tmp_path / "run", tmp_path / "labels.jsonl"
    shutil.copytree(runs["servimage"][0], path)
    with RunDir.open(path) as run:
        rows = run.store.rows("SELECT model, task_id, deliverable FROM candidates WHERE state = 'done'")
        judge = {"name": "dice", "rubric_variant": "paper", "rubrics": {}}
        run.store.set_meta("provenance", json.dumps({"judge": judge}))
    labels.write_text("".join(json.dumps(dict(r) | {"overall": True}) + "\n" for r in rows))
    for name, by_judge in (("table-2", False), ("table-3", True), ("table-7", False), ("table-10", True)):
        notes = reproduce("servimage", name, path, "--people", labels)["notes"]
        assert any(note.startswith("judged by dice") for note in notes) == by_judge, name
        assert ("decided by people's labels: labels.jsonl" in notes) == (name != "table-10"), name


def test_the_listing_and_the_help_name_every_command(capsys):
    assert main(["reproduce", "--help"]) == 0
    result = capsys.readouterr().out
    assert "hype-edit-1  tables 2, 3, 4; figures 1, 2, 3, 4, 5" in result
    for paper in PAPERS:
        assert main(["reproduce", paper]) == 0
        listed = capsys.readouterr().out
        assert all((e.command or f"not available: {e.reason}") in listed for e in ENTRIES if e.paper == paper)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("servimag", "did you mean 'servimage'?"),
        ("servimage table-99", "has no 'table-99': `local-bench reproduce servimage` lists"),
        ("servimage table-2", "is created from runs or files: give their paths after table-2"),
        ("servimage table-9 RUN", "needs --people FILE"),
        ("servimage table-2 RUN --by-type", "--by-type does not apply to table-2 of servimage"),
        ("servimage table-2 RUN --tasks x", "has its own: leave it out"),
        ("servimage table-2 RUN nothing.jsonl", "give runs or result files, not both"),
        ("servimage table-2 nothing.jsonl", "give the tasks with --tasks"),
        ("servimage table-11 nothing.jsonl", "is created from runs, but nothing.jsonl is not a run directory"),
        ("servimage table-2 absent.jsonl", "absent.jsonl does not exist"),
        ("servimage table-11 RUN SECOND", "is of one run, and 2 are given"),
        ("servimage figure-2 RUN --out f.txt", "a figure is written as .svg, .pdf, .png"),
        ("servimage table-1 EMPTY", "has no images planned yet: run its config first"),
        ("hype-edit-1 table-4 RUN", "is a run of servimage, not of hype-edit-1"),
    ],
)
def test_wrong_input_is_an_error(runs, tmp_path, monkeypatch, capsys, command, message):
    monkeypatch.chdir(tmp_path)
    Path("nothing.jsonl").touch()
    first, second = runs["servimage"]
    with RunDir.open(first) as run, RunDir.begin(tmp_path / "empty", run.config):
        pass
    given = [
        {"RUN": str(first), "SECOND": str(second), "EMPTY": str(tmp_path / "empty")}.get(part, part)
        for part in command.split()
    ]
    assert main(["reproduce", *given]) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines()), message in err) == ("", 1, True), err
