"""The judge phase with real judges: transports, both protocols, panels, repeated judging, and a killed judge."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from local_bench.runs.rundir import RunDir

from . import answers

CHILD = Path(__file__).with_name("child.py")
POINTS = [f"There is a number {k} in it" for k in range(9)]
N_TASKS = 6
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
        orders.append(
            {
                "task_id": f"t{i}",
                "category": "C",
                "price_usd": 10,
                "title": f"Card {i}",
                "brief": "两张卡片。A card, twice.",
            }
            | {"deliverables": ["front", "back"], "evaluation_points": POINTS, "rules": rules}
        )
        for n in (1, 2):
            (path / "images" / f"t{i}").mkdir(parents=True, exist_ok=True)
            noise = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(noise).resize((64, 64), Image.Resampling.NEAREST).save(
                path / "images" / f"t{i}" / f"{n}.png"
            )
    (path / "orders.jsonl").write_text("\n".join(map(json.dumps, orders)))
    (path / "run.yaml").write_text(
        "name: judged\nsuite: {name: servimage, path: orders.jsonl}\nmetrics: [entropy]\n"
        "models: [{card: imported, name: theirs, imported: {images: images}}]\n"
        "judge: {card: tiny-qwen3-vl, rubrics: paper}\n"
    )
    return path


@pytest.fixture(scope="module")
def command(folder, cache, judge_server):
    """Runs the command line in a fork; `own_server` starts a judge instead of using the session's server."""
    with subprocess.Popen(
        [sys.executable, str(CHILD)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ}
    ) as process:

        def run(*arguments, moment="never", own_server=False, settings=()):
            external = () if own_server else (f"judge.base_url={judge_server.base_url}",)
            sets = [text for setting in (*external, *settings) for text in ("--set", setting)]
            env = {"VLLM_API_KEY": judge_server.api_key.get_secret_value()}
            request = {"moment": moment, "arguments": [*arguments, "--json", *sets], "cwd": str(folder), "env": env}
            print(json.dumps(request), file=process.stdin, flush=True)
            return SimpleNamespace(**json.loads(process.stdout.readline()))

        yield run
        process.stdin.close()


def digest(command, name):
    ended = command("digest", name, own_server=True)
    return json.loads(ended.stdout)


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
    with RunDir.open(folder / "embedded") as run:
        n = run.store.rows("SELECT count(*) AS n FROM verdicts")[0]["n"]
        charged = run.store.rows("SELECT sum(n_items) AS n FROM meter WHERE phase = 'judge'")[0]["n"]
    assert n == charged == N_QUESTIONS  # nothing lost, no question answered twice


def test_checks_of_the_judge_report_repeatability_and_injection(served, folder):
    found = json.loads((folder / "served" / "provenance.json").read_text())["judge"]
    assert found["reproducible"] is True
    assert found["attacks"]["n"] + found["attacks"]["n_unscored"] >= 12
    with RunDir.open(folder / "served") as run:
        (record,) = run.store.notes("canary").values()
        assert record["repeats"]["sessions"] == 1


def test_hard_rules_are_checked_by_code(served, folder):
    with RunDir.open(folder / "served") as run:
        rows = run.store.rows(
            "SELECT value FROM scores JOIN candidates USING (work_id) WHERE name = 'rules' ORDER BY deliverable"
        )
    assert [row["value"] for row in rows] == [1.0] * N_TASKS + [0.0] * N_TASKS


def test_label_probabilities_give_scores_of_the_same_names_with_a_spread(command, served, folder):
    ended = command("run", "run.yaml", "--run-dir", "logit", settings=["judge.protocol=logit", UNCHECKED])
    assert ended.returncode == 0, ended.stderr
    names = []
    for name in ("served", "logit"):
        with RunDir.open(folder / name) as run:
            rows = run.store.rows("SELECT name, value, spread FROM scores WHERE kind = 'judge' AND value IS NOT NULL")
            names.append({row["name"] for row in rows})
            spreads = {row["name"] for row in rows if row["spread"] is not None}
            verdict = run.store.rows("SELECT answer, labels FROM verdicts WHERE rubric = 'brf' LIMIT 1")[0]
        assert spreads == (names[-1] - {"rules", "brf"} if name == "logit" else set())
        assert (verdict["labels"] is not None) == (name == "logit")
    assert names[0] - {"veq_text"} == names[1] - {"veq_text", "brf_expected"}
    p = json.loads(verdict["labels"])["met"]
    assert sum(p.values()) == pytest.approx(1, abs=1e-5)
    assert json.loads(verdict["answer"])["met"] == int(max(p, key=p.get))


def test_a_panel_judges_the_same_images_with_several_judges(command, served, folder, judge_server):
    more = (
        "panel=[{card: tiny-qwen3-vl, rubrics: paper, protocol: logit, canaries: false, "
        f"base_url: '{judge_server.base_url}'}}]"
    )
    swapped_few = ("order_swap=true", "suite.limit=3", UNCHECKED)
    scores = {}
    for rule in ("mean", "majority"):
        ended = command("run", "run.yaml", "--run-dir", rule, settings=[more, f"panel_word={rule}", *swapped_few])
        assert ended.returncode == 0, ended.stderr
        with RunDir.open(folder / rule) as run:
            judges = run.store.rows("SELECT judge, count(*) AS n FROM verdicts GROUP BY judge")
            scores[rule] = run.store.rows("SELECT value FROM scores WHERE name = 'veq' ORDER BY work_id")
            swapped = run.store.rows("SELECT count(*) AS n FROM verdicts WHERE repeat = 1")[0]["n"]
        assert [row["n"] for row in judges] == [3 * (N_QUESTIONS // N_TASKS + 2)] * 2
        assert swapped == 2 * 2 * 3
    assert [row["value"] for row in scores["mean"]] != [row["value"] for row in scores["majority"]]
    # Without one judge, its verdicts remain stored and do not count. With it again, nothing is judged twice.
    before = digest(command, "mean")
    ended = command("judge", "mean", settings=["panel=[]"])
    assert ended.returncode == 0, ended.stderr
    assert digest(command, "mean") != before
    with RunDir.open(folder / "mean") as run:
        assert len(run.store.rows("SELECT DISTINCT judge FROM verdicts")) == 2
        assert len({row.judge for row in run.store.verdicts()}) == 1
    ended = command("judge", "mean", settings=[more])
    assert ended.returncode == 0, ended.stderr
    assert "starting the judge" not in ended.stderr
    assert "sending questions" not in ended.stderr
    assert digest(command, "mean") == before


def test_one_judge_under_two_names_is_refused(command, served, judge_server):
    panel = f"panel=[{{card: tiny-qwen3-vl, rubrics: paper, name: twin, base_url: '{judge_server.base_url}'}}]"
    ended = command("judge", "served", settings=[panel])
    assert ended.returncode == 2
    assert "are the same judge under two names" in ended.stderr


def test_repeated_judging_reports_the_share_of_equal_answers(command, served, folder):
    ended = command("judge", "served", "--rejudge", "2", settings=[UNCHECKED])
    assert ended.returncode == 0, ended.stderr
    with RunDir.open(folder / "served") as run:
        n = run.store.rows("SELECT count(*) AS n FROM retests")[0]["n"]
    assert n == 2 * N_QUESTIONS
    assert digest(command, "served") == served
    retest = json.loads(ended.stdout)["judges"][0]["retest"]
    assert {row["rubric"] for row in retest} == {"brf", "veq_technical", "veq_aesthetic", "veq_text", "cns_set"}
    assert all(row["same"] == 1 for row in retest)


def test_without_vllm_the_same_rubrics_are_judged_in_process(command, served, folder):
    ended = command(
        "run",
        "run.yaml",
        "--run-dir",
        "local",
        own_server=True,
        settings=["judge.transport=local", "suite.limit=2", UNCHECKED],
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads((folder / "local" / "provenance.json").read_text())["judge"]
    assert found["transport"] == "local"
    assert set(found["numerics"]) >= {"torch", "transformers", "xgrammar"}
    answers = []
    for name in ("served", "local"):
        with RunDir.open(folder / name) as run:
            rows = run.store.rows(
                "SELECT task_id, deliverable, rubric, point, answer FROM verdicts JOIN candidates "
                "USING (work_id) WHERE task_id IN ('t0', 't1') ORDER BY 1, 2, 3, 4"
            )
            answers.append([tuple(row) for row in rows])
    assert answers[0] == answers[1]
