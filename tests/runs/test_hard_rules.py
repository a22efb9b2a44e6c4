"""An order's hard rules end to end: the size of the image, the decision, and the decisions by rules alone."""

import json
import sqlite3

import pytest
from PIL import Image

from local_bench.analysis.hard_rules import HardRuleStats, hard_rule_stats
from local_bench.analysis.sensitivity import over_thresholds
from local_bench.cli.main import main
from local_bench.core.types import Score
from local_bench.runs.config import RunConfig
from local_bench.runs.plan import make_plan
from local_bench.runs.rundir import RunDir
from local_bench.runs.scoring import _rules, decide, parts
from tests.orders import noise, order, write_orders
from tests.stages import run_stages

SQUARE, EXACT, PRINT = {"aspect_ratio": "square"}, {"width_px": 128, "height_px": 64}, {"aspect_ratio": "1:1.4"}
ORDERS = {
    "one": [{"visual_specs": SQUARE}],
    "two": [{"visual_specs": EXACT}, {}],
    "three": [{"visual_specs": {"aspect_ratio": "portrait", "min_dpi": 300}}],
    "four": [],
}


@pytest.fixture
def orders(tmp_path):
    """Orders with rules for every image, for some, for none; imported images of 64 x 64."""
    lines = []
    for task_id, rules in ORDERS.items():
        deliverables = [f"image {i}" for i in range(len(rules) or 1)]
        lines.append(order(task_id, deliverables, rules=rules))
        for i in range(1, len(deliverables) + 1):
            path = tmp_path / "made" / task_id / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (64, 64), (len(lines) * 40, i * 40, 0)).save(path)
    write_orders(tmp_path / "tasks.jsonl", lines)
    return tmp_path


def config(orders, model, acceptance=(), **suite):
    suite = {"name": "servimage", "path": str(orders / "tasks.jsonl")} | suite
    settings = {"suite": suite, "models": [model], "acceptance": dict(acceptance), "metrics": []}
    return RunConfig.model_validate({"name": "t", "engine": {"device": "cpu"}} | settings)


def settled(orders, counted, brf=5.0):
    """A run of imported images that all score `brf`, with its rules checked by code."""
    model = {"card": "imported", "name": "theirs", "imported": {"images": str(orders / "made")}}
    run_stages(config(orders, model, {"rules": counted}), orders / f"run-{counted}", ("generate",))
    run = RunDir.open(orders / f"run-{counted}")
    values = {"brf": brf, "veq": 5.0, "cns": 5.0}
    scores = [(row.work_id, Score(*named)) for row in run.store.candidates() for named in values.items()]
    by_rules = [score for part in parts(run.store) for score in _rules(run, part)]
    run.store.enter_scores("judge", scores + by_rules, replace_all=True)
    decide(run)
    return run


def decisions(run):
    rows = run.store.rows(
        """SELECT task_id, deliverable, accepted, d.unscored FROM decisions d JOIN candidates USING (work_id)
           ORDER BY position"""
    )
    return {(row["task_id"], row["deliverable"]): (row["accepted"], row["unscored"]) for row in rows}


def test_rules_decide_acceptance_if_configured(orders):
    with settled(orders, counted=False) as run:
        assert {accepted for accepted, _ in decisions(run).values()} == {1}
        without = hard_rule_stats(run)
    with settled(orders, counted=True) as run:
        decided, counted, swept = decisions(run), hard_rule_stats(run), over_thresholds(run)
    no_dpi = "rules: min_dpi: the file states no resolution; at least 300 dpi were asked for"
    assert decided == {
        ("one", 1): (1, None),
        ("two", 1): (0, None),  # 64 x 64 instead of the required 128 x 64
        ("two", 2): (1, None),
        ("three", 1): (None, no_dpi),
        ("four", 1): (1, None),
    }
    assert without == counted  # decisions by rules are reported in both cases
    assert counted["theirs"] == HardRuleStats(n=3, n_missed=1, n_unscored=1, n_decided=1, n_tasks_decided=1)
    assert swept is not None
    assert [point.values["theirs"] for point in swept.points] == [pytest.approx(25.0)] * len(swept.points)


BY_FILE = {  # the rules, the imported file's suffix, and the share of them that it meets; its copy is a PNG
    "jpg": ({"file_type": ["JPG"]}, "jpg", 1.0),
    "no_png": ({"file_type": ["PNG"], "visual_specs": {"width_px": 64}}, "jpg", 0.5),
    "bytes": ({"file_size": {"max_bytes": 8000}}, "jpg", 1.0),
    "dpi": ({"visual_specs": {"min_dpi": 300}}, "png", 1.0),
    "width": ({"visual_specs": {"width_px": 64}}, "webp", 1.0),
}


def test_hard_rules_are_checked_on_the_imported_file(tmp_path):
    """Also after a merge; a run of an earlier release knows only the copy's width and height."""
    write_orders(tmp_path / "tasks.jsonl", [order(task_id, rules=[rules]) for task_id, (rules, *_) in BY_FILE.items()])
    for task_id, (_, suffix, _) in BY_FILE.items():
        noise(path := tmp_path / f"made/{task_id}.{suffix}", 1, (64, 64))
        if suffix == "png":
            Image.open(path).save(path, dpi=(300, 300))
    model = {"card": "imported", "name": "theirs", "imported": {"images": str(tmp_path / "made")}}
    for i in (1, 2):
        run_stages(config(tmp_path, model, shard=f"{i}/2"), tmp_path / f"part-{i}", ("generate",))
    assert main(["merge", *(str(tmp_path / name) for name in ("run", "part-1", "part-2"))]) == 0

    def scores():
        with RunDir.open(tmp_path / "run") as run:
            tasks = {row.work_id: row.task_id for row in run.store.candidates()}
            return {tasks[work_id]: score for part in parts(run.store) for work_id, score in _rules(run, part)}

    by_file = scores()
    assert {name: score.value for name, score in by_file.items()} == {name: x for name, (*_, x) in BY_FILE.items()}
    with sqlite3.connect(tmp_path / "run/ledger.sqlite") as db:
        db.execute("DELETE FROM meta WHERE key = 'delivered:theirs'")
    assert {name: score.value for name, score in scores().items()} == dict.fromkeys(BY_FILE, None) | {"width": 1.0}
    assert scores()["dpi"].unscored.startswith("min_dpi: the imported file is not known")
    run_stages(config(tmp_path, model), tmp_path / "run", ("generate",))
    assert scores() == by_file


def test_rules_that_no_generated_image_meets_are_named_before_the_run(tmp_path):
    rules = [rules for rules, *_ in BY_FILE.values()] + [{"file_type": ["PNG", "JPG"]}]
    write_orders(tmp_path / "tasks.jsonl", [order("one", map(str, rules), rules=rules)])
    counts = "file_type (cannot be met) 1, min_dpi (stays undetermined) 1"
    notes = make_plan(config(tmp_path, {"card": "tiny-flux"}), files=False).notes
    assert [note for note in notes if "PNG" in note] == [
        f"Generated images are PNG files without a resolution; images with such a rule: {counts}."
    ]


def test_an_image_rejected_by_scores_is_not_counted_as_decided_by_rules(orders):
    with settled(orders, counted=True, brf=1.0) as run:
        assert {accepted for accepted, _ in decisions(run).values()} == {0}
        stats = hard_rule_stats(run)["theirs"]
    assert (stats.n_decided, stats.n_tasks_decided) == (0, 0)


def test_a_run_without_rules_has_no_column(orders):
    text = (orders / "tasks.jsonl").read_text().splitlines()
    (orders / "tasks.jsonl").write_text("\n".join(line for line in text if '"four"' in line))
    with settled(orders, counted=True) as run:
        assert hard_rule_stats(run) == {}
        assert decisions(run) == {("four", 1): (1, None)}


def test_sizes_follow_the_rules_only_if_configured(orders):
    def planned(**suite):
        model = {"card": "tiny-flux", "height": 128, "width": 128}
        candidates = make_plan(config(orders, model, **suite), files=False).candidates
        samplers = [candidate.work["sampler"] for candidate in candidates]
        return [(s["width"], s["height"]) for s in samplers], [candidate.work_id for candidate in candidates]

    sizes, ids = planned()
    assert set(sizes) == {(128, 128)}
    assert planned(sizes_from_rules=False)[1] == ids
    by_rules, _ = planned(sizes_from_rules=True)
    assert by_rules == [(128, 128), (128, 64), (128, 128), (112, 144), (128, 128)]


def test_the_table_the_json_and_the_page_show_what_rules_decide(orders, capsys):
    with settled(orders, counted=True):
        pass
    run = orders / "run-True"
    assert main(["settle", str(run), "--json"]) == 0
    rules = json.loads(capsys.readouterr().out)["models"]["theirs"]["rules"]
    assert rules == {"counted": True, "n": 3, "n_missed": 1, "n_unscored": 1, "n_decided": 1, "n_tasks_decided": 1}
    assert main(["settle", str(run)]) == 0
    assert "refused by rules" in capsys.readouterr().out
    assert main(["report", str(run)]) == 0
    assert "refused by rules alone" in (run / "report" / "data" / "0-sections.js").read_text()
    capsys.readouterr()
    assert main(["settle", str(run), "--set", "acceptance.rules=false", "--save", "--json"]) == 0
    model = json.loads(capsys.readouterr().out)["models"]["theirs"]
    assert (model["rules"]["counted"], model["n_accepted"]) == (False, 5)
