"""`score servimage`: hand-worked sheets, random sheets against another computation, what is refused."""

import json
import random

import pytest

from local_bench.suites.published import api_prices
from tests.cli.score import slow
from tests.suites.benchmarks import layouts

EXACT = 1e-9


def write(folder, orders, decisions, scores=None, costs=None, per_image=False):
    """The files, and the arguments that name them."""
    tasks = [
        {"task_id": t, "category": c, "price_usd": json.loads(p), "deliverables": q} for t, (c, p, q) in orders.items()
    ]
    lines = []
    for (model, task, i), decision in decisions.items():
        row = {"model": model, "task_id": task, "category": orders[task][0]}
        if per_image:
            label = None if decision is None else int(decision)
            lines.append(row | {"subtask_idx": i - 1, "subtask_name": f"subtask_{i}", "label": label, "notes": ""})
        else:
            found = next((x for x in lines if x["model"] == model and x["task_id"] == task), None)
            if found is None:
                found = row | {"annotations": {}}
                lines.append(found)
            found["annotations"][f"subtask_{i}"] = decision
    arguments = [folder / "annotations.jsonl", "--tasks", folder / "tasks.jsonl"]
    jsonl(folder / "annotations.jsonl", lines)
    jsonl(folder / "tasks.jsonl", tasks)
    if scores is not None:
        rows = [
            {"model": m, "task_id": t, "deliverable": i}
            | {name: None if x is None else json.loads(x) for name, x in zip(("brf", "veq", "cns"), s, strict=True)}
            for (m, t, i), s in scores.items()
        ]
        jsonl(folder / "scores.jsonl", rows)
        arguments += ["--scores", folder / "scores.jsonl"]
    if costs is not None:
        (folder / "costs.json").write_text("{" + ", ".join(f'"{m}": {c}' for m, c in costs.items()) + "}")
        arguments += ["--costs", folder / "costs.json"]
    return arguments


def jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


ORDERS = {"t1": ("Digital", "100", 3), "t2": ("Digital", "50.50", 1), "t3": ("Portrait", "10", 2)}


def decided(model, **answers):
    return {(model, task, i): decision for task, row in answers.items() for i, decision in enumerate(row, 1)}


def test_tables_worked_by_hand(score, tmp_path):
    decisions = decided("a", t1=[True, False, True], t2=[True], t3=[False, False])
    decisions |= decided("b", t1=[True, True, True], t2=[True], t3=[True, False])
    scores = {key: ("5", "4", None) if key[0] == "a" else ("4", "4", "0.5") for key in decisions}
    costs = {"a": "0.1", "b": "0.123456789"}
    status, result, stderr = score("servimage", *write(tmp_path, ORDERS, decisions, scores, costs))
    assert (status, stderr) == (0, "")
    assert result["suite"] == "servimage"
    a, b = result["models"]["a"], result["models"]["b"]
    assert a["revenue_usd"] == pytest.approx(200 / 3 + 50.5, abs=EXACT)
    assert a["share"] == pytest.approx((200 / 3 + 50.5) / 160.5, abs=EXACT)
    assert (a["task_acceptance"], a["deliverable_acceptance"]) == (pytest.approx(1 / 3), 0.5)
    assert a["cost_usd"] == pytest.approx(0.6, abs=EXACT)
    assert a["model_contribution"] == pytest.approx(50.5 / 160.5, abs=EXACT)
    assert a["cost_savings"] == pytest.approx(1 - 0.6 / 160.5 - 110 / 160.5, abs=EXACT)
    assert a["contribution_ratio"] == pytest.approx(50.5 / (0.6 + 110), abs=EXACT)
    assert a["by_category"]["Portrait"]["revenue_usd"] == 0
    assert a["by_category"]["Digital"]["share"] == pytest.approx((200 / 3 + 50.5) / 150.5, abs=EXACT)
    assert b["revenue_usd"] == 155.5
    assert b["cost_usd"] == pytest.approx(6 * 0.123456789, abs=EXACT)
    # t1 and t3 go to b, which has more accepted; on t2 a has 9 points and b 8.5
    assert result["competition"]["a"] | {"n_won": 1} == result["competition"]["a"]
    assert (result["competition"]["a"]["revenue_usd"], result["competition"]["a"]["rank"]) == (50.5, 2)
    assert (result["competition"]["b"]["revenue_usd"], result["competition"]["b"]["rank"]) == (110, 1)
    text = score("servimage", *write(tmp_path, ORDERS, decisions, scores, costs), as_json=False)[1]
    cells = [row.replace(" %", "%").split() for row in text.splitlines()]
    assert ["a", "$117.17", "$117.17", "73.0%", "33.3%", "50.0%", "0", "0"] in cells
    decisions = decided("no", t1=[False] * 3, t2=[False], t3=[False] * 2)
    decisions |= decided("all", t1=[True] * 3, t2=[True], t3=[True] * 2)
    status, result, _ = score("servimage", *write(tmp_path, ORDERS, decisions, costs={"no": "0", "all": "0"}))
    assert status == 0
    no, every = result["models"]["no"], result["models"]["all"]
    assert (no["revenue_usd"], no["share"], no["task_acceptance"], no["contribution_ratio"]) == (0, 0, 0, 0)
    assert no["cost_savings"] == 0
    assert (every["revenue_usd"], every["share"], every["task_acceptance"], every["cost_savings"]) == (160.5, 1, 1, 1)
    assert every["contribution_ratio"] is None, "nothing was spent: there is nothing to divide by"
    assert result["competition"]["no"]["rank"] == 2


def test_the_winner_is_paid_in_full_unless_success_is_required(score, tmp_path):
    decisions = decided("a", t1=[True, False, False], t2=[False], t3=[True, True])
    decisions |= decided("b", t1=[False] * 3, t2=[False], t3=[True, False])
    scores = {key: ("1", "1", "1") if key[0] == "a" else ("2", "2", "2") for key in decisions}
    arguments = write(tmp_path, ORDERS, decisions, scores)
    _, result, _ = score("servimage", *arguments)
    assert result["competition"]["a"]["revenue_usd"] == 110
    assert result["competition"]["b"]["revenue_usd"] == 50.5
    _, result, _ = score("servimage", *arguments, "--require-success")
    assert result["competition"]["a"]["revenue_usd"] == 10
    assert result["competition"]["b"]["revenue_usd"] == 0


def test_a_remaining_tie_shares_revenue_and_rank_and_an_absent_score_leaves_it_open(score, tmp_path):
    decisions = decided("a", t1=[True] * 3) | decided("b", t1=[True] * 3) | decided("c", t1=[True] * 3)
    # 0.1 + 0.2 is 0.3 here: scores are summed exactly
    scores = {("a", "t1", i): ("0.1", "0.2", None) for i in (1, 2, 3)}
    scores |= {("b", "t1", i): ("0.3", "0", None) for i in (1, 2, 3)}
    scores |= {("c", "t1", i): ("0.1", "0.1", None) for i in (1, 2, 3)}
    _, result, _ = score("servimage", *write(tmp_path, ORDERS, decisions, scores))
    assert [result["competition"][m]["revenue_usd"] for m in "abc"] == [50, 50, 0]
    assert [result["competition"][m]["rank"] for m in "abc"] == [1, 1, 3]
    _, result, stderr = score("servimage", *write(tmp_path, ORDERS, decisions))
    assert [result["competition"][m]["revenue_usd"] for m in "abc"] == pytest.approx([100 / 3] * 3, abs=EXACT)
    assert "ties of the competition are shared equally" in stderr
    decisions = decided("a", t2=[True]) | decided("b", t2=[True]) | decided("c", t2=[True])
    scores = {("a", "t2", 1): ("5", "5", None), ("b", "t2", 1): ("1", "1", None)}
    _, result, _ = score("servimage", *write(tmp_path, {"t2": ORDERS["t2"]}, decisions, scores))
    won = result["competition"]
    assert [won[m]["revenue_usd"] for m in "abc"] == [25.25, 0, 25.25]
    assert result["n_competition_open"] == 1
    assert [(won[m]["revenue_low_usd"], won[m]["revenue_high_usd"]) for m in "ac"] == [(0, 50.5), (0, 50.5)]


def test_scores_whose_decimals_do_not_end_are_a_tie_if_their_sums_are_equal(score, tmp_path):
    thirds = ("1.6666666666666667", "2.3333333333333335", None)  # 5/3 and 7/3, as a run exports them
    decisions = decided("a", t1=[True] * 3) | decided("b", t1=[True] * 3)
    scores = {("a", "t1", i): thirds for i in (1, 2, 3)} | {("b", "t1", i): ("2", "2", None) for i in (1, 2, 3)}
    _, result, _ = score("servimage", *write(tmp_path, {"t1": ORDERS["t1"]}, decisions, scores))
    assert [result["competition"][m]["revenue_usd"] for m in "ab"] == [50, 50]
    scores[("b", "t1", 3)] = ("2", "2.000001", None)
    _, result, _ = score("servimage", *write(tmp_path, {"t1": ORDERS["t1"]}, decisions, scores))
    assert [result["competition"][m]["revenue_usd"] for m in "ab"] == [0, 100]


def test_open_images_are_counted_and_bounded_from_both_sides(score, tmp_path):
    decisions = decided("a", t1=[True, None, False], t2=[None]) | decided("b", t1=[True, False, False], t2=[True])
    status, result, stderr = score("servimage", *write(tmp_path, ORDERS, decisions))
    assert status == 0
    a = result["models"]["a"]
    assert (a["n_unscored"], a["n_missing"], a["n_accepted"], a["n_deliverables"]) == (2, 2, 1, 6)
    assert a["revenue_usd"] == pytest.approx(100 / 3, abs=EXACT)
    assert a["revenue_high_usd"] == pytest.approx(200 / 3 + 50.5 + 10, abs=EXACT)
    acceptance = (a["deliverable_acceptance"], a["deliverable_acceptance_high"])
    assert acceptance == pytest.approx((1 / 6, 5 / 6))
    assert result["n_competition_open"] == 3
    won = result["competition"]
    assert won["a"]["revenue_low_usd"] == 100 / 2  # t1 at least shared
    assert won["a"]["revenue_high_usd"] == 100 + 50.5 / 2 + 10  # t2 at most shared
    assert won["b"]["revenue_low_usd"] == 50.5 / 2
    assert won["b"]["revenue_usd"] == 100 / 2 + 50.5
    assert "2 images have no decision" in stderr
    assert "4 images have no row" in stderr


def test_both_published_forms_several_files_and_orders_of_the_studio_give_one_table(score, tmp_path):
    decisions = decided("a", t1=[True, None, False]) | decided("b", t1=[True, True, True])
    _, one, _ = score("servimage", *write(tmp_path, ORDERS, decisions))
    arguments = write(tmp_path, ORDERS, decisions, per_image=True)
    _, other, _ = score("servimage", *arguments)
    assert one == other
    lines = arguments[0].read_text().splitlines(keepends=True)
    (tmp_path / "a.jsonl").write_text("".join(lines[:3]))
    (tmp_path / "b.jsonl").write_text("".join(lines[3:]))
    _, two, _ = score("servimage", tmp_path / "a.jsonl", tmp_path / "b.jsonl", *arguments[1:])
    assert two == one
    (tmp_path / "annotations.jsonl").write_text(
        '{"model": "a", "task_id": "poster", "category": "x", "annotations": {"subtask_1": true}}\n'
    )
    order = {"task_id": "poster", "category": "x", "price_usd": 3, "title": "t", "deliverables": ["one", "two"]}
    (tmp_path / "tasks.jsonl").write_text(json.dumps(order) + "\n")
    _, result, _ = score("servimage", tmp_path / "annotations.jsonl", "--tasks", tmp_path / "tasks.jsonl")
    assert result["models"]["a"]["revenue_usd"] == 1.5


@pytest.mark.parametrize("seed", range(12))
def test_random_tables(score, tmp_path, seed):
    rng = random.Random(seed)
    fine = seed % 3 == 2  # prices finer than a micro-dollar, as binary floats print them
    orders = {
        f"t{i}": (
            rng.choice(["C-Portrait", "C-Product", "C-Digital"]),
            repr(rng.uniform(1, 900)) if fine else f"{rng.randint(0, 90000) / 100:.2f}",
            rng.choice([1, 1, 2, 3, 7, 12]),
        )
        for i in range(rng.randint(1, 40))
    }
    decisions = {}
    for m in range(rng.randint(1, 6)):
        rate = [0.0, 1.0, 0.3, 0.6][m % 4]
        for task, (_, _, q) in orders.items():
            if seed % 2 and rng.random() < 0.15:
                continue
            for i in range(1, q + 1):
                if not (seed % 2 and rng.random() < 0.05):
                    decisions[f"m{m}", task, i] = None if seed % 2 and rng.random() < 0.05 else rng.random() < rate
    scores = {
        key: tuple(
            rng.choice(["1", "2.5", "3", "4.25", None]) if n == 2 else f"{rng.randint(0, 10) / 2}" for n in range(3)
        )
        for key in decisions
        if not (seed % 4 == 1 and rng.random() < 0.1)
    }
    costs = {f"m{m}": repr(rng.uniform(0, 0.2)) for m in range(5)}
    for required in (False, True):
        flags = ["--require-success"] if required else []
        status, result, _ = score("servimage", *write(tmp_path, orders, decisions, scores, costs), *flags)
        assert status == 0
        models, won = slow.servimage(orders, decisions, scores, costs, required)
        assert list(result["models"]) == list(models)
        slow.assert_same(result["models"], models)
        slow.assert_same(result["competition"], won)
        for model, ends in result["competition"].items():
            assert set(result["models"][model]["by_category"]) == {category for category, _, _ in orders.values()}
            assert ends["revenue_low_usd"] <= ends["revenue_usd"] <= ends["revenue_high_usd"]


ORDER = '{"task_id": "t", "category": "c", "price_usd": 5, "deliverables": 1}'
LINE = '{"model": "a", "task_id": "t", "annotations": {"subtask_1": true}}'


@pytest.mark.parametrize(
    ("tasks", "annotations", "message"),
    [
        ("{}", LINE, "tasks.jsonl, line 1: task_id must be a non-empty string"),
        (ORDER.replace("5", '"5"'), LINE, "line 1: price_usd must be a number"),
        (ORDER.replace("5", "-5"), LINE, "price_usd must be between 0"),
        (ORDER.replace("1", "0"), LINE, "deliverables must be the number"),
        (ORDER, "[1]", "annotations.jsonl, line 1: an annotation is a JSON object"),
        (ORDER, '{"model": "a", "task_id": "t"}', "line 1: annotations must be an object with subtask_1"),
        (ORDER, LINE.replace("true", "1"), "subtask_1 must be true, false or null"),
        (ORDER, LINE.replace("subtask_1", "1"), "'1' is not an image of a task"),
        (ORDER, LINE.replace('"t"', '"u"'), "the tasks file has no task 'u'"),
        (
            ORDER,
            f'{LINE}\n{{"model": "a", "task_id": "u", "annotations": {{}}}}',
            "line 2: the tasks file has no task 'u'",
        ),
        (ORDER, LINE.replace("_1", "_2"), "image 2 of 't', which requests 1"),
        (ORDER, '{"model": "a", "task_id": "t", "subtask_name": "subtask_1", "label": 2}', "0, 1 or null, not 2"),
        (ORDER, f"{LINE}\n{LINE}", "annotations.jsonl, line 2: duplicate image 1 of 't' by 'a', first in"),
        (ORDER, "", "contains no annotations"),
        (ORDER, '{"model": "a", "task_id": "t", "annotations": {}}', "contains no annotations of images"),
    ],
)
def test_unreadable_files_are_refused(score, tmp_path, tasks, annotations, message):
    (tmp_path / "tasks.jsonl").write_text(tasks + "\n")
    (tmp_path / "annotations.jsonl").write_text(annotations + "\n")
    status, _, stderr = score("servimage", tmp_path / "annotations.jsonl", "--tasks", tmp_path / "tasks.jsonl")
    assert (status, message in stderr, stderr.count("\n")) == (2, True, 1), stderr


def test_revenue_by_threshold_and_rank_changes(score, tmp_path):
    decisions = decided("a", t2=[True]) | decided("b", t2=[False])
    scores = {("a", "t2", 1): ("3", "4", None), ("b", "t2", 1): ("4.5", "5", "4")}
    arguments = [*write(tmp_path, ORDERS, decisions, scores), "--sensitivity"]
    status, result, _ = score("servimage", *arguments)
    assert status == 0
    earned = {p["acceptance_threshold"]: p["revenue_usd"] for p in result["sensitivity"]["points"]}
    assert list(earned) == [1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5]
    assert (earned[3], earned[3.5], earned[4.5]) == ({"a": 50.5, "b": 50.5}, {"a": 0, "b": 50.5}, {"a": 0, "b": 0})
    (flip,) = result["sensitivity"]["flips"]
    assert (flip["ahead"], flip["behind"]) == ("a", "b")
    assert [s["acceptance_threshold"] for s in flip["settings"]] == [3.5, 4]
    _, text, _ = score("servimage", *arguments, as_json=False)
    assert "acceptance_threshold 3.5" in text


def test_the_authors_folder_and_labels_have_the_papers_prices(score, tmp_path):
    path = layouts.servimage(tmp_path / "ServImage_Bench")
    lines = [
        {"model": model, "task_id": task, "annotations": dict.fromkeys(subtasks, True)}
        for model in ("kling-v2-images", "mj-relax-edits_1", "gpt-image-1", "unheard-of")
        for task, subtasks in (("digital-001", ("subtask_1", "subtask_2")), ("portrait-010", ("subtask_1",)))
    ]
    jsonl(tmp_path / "annotations.jsonl", lines)
    for tasks in (path, path / "C-Digital" / "Digital.json"):
        if tasks.is_file():
            jsonl(tmp_path / "annotations.jsonl", [line for line in lines if line["task_id"] == "digital-001"])
        status, result, stderr = score("servimage", tmp_path / "annotations.jsonl", "--tasks", tasks, "--api-prices")
        assert status == 0, stderr
        revenue = 100.01 + 5.42 if tasks.is_dir() else 100.01
        assert result["models"]["gpt-image-1"]["revenue_usd"] == pytest.approx(revenue, abs=EXACT)
        assert result["models"]["gpt-image-1"]["cost_usd"] == pytest.approx(
            0.137406021 * (3 if tasks.is_dir() else 2), abs=1e-12
        )
        assert result["models"]["unheard-of"]["cost_usd"] is None
        assert "kling-v2-images has the price of klings-v2-images (ServImage, table 6" in stderr
        assert "mj-relax-edits_1 has the price of mj-relax-edits" in stderr
        assert "no cost for unheard-of" in stderr
        assert "there is a cost and no annotation" not in stderr
    status, _, stderr = score("servimage", tmp_path / "annotations.jsonl", "--tasks", tmp_path)
    assert status == 2
    assert "contains no C-…/….json: give ServImage_Bench, or a task file" in stderr


PUBLISHED = """
flux-1.1-pro flux-kontext-pro gemini-2.5-flash-image gemini-banana-pro gpt-image-1-mini gpt-image-1 imagen4
ideogram-v3-text-to-image kling-v2-images mj-relax-edits_1 mj-relax-edits_4 mj-relax-imagine_1 mj-relax-imagine_4
qwen-text-to-image seededit-3.0-i2i seedream-3.0-t2i seedream-4.0 stable-diffusion-3.5-large
"""


def test_every_published_label_has_a_price():
    prices, renamed = api_prices("servimage").of(PUBLISHED.split())
    assert (list(prices), len(renamed)) == (PUBLISHED.split(), 6)
