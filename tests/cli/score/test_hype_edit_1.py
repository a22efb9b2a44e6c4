"""`score hype-edit-1`: hand-worked judgements, random ones against another computation, what is refused."""

import json
import random
import re

import pytest

from local_bench.cli.main import main
from local_bench.core.table import DASH
from tests.cli.score import slow

EXACT = 1e-9
HEAD = {"schema_version": 2, "dataset": "public", "tasks_dir": "tasks"}
RATING = '{"model": "a", "task_id": "t1", "attempt": 1, "score": 1}'


def write(folder, verdicts, costs=None, models=None):
    """The files, and the arguments that name them; verdicts: (model, task, attempt) -> PASS, FAIL or None."""
    folder.mkdir(parents=True, exist_ok=True)
    names = models or list(dict.fromkeys(m for m, _, _ in verdicts))
    alias = {name: f"M{i:02d}" for i, name in enumerate(names, 1)}
    judgements = {}
    for (model, task, attempt), verdict in verdicts.items():
        files = judgements.setdefault(task, {}).setdefault(alias[model], {})
        files[f"{attempt:03d}.webp"] = {"judged_at": "2026-01-22T00:00:00+00:00", "ms": 9, "verdict": verdict}
    data = HEAD | {"models": {a: name for name, a in alias.items()}, "judgements": judgements}
    (folder / "judgements.json").write_text(json.dumps(data, indent=2))
    if costs is None:
        return [folder / "judgements.json"]
    (folder / "costs.json").write_text("{" + ", ".join(f'"{m}": {c}' for m, c in costs.items()) + "}")
    return [folder / "judgements.json", "--costs", folder / "costs.json"]


def tried(model, **tasks):
    """tasks: id -> a letter an attempt: P, F, ? (no verdict), or a blank (missing)."""
    verdict_of = {"P": "PASS", "F": "FAIL", "?": None}
    return {
        (model, task, a): verdict_of[letter]
        for task, row in tasks.items()
        for a, letter in enumerate(row, 1)
        if letter != " "
    }


def test_judgements_worked_by_hand(score, tmp_path):
    verdicts = tried("a", t1="PFFFFFFFFP", t2="F" * 10) | tried("b", t1="P" * 10, t2="P" * 10)
    verdicts |= tried("never", t1="F" * 10, t2="F" * 10) | tried("late", t1="FPPPPPPPPP", t2="PFFFFFFFFF")
    costs = {"a": "0.03", "b": "0.15", "never": "0.03", "late": "1"}
    status, result, stderr = score("hype-edit-1", *write(tmp_path, verdicts, costs))
    assert (status, stderr) == (0, "")
    a, b, never, late = result["models"].values()
    assert (a["pass_rate"], a["pass_at_10"]) == (0.1, 0.5)
    assert a["pass_at_4"] == pytest.approx((1 - 0.8**4) / 2, abs=EXACT)
    assert a["pass_at_4_unbiased"] == pytest.approx((1 - 70 / 210) / 2, abs=EXACT)
    assert a["expected_attempts"] == pytest.approx(((1 - 0.8**4) / 0.2 + 4) / 2, abs=EXACT)
    cost = a["expected_attempts"] * (0.03 + 1000 / 3600) / a["pass_at_4"]
    assert a["effective_cost_usd"] == pytest.approx(cost, abs=EXACT)
    assert a["hype_gap"] == 0, "the only task that passes passes at once"
    assert (b["pass_rate"], b["pass_at_4"], b["expected_attempts"], b["hype_gap"]) == (1, 1, 1, 0)
    assert b["effective_cost_usd"] == pytest.approx(0.15 + 1000 / 3600, abs=EXACT)
    assert (never["effective_cost_usd"], never["expected_attempts"], never["pass_at_4"]) == (None, 4, 0)
    assert (late["pass_rate"], late["hype_gap"]) == (0.5, 0.5), "the gap is to first attempts"


def test_the_unbiased_figures_have_intervals(score, tmp_path):
    rows = {f"t{i}": "P" * i + "F" * (10 - i) for i in range(11)}
    failed, costs = tried("b", **dict.fromkeys(rows, "F" * 10)), {"a": "0.03", "b": "1"}
    arguments = write(tmp_path, tried("a", **rows) | failed, costs)
    _, result, _ = score("hype-edit-1", *arguments)
    a, b = result["models"]["a"], result["models"]["b"]
    biased = ("pass_at_4", "expected_attempts", "effective_cost_usd")
    for name, ends in a["intervals"].items():
        key = f"{name}_unbiased" if name in biased else name
        assert ends == [a[f"{key}_ci95_low"], a[f"{key}_ci95_high"]]
        assert ends[0] <= a[key] <= ends[1], name
    assert a["expected_attempts_unbiased"] == pytest.approx(
        a["effective_cost_usd_unbiased"] * a["pass_at_4_unbiased"] / (0.03 + 1000 / 3600)
    )
    assert (b["effective_cost_usd_unbiased"], b["effective_cost_usd_unbiased_ci95_high"]) == (None, None)
    assert b["effective_cost_usd_unbiased_ci95_low"] > 1
    text = score("hype-edit-1", *arguments, as_json=False)[1]
    (row,) = re.findall(r"^a +50\.0% +.*% to .*$", text.replace(" %", "%"), re.MULTILINE)
    assert re.search(rf" 50\.0% +{a['pass_rate_ci95_low']:.1%} to {a['pass_rate_ci95_high']:.1%} ", row)
    assert re.search(rf" {DASH} +from \${b['effective_cost_usd_unbiased_ci95_low']:.2f} ", text)
    backwards = write(tmp_path, tried("a", **dict(reversed(rows.items()))) | failed, costs)
    assert score("hype-edit-1", *backwards)[1]["models"] == result["models"]


def test_open_attempts_are_counted_and_bounded(score, tmp_path):
    verdicts = tried("a", t1="?FFFFFFFFF", t2="PPPPPPPPP ")
    _, result, stderr = score("hype-edit-1", *write(tmp_path, verdicts, {"a": "1"}))
    a = result["models"]["a"]
    assert (a["n"], a["n_unscored"], a["n_missing"]) == (18, 1, 1)
    assert (a["pass_rate"], a["pass_rate_high"]) == (9 / 20, 11 / 20)
    assert (a["pass_at_10"], a["pass_at_10_high"]) == (0.5, 1)
    assert (a["hype_gap_low"], a["hype_gap"], a["hype_gap_high"]) == (0, 0, 0), "t1 passes at once, or never"
    assert a["effective_cost_low_usd"] < a["effective_cost_usd"]
    assert "2 attempts have no verdict" in stderr


@pytest.mark.parametrize("raters", [1, 2])
def test_an_attempt_without_an_image_is_missing_and_has_no_cost(score, tmp_path, raters):
    """Of t1 the first attempt was not made, of t2 the third: no review of them, in any workflow."""
    file, *costs = write(tmp_path, tried("a", t1="?PFF", t2="FF?F"), {"a": "1"})
    file.write_text(file.read_text().replace('"verdict": null', '"verdict": null, "made": false'))
    files = [file, tmp_path / "second.json"][:raters]
    files[-1].write_bytes(file.read_bytes())
    scored = score("hype-edit-1", *files, *costs, *["--raters"] * (raters > 1))[1]
    a = scored["models"]["a"]
    assert scored.get("n_open", 0) == 0
    assert (a["n"], a["n_unscored"], a["n_missing"]) == (6, 0, 2)
    assert (a["pass_rate"], a["pass_rate_high"]) == (1 / 8, 3 / 8)
    counts = ("n_passed", "n_passed_high", "n_images", "n_reviews")
    by_way = {w["way"]: [*map(w.get, counts)] for w in a["workflows"]}
    assert by_way == {"single shot": [0, 1, 1, 1], "up to 4 tries": [1, 2, 4, 4]}
    assert a["workflows"][1]["usd_per_success"] == pytest.approx(4 * (1 + 1000 / 3600))


def test_a_model_s_rates_are_over_its_own_attempts(score, tmp_path, capsys):
    """b was asked for two attempts, and c lacks the first of two: only that one is missing."""
    verdicts = tried("a", t1="PFFF", t2="FFFF") | tried("b", t1="FP", t2="PP") | tried("c", t1=" P", t2="FF")
    files = write(tmp_path, verdicts, {"a": "1", "b": "1", "c": "1"})
    _, result, stderr = score("hype-edit-1", *files)
    a, b, c = result["models"].values()
    assert [(m["pass_rate"], m["pass_at_any"], m["n"], m["n_missing"]) for m in (a, b, c)] == [
        (1 / 8, 1 / 2, 8, 0),
        (3 / 4, 1, 4, 0),
        (1 / 4, 1 / 2, 3, 1),
    ]
    assert (b["hype_gap"], b["pass_at_4"]) == (1 / 2, (1 - 0.5**4 + 1) / 2)
    assert b["workflows"][1]["way"] == "up to 2 tries"
    assert "tasks x attempts: a 2 x 4, b 2 x 2, c 2 x 2)" in stderr
    assert "pass@any" in score("hype-edit-1", *files, as_json=False)[1]
    assert main(["reproduce", "hype-edit-1", "table-4", str(files[0]), "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert [row["pass_rate"] for row in table["rows"]] == pytest.approx([12.5, 75, 25])
    assert any("tasks x attempts: a 2 x 4, b 2 x 2, c 2 x 2)" in note for note in table["notes"])


def test_a_task_s_rate_is_over_the_attempts_of_its_file(score, tmp_path, capsys):
    """Ten in the public split and four in the private one, of which b has no verdict."""
    public = write(tmp_path / "x", tried("a", t1="FPPPPFFFFP", t2="F" * 10) | tried("b", t1="P" * 10, t2="F" * 10))
    files = [*public, *write(tmp_path / "y", tried("a", t3="PPF?"), models=["a", "b"])]
    (tmp_path / "ratings.jsonl").write_text(RATING.replace("1,", "10,"))
    _, result, stderr = score("hype-edit-1", *files, "--scores", tmp_path / "ratings.jsonl")
    a, b = result["models"].values()
    assert a["pass_rate"] == pytest.approx((1 / 2 + 0 + 1 / 2) / 3)
    assert a["pass_at_4"] == pytest.approx((1 - 0.5**4) * 2 / 3)
    assert a["pass_at_4_unbiased"] == pytest.approx((1 - 5 / 210 + 1) / 3)
    assert a["expected_attempts_unbiased"] == pytest.approx(
        (1 + 5 / 10 + 10 / 45 + 10 / 120 + 4 + 1 + 1 / 2 + 1 / 6) / 3
    )
    assert (a["pass_at_any"], a["pass_at_10"], a["hype_gap"]) == pytest.approx((2 / 3, None, 1 / 3))
    assert (a["n"], a["n_unscored"], a["n_missing"], b["n"], b["n_missing"]) == (23, 1, 0, 20, 10)
    assert [w["way"] for w in a["workflows"]] == ["single shot", "up to 4 tries", "best of 4"]
    assert "tasks x attempts: a 1 x 4 + 2 x 10, b 3 x 10)" in stderr
    assert main(["reproduce", "hype-edit-1", "table-4", *map(str, files), "--intervals", "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert table["rows"][0]["pass_rate"] == pytest.approx(100 * a["pass_rate"])
    assert table["rows"][0]["pass_at_4_low"] == pytest.approx(100 * a["pass_at_4_unbiased_ci95_low"])
    assert "attempts with a verdict: a 23 of 24, b 20 of 30" in table["notes"]


@pytest.mark.parametrize("attempts", [2, 4, 10])
def test_no_two_figures_have_one_heading(score, tmp_path, attempts):
    files = write(tmp_path, tried("a", t1="P" * attempts, t2="F" * attempts), {"a": "1"})
    figures, ends = (part.splitlines()[0] for part in score("hype-edit-1", *files, as_json=False)[1].split("\n\n")[:2])
    for line in (figures, ends):
        names = [name for name in re.split(r"  +", line) if name != "95 %"]
        assert len(names) == len(set(names)), names


def test_models_without_a_judgement_or_a_cost_are_reported(score, tmp_path):
    arguments = write(tmp_path, tried("a", t1="P" * 10), {"z": "1"}, models=["a", "b"])
    _, result, stderr = score("hype-edit-1", *arguments)
    assert (list(result["models"]), result["absent_models"]) == (["a"], ["b"])
    assert result["models"]["a"]["effective_cost_usd"] is None
    assert "no judgements of b" in stderr
    assert "no cost for a" in stderr


@pytest.mark.parametrize("command", [["score", "hype-edit-1"], ["reproduce", "hype-edit-1", "table-4"]])
def test_files_without_any_attempt_are_refused(tmp_path, capsys, command):
    assert main([*command, *map(str, write(tmp_path, {}, models=["a", "b"]))]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "judgements.json contains no attempt of any model" in captured.err


def test_review_and_patience_can_be_set(score, tmp_path):
    options = ["--review-usd-per-hour", "36", "--review-seconds", "12.5", "--retry-cap", "2"]
    arguments = write(tmp_path, tried("a", t1="PFPFPFPFPF"), {"a": "0.5"})
    a = score("hype-edit-1", *arguments, *options)[1]["models"]["a"]
    assert a["expected_attempts"] == 1.5
    assert a["effective_cost_usd"] == pytest.approx(1.5 * (0.5 + 0.125) / 0.75, abs=EXACT)
    assert a["pass_at_4"] == 1 - 0.5**4, "pass@4 is of four tries whatever the cap"


@pytest.mark.parametrize("seed", range(10))
def test_random_judgements(score, tmp_path, seed):
    rng = random.Random(seed)
    k = rng.choice([10, 10, 10, 4, 12])
    tasks = [f"t{i}" for i in range(rng.randint(1, 30))]
    verdicts = {}
    for m, rate in enumerate([0, 1, 0.3, 0.7]):
        for task in tasks:
            if seed % 2 and m and rng.random() < 0.1:
                continue
            for attempt in range(1, k + 1):
                if m and seed % 2 and rng.random() < 0.05:
                    continue
                passed = "PASS" if rng.random() < rate * rng.random() ** 0.2 else "FAIL"
                verdicts[f"m{m}", task, attempt] = None if seed % 2 and rng.random() < 0.05 else passed
    costs = {f"m{m}": repr(rng.uniform(0, 0.2)) for m in range(3)}
    status, result, _ = score("hype-edit-1", *write(tmp_path, verdicts, costs))
    assert status == 0
    expected = slow.hype_edit_1(verdicts, tasks, k, costs)
    assert list(result["models"]) == list(expected)
    for model, figures in expected.items():
        scored = result["models"][model]
        slow.assert_same(scored, figures)
        assert scored["hype_gap_low"] - EXACT <= scored["hype_gap"] <= scored["hype_gap_high"] + EXACT


def judgements(models=None, **attempts):
    """The text of a file of judgements of the task t."""
    files = {name.replace("_", "."): verdict for name, verdict in attempts.items()}
    return json.dumps(HEAD | {"models": models or {"M01": "a"}, "judgements": {"t": {"M01": files}}}, indent=2)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("judgements.json", judgements().replace("2", "1", 1), "schema_version is 1"),
        ("judgements.json", judgements({"M01": "a", "M02": "a"}), "line 6: the alias 'M01' must map to the name of"),
        ("judgements.json", judgements({"M02": "b"}), "the alias 'M01' is not defined"),
        ("judgements.json", json.dumps(HEAD | {"models": {}, "judgements": []}), "must be a JSON object, not a list"),
        ("judgements.json", judgements(**{"001_webp": {"verdict": "MAYBE"}}), "not 'MAYBE'"),
        ("judgements.json", judgements(**{"001_webp": {"verdict": ["PASS"]}}), 'not ["PASS"]'),
        ("judgements.json", judgements(one_webp={"verdict": "PASS"}), "'one.webp' is not the name of an attempt"),
        ("judgements.json", judgements(**{"001_webp": {}, "1_webp": {}}), "duplicate attempt 1 of 'a'"),
        ("judgements.json", '{"judgements": {"t": {}, "t": {}}, "models": {}}', "the key 't' is duplicated"),
        *(
            (
                "costs.json",
                f'{{\n "b": 1,\n "a": {cost}\n}}',
                "costs.json, line 3: the cost of 'a' in US dollars",
            )
            for cost in ("-1", '"1"', "true", "null", "1e10", "1e-40")
        ),
        ("ratings.jsonl", "{}", "line 1: model and task_id must be strings"),
        ("ratings.jsonl", RATING.replace("1,", "0,"), "line 1: attempt must be an integer from 1 to 1000, not 0"),
        ("ratings.jsonl", RATING.replace("1}", '"1"}'), "line 1: score must be a finite number or null"),
        ("ratings.jsonl", f"{RATING}\n{RATING}", "line 2: duplicate attempt 1 of 't1' by 'a'"),
        ("ratings.jsonl", RATING.replace("1}", "9" * 400 + "}"), "this is not one JSON object (an integer has 400"),
    ],
)
def test_unreadable_files_are_refused(score, tmp_path, file, text, message):
    arguments = [*write(tmp_path, tried("a", t1="P"), {"b": "1", "a": "1"}), "--scores", tmp_path / "ratings.jsonl"]
    (tmp_path / "ratings.jsonl").write_text(RATING + "\n")
    (tmp_path / file).write_text(text + "\n")
    status, _, stderr = score("hype-edit-1", *arguments)
    assert (status, message in stderr, stderr.count("\n")) == (2, True, 1), stderr


def test_workflows(score, tmp_path):
    """From ratings with a byte order mark, some of them of no attempt."""
    arguments = write(tmp_path, tried("a", t1="FPFFFFFFFF", t2="PFFFFFFFFF"), {"a": "1"})
    rows = [{"model": "a", "task_id": "t1", "attempt": k, "score": int(k == 2)} for k in range(1, 11)]
    rows += [{"model": "a", "task_id": "t2", "attempt": k, "score": None if k == 1 else 0.5} for k in range(1, 11)]
    rows += [{"model": "a", "task_id": "t1", "attempt": 11, "score": 9}, {"model": "b", "task_id": "t1", "attempt": 1}]
    ratings = tmp_path / "ratings.jsonl"
    ratings.write_text("\N{BOM}" + "".join(json.dumps(row) + "\n" for row in rows))
    _, result, stderr = score("hype-edit-1", *arguments, "--scores", ratings, "--review-seconds", "0")
    workflows = {w["way"]: w for w in result["models"]["a"]["workflows"]}
    assert {name: (w["n_passed"], w["n_images"], w["n_reviews"]) for name, w in workflows.items()} == {
        "single shot": (1, 2, 2),
        "up to 4 tries": (2, 3, 3),
        "best of 4": (1, 8, 2),
        "best of 10": (1, 20, 2),
    }
    assert [workflows[name]["usd_per_success"] for name in ("up to 4 tries", "best of 10")] == [1.5, 20]
    assert "2 scores belong to no attempt in the judgements" in stderr


def test_sensitivity_to_the_assumptions(score, tmp_path):
    verdicts = tried("riverflow-2-b1", t1="P" * 10) | tried("qwen-image-edit-2511", t1="PFPFPFPFPF")
    arguments = [*write(tmp_path, verdicts), "--api-prices", "--sensitivity"]
    status, result, _ = score("hype-edit-1", *arguments)
    assert status == 0
    points = result["sensitivity"]["points"]
    assert len(points) == 5 * 4 * 4
    stated = next(p for p in points if (p["review_seconds"], p["review_usd_per_hour"], p["retry_cap"]) == (20, 50, 4))
    assert stated["effective_cost_usd"] == {
        model: pytest.approx(figures["effective_cost_usd"], abs=EXACT) for model, figures in result["models"].items()
    }
    (flip,) = result["sensitivity"]["flips"]
    assert (flip["ahead"], flip["behind"]) == ("riverflow-2-b1", "qwen-image-edit-2511")
    assert all(s["review_seconds"] * s["review_usd_per_hour"] / 3600 < 0.09 + EXACT for s in flip["settings"])
    assert "is overtaken by" in score("hype-edit-1", *arguments, as_json=False)[1]


def test_several_files_give_one_table(score, tmp_path):
    public = tried("a", t1="PFFFFFFFFF") | tried("b", t1="FFFFFFFFFF")
    private = tried("b", t2="PPPPPPPPPP") | tried("a", t2="FFFFFFFFFP")
    files = [*write(tmp_path / "public", public), *write(tmp_path / "private", private)]
    _, result, _ = score("hype-edit-1", *files)
    assert result == score("hype-edit-1", *write(tmp_path / "whole", public | private))[1]
    assert result["models"]["b"]["pass_at_10"] == 0.5
    files += write(
        tmp_path / "more", tried("c", t1="P" * 10, t3="F" * 10)
    )  # c is in no other file, a and b not in this
    _, result, stderr = score("hype-edit-1", *files)
    shown = {name: (model["n_tasks"], model["pass_rate"]) for name, model in result["models"].items()}
    assert shown == {"a": (2, 0.1), "b": (2, 0.5), "c": (2, 0.5)}
    assert "(tasks x attempts: a 2 x 10, b 2 x 10, c 2 x 10)" in stderr  # not the same two
    _, result, stderr = score("hype-edit-1", files[0], files[2])
    assert result["models"]["a"]["n_tasks"] == 1
    assert "(tasks x attempts: a 1 x 10, b 1 x 10, c 2 x 10)" in stderr
    status, _, stderr = score("hype-edit-1", *files, files[0])
    assert (status, "attempt 1 of 't1' by 'a' is judged in" in stderr) == (2, True)


@pytest.mark.parametrize(("row", "expected"), [("P" + "F" * 4, None), ("P" + "F" * 9, 1), ("P" + "F" * 19, 0.5)])
def test_pass_at_10_is_of_ten_attempts_and_null_for_fewer(score, tmp_path, row, expected):
    _, result, stderr = score("hype-edit-1", *write(tmp_path, tried("a", t1=row)))
    a = result["models"]["a"]
    assert (a["pass_at_10"], a["pass_at_10_high"], a["pass_at_any"]) == (expected, expected, 1)
    assert ("pass_at_10 is null" in stderr) == (expected is None)
    assert ("pass_at_10 is the unbiased estimate" in stderr) == (len(row) > 10)


def raters(folder, *votes):
    """A file for each rater; votes: a letter for each attempt of task t1 by model a."""
    return [
        file for i, vote in enumerate(votes) for file in write(folder / f"r{i}", tried("a", t1=vote), models=["a", "b"])
    ]


@pytest.mark.parametrize(
    ("votes", "outcome"),
    [
        ("FFFFP", "FAIL"),  # F.T.T, F.T.T, T.F.T, T.F.T, T.T.T: one rater of five answers PASS
        ("PPPPF", "PASS"),
        ("PPPFF", "PASS"),
        ("PF", None),
        ("PPFF", None),
        ("PP?", "PASS"),
        ("PF?", None),
        ("PPF?", None),  # 2 of 4
        ("?????", None),
        ("FF?", "FAIL"),
    ],
)
def test_several_raters_give_one_table_by_majority(score, tmp_path, votes, outcome):
    status, result, stderr = score("hype-edit-1", *raters(tmp_path, *votes), "--raters")
    assert (status, result["n_raters"], result["n_open"]) == (0, len(votes), outcome is None)
    assert result["models"]["a"]["pass_rate"] == (outcome == "PASS")
    assert ("attempt 1 of t1 by a" in stderr) == (outcome is None)


def test_raters_may_judge_other_attempts_and_are_distinguished_from_repeated_files(score, tmp_path):
    _, result, stderr = score("hype-edit-1", *raters(tmp_path, "PPF", "PF", "P"), "--raters")
    assert result["n_open"] == 1  # PASS by three, a tie of two, FAIL by one
    assert "attempt 2 of t1 by a" in stderr
    assert result["models"]["a"]["pass_rate"] == pytest.approx(1 / 3)
    apart = [*write(tmp_path / "x", tried("a", t1="P")), *write(tmp_path / "y", tried("a", t2="P"))]
    for arguments, message in (
        (raters(tmp_path / "one", "P", "F"), "or give --raters if each file is another rater's"),
        ([*apart, "--raters"], "no attempt is judged in more than one of"),
    ):
        status, _, stderr = score("hype-edit-1", *arguments)
        assert (status, message in stderr) == (2, True)
