"""The judge phase with real judges: transports, both protocols, panels, repeated judging, and a killed judge."""

import json
from functools import partial

import numpy as np
import pytest
from PIL import Image

from local_bench.analysis.comparability import comparable
from local_bench.analysis.predictors.card import inputs_of
from local_bench.runs.rundir import RunDir
from tests.orders import order, write_orders

from . import answers, rows

POINTS = [f"There is a number {k} in it" for k in range(9)]
N_TASKS = 3
N_QUESTIONS = N_TASKS * (2 * (3 + len(POINTS)) + 2)
UNCHECKED = "judge.canaries=false"
"""Without the checks of the judge, which take longer than its questions: they are in the run `served`."""

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Orders for two images each, imported images, and a config without a generator."""
    path = tmp_path_factory.mktemp("judge")
    rng = np.random.default_rng(0)
    orders = []
    for i in range(N_TASKS):
        rules = [{"file_type": ["PNG"], "visual_specs": {"width_px": 64}}, {"visual_specs": {"aspect_ratio": "16:9"}}]
        brief = {"brief": "两张卡片。A card, twice.", "evaluation_points": POINTS}
        orders.append(order(f"t{i}", ["front", "back"], rules=rules, **brief))
        for n in (1, 2):
            (path / "images" / f"t{i}").mkdir(parents=True, exist_ok=True)
            noise = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8))
            noise.resize((64, 64), Image.Resampling.NEAREST).save(path / "images" / f"t{i}" / f"{n}.png")
    write_orders(path / "orders.jsonl", orders)
    (path / "run.yaml").write_text(
        "name: judged\nsuite: {name: servimage, path: orders.jsonl}\nmetrics: [entropy]\n"
        "models: [{card: imported, name: theirs, imported: {images: images}}]\n"
        "judge: {card: tiny-qwen3-vl, rubrics: paper}\n"
    )
    return path


@pytest.fixture(scope="module")
def command(folder, forked_command):
    return partial(forked_command, folder)


def digest(command, name):
    return json.loads(command("digest", name, own_server=True).stdout)


@pytest.fixture(scope="module")
def served(command):
    """The digests of a run judged by a server."""
    ended = command("run", "run.yaml", "--run-dir", "served")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["verdicts"] == {"n": N_QUESTIONS, "n_unscored": 0}
    return digest(command, "served")


def test_a_killed_embedded_judge_gives_the_answers_of_the_server(command, served, folder):
    ended = command("run", "run.yaml", "--run-dir", "embedded", moment="server", own_server=True, settings=[UNCHECKED])
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("the judge stopped responding") == 1
    assert digest(command, "embedded") | {key: served[key] for key in ("verdicts", "root")} == served
    assert answers(folder / "embedded") == answers(folder / "served")
    n = rows(folder / "embedded", "SELECT count(*) AS n FROM verdicts")[0]["n"]
    charged = rows(folder / "embedded", "SELECT sum(n_items) AS n FROM meter WHERE phase = 'judge'")[0]["n"]
    assert n == charged == N_QUESTIONS  # nothing lost, no question answered twice


def test_checks_of_the_judge_report_repeatability_and_injection(served, folder):
    judge = json.loads((folder / "served" / "provenance.json").read_text())["judge"]
    assert judge["reproducible"] is True
    assert judge["attacks"]["n"] + judge["attacks"]["n_unscored"] >= 12
    with RunDir.open(folder / "served") as run:
        (record,) = run.store.notes("canary").values()
        assert record["repeats"]["sessions"] == 1


def test_hard_rules_are_checked_by_code(served, folder):
    query = "SELECT value FROM scores JOIN candidates USING (work_id) WHERE name = 'rules' ORDER BY deliverable"
    values = [row["value"] for row in rows(folder / "served", query)]
    assert values == [1.0] * N_TASKS + [0.0] * N_TASKS


def test_label_probabilities_give_scores_of_the_same_names_with_a_spread(command, served, folder):
    ended = command("run", "run.yaml", "--run-dir", "logit", settings=["judge.protocol=logit", UNCHECKED])
    assert ended.returncode == 0, ended.stderr
    names = []
    for name in ("served", "logit"):
        scores = rows(folder / name, "SELECT * FROM scores WHERE kind = 'judge' AND value IS NOT NULL")
        names.append({row["name"] for row in scores})
        spreads = {row["name"] for row in scores if row["spread"] is not None}
        verdict = rows(folder / name, "SELECT answer, labels FROM verdicts WHERE rubric = 'brf' LIMIT 1")[0]
        assert spreads == (names[-1] - {"rules", "brf"} if name == "logit" else set())
        assert (verdict["labels"] is not None) == (name == "logit")
    assert names[0] - {"veq_text"} == names[1] - {"veq_text", "brf_expected"}
    p = json.loads(verdict["labels"])["met"]
    assert sum(p.values()) == pytest.approx(1, abs=1e-5)
    assert json.loads(verdict["answer"])["met"] == int(max(p, key=p.get))


def test_a_panel_judges_the_same_images_with_several_judges(command, served, folder, judge_server):
    second = "card: tiny-qwen3-vl, rubrics: paper, protocol: logit, canaries: false"
    more = f"panel=[{{{second}, base_url: '{judge_server.base_url}'}}]"
    swapped = ("order_swap=true", UNCHECKED)
    scores = {}
    for rule in ("mean", "majority"):
        ended = command("run", "run.yaml", "--run-dir", rule, settings=[more, f"panel_word={rule}", *swapped])
        assert ended.returncode == 0, ended.stderr
        veq = rows(folder / rule, "SELECT value FROM scores WHERE name = 'veq' ORDER BY work_id")
        scores[rule] = [row["value"] for row in veq]
        judges = rows(folder / rule, "SELECT count(*) AS n FROM verdicts GROUP BY judge")
        assert [row["n"] for row in judges] == [N_QUESTIONS + 2 * N_TASKS] * 2
        assert rows(folder / rule, "SELECT count(*) AS n FROM verdicts WHERE repeat = 1")[0]["n"] == 2 * 2 * N_TASKS
    assert scores["mean"] != scores["majority"]
    with RunDir.open(folder / "mean") as by_mean, RunDir.open(folder / "majority") as by_majority:
        assert inputs_of(by_mean).judges != inputs_of(by_majority).judges  # a predictor of one refuses the other
        assert comparable([by_mean, by_majority])[1] == ["majority and mean differ in the judges"]
    for setting in (
        "panel=[]",
        "panel_word=majority",
        "suite.questions_from=[ice-bench]",
    ):  # a preview would show the stored scores
        ended = command("settle", "mean", settings=[setting])
        assert ended.returncode == 2
        assert "enter `local-bench judge` with these settings first" in ended.stderr
    # Without one judge, its verdicts remain stored and do not count. With it again, nothing is judged twice.
    before = digest(command, "mean")
    ended = command("judge", "mean", settings=["panel=[]"])
    assert ended.returncode == 0, ended.stderr
    assert digest(command, "mean") != before
    assert len(rows(folder / "mean", "SELECT DISTINCT judge FROM verdicts")) == 2
    with RunDir.open(folder / "mean") as run:
        assert len({row.judge for row in run.store.verdicts()}) == 1
    ended = command("judge", "mean", settings=[more])
    assert ended.returncode == 0, ended.stderr
    assert "starting the judge" not in ended.stderr
    assert "sending questions" not in ended.stderr
    assert digest(command, "mean") == before


def test_repeated_judging_reports_the_share_of_equal_answers(command, served, folder):
    ended = command("judge", "served", "--rejudge", "2", settings=[UNCHECKED])
    assert ended.returncode == 0, ended.stderr
    assert rows(folder / "served", "SELECT count(*) AS n FROM retests")[0]["n"] == 2 * N_QUESTIONS
    assert digest(command, "served") == served
    retest = json.loads(ended.stdout)["judges"][0]["retest"]
    assert {row["rubric"] for row in retest} == {"brf", "veq_technical", "veq_aesthetic", "veq_text", "cns_set"}
    assert all(row["same"] == 1 for row in retest)


def test_without_vllm_the_same_rubrics_are_judged_in_process(command, served, folder):
    settings = ["judge.transport=local", "suite.limit=2", UNCHECKED]
    ended = command("run", "run.yaml", "--run-dir", "local", own_server=True, settings=settings)
    assert ended.returncode == 0, ended.stderr
    judge = json.loads((folder / "local" / "provenance.json").read_text())["judge"]
    assert judge["transport"] == "local"
    assert set(judge["numerics"]) >= {"torch", "transformers", "xgrammar"}
    query = """SELECT task_id, deliverable, rubric, point, answer FROM verdicts JOIN candidates USING (work_id)
               WHERE task_id IN ('t0', 't1') ORDER BY 1, 2, 3, 4"""
    in_process, by_server = ([tuple(row) for row in rows(folder / name, query)] for name in ("local", "served"))
    assert in_process == by_server
