"""`settle --plan-labels` and `--people`, from the plan to the labels and back, on a run written by hand."""

import json
import random
import shutil

import pytest

from local_bench.analysis.sampling import NO_PROBABILITIES, labelling, write_questions
from local_bench.analysis.settlement import accounting
from local_bench.cli import tables
from local_bench.cli.labels import BOUNDS_NOTE, INTERVAL, NEEDS_ALL, LabelOptions, labels_text
from local_bench.cli.tables import outcome_json, outcome_text
from local_bench.core.errors import UserError
from local_bench.core.money import usd, usd_number
from local_bench.core.types import Score
from local_bench.runs.config import JudgeConfig, ModelConfig, RunConfig
from local_bench.runs.rundir import RunDir
from local_bench.runs.scoring import decide
from local_bench.runs.stages import Outcome
from local_bench.runs.store.rows import Counts
from local_bench.settle.acceptance import likely
from tests.report.conftest import GAMMA, Writer, order

MODEL, N = "tiny-flux", 120


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """120 orders of one image, of 10 to 200 dollars; the last two orders' images are unscored and not made. Tests that
    change it take a copy."""
    path = tmp_path_factory.mktemp("labels") / "run"
    judge = JudgeConfig(card="tiny-qwen3-vl")
    config = RunConfig(name="labels", models=[ModelConfig(card=MODEL)], judge=judge, metrics=[])
    draw = random.Random(1)
    with RunDir.begin(path, config) as made, made.store.transaction():
        to = Writer(made)
        to.judges({GAMMA: "gamma"})
        for i in range(N):
            task = order(f"o{i:03}", "Digital", draw.randrange(10, 201) * 1_000_000, 1)
            to.task(task, i)
            if i == N - 1:
                to.candidate(task, 1, MODEL, "unscored", "no room")
                continue
            work_id = to.candidate(task, 1, MODEL)
            gap = "cut off" if i == N - 2 else None
            to.score(work_id, "brf", None if gap else draw.uniform(0, 5), gap)
            to.score(work_id, "veq", 4.0)
            to.score(work_id, "cns", None)
        made.store.set_meta("planned", "1")
    return path


def truth(run):
    """The decisions of people: the judge's scores with a standard deviation of one point and half a point less."""
    draw = random.Random(0)
    with RunDir.open(run) as open_run:
        rows = open_run.store.rows(
            "SELECT task_id, value FROM scores JOIN candidates USING (work_id) WHERE name = 'brf' ORDER BY position"
        )
    return {row["task_id"]: (row["value"] or 2) + draw.gauss(-0.5, 1) >= 3 for row in rows}


def filled(path, decisions):
    labels = path.with_name(f"{path.stem}-filled.jsonl")
    labels.write_text("".join(line(**(entry | {"overall": decisions[entry["task_id"]]})) for entry in lines_of(path)))
    return labels


def lines_of(path):
    return [json.loads(text) for text in path.read_text().splitlines()]


def line(**more):
    return json.dumps({"model": MODEL, "task_id": "o000", "deliverable": 1, "overall": True} | more) + "\n"


def labels_of(run, path, n):
    """The file of what people say about the first `n` orders."""
    path.write_text("".join(line(task_id=t, overall=ok) for t, ok in list(truth(run).items())[:n]))
    return path


def test_from_the_plan_to_the_estimate(cli, run, tmp_path):
    """The real commands: plan, label, estimate; then all is labelled and nothing is open."""
    true_decisions = truth(run)
    ended = cli("settle", run, "--plan-labels", "0.2", "--questions", "ask.jsonl", "--json")
    assert ended.returncode == 0, ended.stderr
    plan = json.loads(ended.stdout)["labels"][MODEL]["plan"]
    assert (plan["round"], plan["n_known"]) == ("first", 0)
    sampled = lines_of(tmp_path / "ask.jsonl")
    assert len(sampled) == plan["n_labels"] == len(plan["ask"])
    assert 10 < plan["n_labels"] < N
    assert plan["width"] <= 0.2
    assert all(line["overall"] is None and 0 < line["probability"] <= 1 for line in sampled)
    labels = filled(tmp_path / "ask.jsonl", true_decisions)

    ended = cli("settle", run, "--people", labels, "--plan-labels", "0.1", "--questions", "more.jsonl", "--json")
    assert ended.returncode == 0, ended.stderr
    estimate = json.loads(ended.stdout)["labels"][MODEL]
    with RunDir.open(run) as open_run:
        rows = open_run.store.rows("SELECT task_id, price_micro_usd FROM tasks ORDER BY position")
    price = {row["task_id"]: row["price_micro_usd"] for row in rows if row["task_id"] in true_decisions}
    total = sum(price.values())
    assert (estimate["n_images"], estimate["n_not_made"], estimate["value_usd"]) == (N - 1, 1, total / 1e6)
    share = estimate["estimates"]["revenue_share"]
    paid = sum(price[t] for t in true_decisions if true_decisions[t]) / total
    assert share["low"] <= paid <= share["high"]
    assert 0 < share["high"] - share["low"] < 0.25
    assert (share["ci95_low"], share["ci95_high"]) == (share["low"], share["high"])
    assert share["bound_low"] <= share["low"] <= share["estimate"] <= share["high"] <= share["bound_high"]
    assert estimate["plan"]["round"] == "next"
    assert (share["n_labelled"], share["n_unanswered"], share["n_unpredicted"]) == (plan["n_labels"], 0, 1)
    assert 0 < share["power"] <= 1

    more = lines_of(tmp_path / "more.jsonl")
    answered = [line for line in more if line["overall"] is not None]
    assert {line["task_id"] for line in answered} == {line["task_id"] for line in sampled}
    assert {line["probability"] for line in answered} == {1}
    assert len(more) == estimate["plan"]["n_labels"] + estimate["plan"]["n_known"]

    everything = tmp_path / "all.jsonl"
    everything.write_text("".join(line(task_id=t, overall=ok, probability=1) for t, ok in true_decisions.items()))
    with RunDir.open(run) as open_run:
        (model,) = labelling(open_run, 0.1, everything).models
    assert model.estimates["revenue_share"].low == model.estimates["revenue_share"].high == pytest.approx(paid)
    assert model.plan.n_labels == 0


def test_the_text_tables(run, tmp_path, capsys):
    with RunDir.open(run) as open_run:
        text, _ = LabelOptions(labels_of(run, tmp_path / "few.jsonl", 30), 0.2, None).output(open_run)
        assert LabelOptions(None, None, None).output(open_run) == ("", {})
    for words in ("estimated revenue", "to annotate", "no revenue by people", "next round: "):
        assert words in text
    assert NO_PROBABILITIES in capsys.readouterr().err
    with RunDir.open(run) as open_run:
        LabelOptions(labels_of(run, tmp_path / "all.jsonl", N), None, None).output(open_run)
    assert NO_PROBABILITIES not in capsys.readouterr().err, "no image was sampled"


def test_a_csv_of_annotations_is_refused_by_its_form(cli, run, tmp_path):
    (tmp_path / "labels.csv").write_text("model,task_id,deliverable,overall\n")
    ended = cli("settle", run, "--people", "labels.csv")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "labels.csv: annotations are read as JSON Lines, not as CSV" in ended.stderr


def test_without_all_annotations_there_is_no_revenue_by_people(run, tmp_path):
    """Bounds and an estimate instead; with all of them, the revenue and its interval."""
    decisions = list(truth(run).items())
    with RunDir.open(shutil.copytree(run, tmp_path / "run")) as open_run:
        rows = open_run.store.rows("SELECT task_id, price_micro_usd FROM tasks")
        decide(open_run)
        price = {row["task_id"]: row["price_micro_usd"] for row in rows}
        for n, made in ((30, N - 1), (N - 1, N - 1), (N - 1, N)):
            if made == N:  # the order whose image was not made is none of this model's
                open_run.store.write("DELETE FROM decisions")
                open_run.store.write("DELETE FROM candidates WHERE state = 'unscored'")
                decide(open_run)
                del price[f"o{N - 1}"]
            people = labels_of(run, tmp_path / f"{n}.jsonl", n)
            text, values = LabelOptions(people, None, None).output(open_run)
            found, of_category = values["people"][MODEL], values["people"][MODEL]["by_category"]["Digital"]
            accepted = sum(price[t] for t, ok in decisions[:n] if ok)
            unknown = sum(of for t, of in price.items() if t not in dict(decisions[:n]))  # with the one not made
            bounds = [found["revenue_bound_low_usd"], found["revenue_bound_high_usd"]]
            assert bounds == [usd_number(accepted), usd_number(accepted + unknown)]
            undecided = [found[name] for name in ("n_unscored", "n_not_annotated", "n_not_made")]
            assert undecided == [len(price) - n, N - 1 - n, N - made]
            share, value = values["labels"][MODEL]["estimates"]["revenue_share"], sum(price.values()) / 1e6
            assert [share["bound_low"] * value, share["bound_high"] * value] == pytest.approx(bounds)
            for of in (found, of_category):
                if made < N:
                    assert {of[name] for name in (NEEDS_ALL if n == 30 else INTERVAL) if name in of} == {None}
                    assert of["revenue_usd"] == (None if n == 30 else usd_number(accepted))
                else:
                    assert of["revenue_low_usd"] < of["revenue_usd"] == usd_number(accepted) < of["revenue_high_usd"]
            assert (BOUNDS_NOTE in text) == ("not made" in text) == (made < N)
            shown = text.split("estimated revenue")[0]
            assert (f"{usd(accepted)} to {usd(accepted + unknown)}" in shown) == (made < N)
            assert (f" {usd(accepted)}  " in shown) == (made == N)


def test_images_with_an_even_vote_are_annotated_and_have_no_decision(run, tmp_path):
    people = labels_of(run, tmp_path / "people.jsonl", N)
    votes = [line(task_id="o000", overall=yes, rater=rater) for rater, yes in (("r1", True), ("r2", False))]
    people.write_text("".join(votes) + people.read_text().partition("\n")[2])
    with RunDir.open(run) as open_run:
        text, values = LabelOptions(people, None, None).output(open_run)
    assert values["people"][MODEL]["n_not_annotated"] == 1
    heading, _, row = text.strip().splitlines()[:3]
    assert heading.endswith("no decision by people  not made")
    assert row.split()[-2:] == ["1", "1"]
    assert "unanswered" not in text


def test_no_further_round_once_the_interval_is_narrow_enough(run, tmp_path):
    """The file keeps the probabilities, without which its next estimate would be wrong; also of an open answer."""
    labels = filled(_planned(run, tmp_path / "ask.jsonl", None), truth(run))
    lines = labels.read_text().splitlines(keepends=True)
    lines[0] = json.dumps(json.loads(lines[0]) | {"overall": None}) + "\n"
    labels.write_text("".join(lines))
    again = _planned(run, tmp_path / "again.jsonl", labels)
    before, after = (
        [[line[name] for name in ("task_id", "probability", "overall")] for line in lines_of(path)]
        for path in (labels, again)
    )
    assert after == before
    with RunDir.open(run) as open_run:
        text, values = LabelOptions(again, 0.4, None).output(open_run)
        first, second = (labelling(open_run, None, path).models[0].estimates for path in (labels, again))
    plan = values["labels"][MODEL]["plan"]
    assert (plan["round"], plan["n_labels"], plan["ask"]) == ("none", 0, [])
    assert plan["width"] == first["revenue_share"].width <= 0.4
    assert "no further round: " in text
    assert first == second


def _planned(run, out, people):
    with RunDir.open(run) as open_run:
        LabelOptions(people, 0.4, out).output(open_run)
    return out


def test_without_prices_the_settlement_is_in_tasks_and_images_and_nothing_is_planned(run, tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "official", lambda run: {})  # a suite without official numbers
    with RunDir.open(shutil.copytree(run, tmp_path / "run")) as open_run:
        open_run.store.write("UPDATE tasks SET price_micro_usd = 0")
        decide(open_run)
        text = outcome_text(open_run, Outcome(Counts(N, N - 1, 1, 0, 0)), None, settled=True)
        values = outcome_json(open_run, Outcome(Counts(N, N - 1, 1, 0, 0)), None, settled=True)
    accepted = f"{values['models'][MODEL]['n_accepted']} / {N}"
    row = next(line for line in text.splitlines() if line.startswith(MODEL) and accepted in line)
    assert row.count(accepted) == 2, "tasks and images"
    assert "images accepted" in text
    for words in ("revenue", "$0.00", "no official number"):
        assert words not in text
    out = tmp_path / "ask.jsonl"
    with RunDir.open(tmp_path / "run") as open_run:
        with pytest.raises(UserError, match="could plan annotations for: its tasks are worth nothing"):
            LabelOptions(None, 0.2, out).output(open_run)
    assert not out.exists()


def test_plans_are_seeded(run):
    def plan(**how):
        with RunDir.open(run) as open_run:
            open_run.config = open_run.config.model_copy(update=how)
            return labelling(open_run, 0.2, None).models[0].plan

    assert plan().images.tolist() == plan().images.tolist() != plan(seed=99).images.tolist()


def test_an_unanswered_label_is_counted_and_bounded(run, tmp_path):
    path, answers = tmp_path / "people.jsonl", [None] * 4 + [True, False] * 18
    rows = (line(task_id=f"o{i:03}", probability=0.3, overall=answer) for i, answer in enumerate(answers))
    path.write_text("".join(rows))
    with RunDir.open(run) as open_run:
        (model,) = labelling(open_run, None, path).models
    images = model.estimates["deliverable_acceptance"]
    assert (images.n_labelled, images.n_unanswered) == (36, 4)
    assert images.at_least < images.estimate < images.at_most
    assert model.plan is None


def test_rounds_end_where_people_cannot_decide(run, tmp_path):
    """Undecided images keep their lines and are not planned again."""
    people, undecided = None, set()
    with RunDir.open(run) as open_run:
        for k in range(9):
            questions = tmp_path / f"{k}.jsonl"
            if not write_questions(found := labelling(open_run, 1e-6, people), questions):
                break
            lines = [json.loads(text) for text in questions.read_text().splitlines()]
            assert undecided <= {one["task_id"] for one in lines}
            new = [one for one in lines if one["overall"] is None and one["task_id"] not in undecided]
            undecided |= {one["task_id"] for one in new[::5]}
            for one in new:
                one["overall"] = None if one["task_id"] in undecided else one["task_id"] < "o2"
            people = tmp_path / f"{k}-answered.jsonl"
            people.write_text("".join(json.dumps(one) + "\n" for one in lines))
    (model,) = found.models
    assert model.estimates["deliverable_acceptance"].n_unanswered == len(undecided) > 0
    assert model.plan.width == model.estimates["revenue_share"].width > 0
    assert "every image is annotated, or was left without a decision" in labels_text(found)


@pytest.mark.parametrize(
    ("options", "lines", "message"),
    [
        ("--questions new.jsonl", [], "--questions writes the images planned by --plan-labels"),
        ("--plan-labels 0.2 --questions people.jsonl", [], "may contain annotations: give the name of a new file"),
        ("--plan-labels 0", [], "--plan-labels"),
        ("--people people.jsonl", [{"probability": 0.5}, {"task_id": "o001"}], "the probability of some images and"),
        ("--people people.jsonl", [{"probability": 0}], "people.jsonl, line 1"),
        (
            "--people people.jsonl",
            [{"probability": 0.5}, {"rater": "other", "probability": 0.6}],
            "line 2: its probability differs",
        ),
    ],
)
def test_wrong_options_and_labels_exit_with_2(cli, run, tmp_path, options, lines, message):
    (tmp_path / "people.jsonl").write_text("".join(line(**more) for more in lines))
    ended = cli("settle", run, *options.split())
    assert (ended.returncode, message in ended.stderr) == (2, True), ended.stderr
    assert "Traceback" not in ended.stderr


def test_labels_of_later_attempts_are_reported(run, tmp_path):
    path = tmp_path / "people.jsonl"
    path.write_text(line() + line(task_id=f"o{N - 1}"))
    with RunDir.open(run) as open_run:
        assert "1 annotation is about later attempts" in labelling(open_run, None, path).notes[1]
        assert write_questions(labelling(open_run, 0.5, None), tmp_path / "new.jsonl") > 0


def test_likely_by_hand():
    cut_off = Score("veq", None, "cut off")
    for scores, expected in (
        ([Score("brf", 3.0), Score("veq", 5.0)], 0.5),
        ([Score("brf", 4.0), Score("veq", 5.0), Score("x", 0.0)], 0.8413),
        ([Score("brf", 4.0), Score("veq", None, applies=False)], 0.8413),
        ([Score("brf", 4.0), cut_off], None),
        ([Score("brf", 4.0)], None),
        ([Score("brf", 2.0), cut_off], 0.1587),
        ([], None),
    ):
        assert likely(scores, {"brf": 3.0, "veq": 3.0}) == (expected and pytest.approx(expected, abs=1e-4))


@pytest.mark.parametrize("priced", [True, False])
def test_the_judges_column_is_the_settlement(run, tmp_path, priced):
    """Its decisions, and not a probability that is assumed for planning; without prices there are no dollars."""
    people = labels_of(run, tmp_path / "few.jsonl", 30)
    with RunDir.open(shutil.copytree(run, tmp_path / "run")) as open_run:
        if not priced:
            open_run.store.write("UPDATE tasks SET price_micro_usd = 0")
        decide(open_run)
        (settled,) = accounting(open_run.store, open_run.config.settlement).settlements
        text, values = LabelOptions(people, None, None).output(open_run)
    found = values["labels"][MODEL]
    assert found["decided_usd"] == usd_number(settled.total.revenue_micro_usd)
    assert found["n_accepted"] == settled.total.n_accepted > 0
    assert (usd(settled.total.revenue_micro_usd) in text) == priced
    assert ("$" in text) == priced
    assert "judge alone" not in text
