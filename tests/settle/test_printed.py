"""What the papers print, recomputed from what they print: from `reference/` where it is, and a few rows given here."""

import json
from fractions import Fraction as F

import pytest

from local_bench.settle.attempts import effective_cost, review_usd
from local_bench.settle.settlement import contribution_ratio
from local_bench.suites.idea_bench.published import CATEGORIES, category, overall

REVIEW = review_usd(F(50), F(20))

HYPE = [  # combined split: usd per candidate, expected attempts, pass@4, effective cost
    ("riverflow-2-b1", "0.15", "1.40", "0.905", 0.66),
    ("gpt-image-1.5", "0.17", "2.04", "0.703", 1.30),
    ("qwen-image-edit-2511", "0.03", "2.48", "0.574", 1.33),
]
IDEA = [  # the five categories of table 2, None for "-", and the average
    ("FLUX-1", (46.06, 12.13, 4.89, 20.15, 29.17), 22.48),
    ("InstructPix2Pix", (None, 17.58, None, None, None), 3.52),
    ("Emu2", (17.98, 7.05, 8.98, None, None), 6.81),
    ("OmniGen rephrased", (21.41, 8.17, 2.77, 23.52, 21.39), 15.45),
]
IDEA_T2I = [(100.0, 38.89, 5.56, 0.0, 66.67, 61.11, 16.67, 16.67, 83.33, 61.11, 56.67)]
SAVINGS = [  # table 7: S and M in percent, R
    ("Gemini-Banana-Pro", 81.7, 81.7, 4.4581),
    ("GPT-Image-1", 50.2, 50.3, 1.0090),
    ("SeedEdit-3.0-i2i", 0.6, 0.6, 0.0062),
    ("SD-3.5-Large", 5.7, 5.8, 0.0611),
]


def cost(usd, attempts, passed):
    found = effective_cost(F(attempts), F(usd) + REVIEW, F(passed))
    assert found is not None
    return float(found)


@pytest.mark.parametrize(("model", "usd", "attempts", "passed", "printed"), HYPE)
def test_effective_cost(model, usd, attempts, passed, printed):
    assert cost(usd, attempts, passed) == pytest.approx(printed, abs=0.01)


@pytest.mark.parametrize("split", ["public", "private", "combined"])
def test_all_effective_costs(shared, split):
    facts = json.loads((shared / "reference/hype_edit_1.json").read_text())
    rows = facts["splits"][split]
    assert len(rows) == 7
    for model, (_, at_4, _, attempts, printed, _) in rows.items():
        usd = facts["model_cost_usd_per_candidate"][model]
        assert cost(str(usd), str(attempts), F(str(at_4)) / 100) == pytest.approx(printed, abs=0.01), model


def test_the_printed_hype_gaps_are_of_first_attempts(shared):
    """Pass@10 less the gap is an integer number of tasks, and the pooled rate is another number: so read eq. 7."""
    facts = json.loads((shared / "reference/hype_edit_1.json").read_text())
    pooled = 0
    for split, tasks in (("public", 50), ("private", 50), ("combined", 100)):
        for rate, _, at_10, _, _, gap in facts["splits"][split].values():
            first = round(at_10 - gap, 6)
            assert (first * tasks / 100) % 1 == 0
            pooled += first == rate
    assert pooled < 21


@pytest.mark.parametrize(("model", "categories", "printed"), IDEA)
def test_idea_averages(model, categories, printed):
    assert mean_of_five(categories) == pytest.approx(printed, abs=0.01)


def mean_of_five(categories):
    by_category = zip(CATEGORIES, categories, strict=True)
    return float(overall({name: None if x is None else F(str(x)) for name, x in by_category}))


def test_all_idea_averages(shared):
    rows = json.loads((shared / "reference/idea_bench.json").read_text())["table2_categories"]["rows"]
    assert len(rows) == 11
    for model, (*categories, printed) in rows.items():
        assert mean_of_five(categories) == pytest.approx(printed, abs=0.01), model


@pytest.mark.parametrize("subtasks", IDEA_T2I)
def test_a_category_is_the_mean_of_its_subtasks(subtasks):
    assert float(category(F(str(x)) for x in subtasks) or 0) == pytest.approx(46.06, abs=0.01)


@pytest.mark.parametrize("table", ["table3_t2i", "table4_i2i", "table5_is2i", "table6_t2is"])
def test_all_idea_categories(shared, table):
    """Table 7 prints a selection of its subtasks: nothing can be recomputed from it."""
    for model, (*subtasks, printed) in json.loads((shared / "reference/idea_bench.json").read_text())[table][
        "rows"
    ].items():
        assert float(category(F(str(x)) for x in subtasks) or 0) == pytest.approx(printed, abs=0.01), model


@pytest.mark.parametrize(
    ("table", "subtasks", "column", "erratum"),
    [
        ("table3_t2i", (8, 9, 10), "T2I_human", {"SD3": 49.26}),
        ("table4_i2i", (7, 12), "I2I_human", {"OmniGen": 22.22}),
    ],
)
def test_people_of_table_8_are_those_of_tables_3_and_4(shared, table, subtasks, column, erratum):
    """`erratum`: what follows from the subtasks where another number is printed."""
    paper = json.loads((shared / "reference/idea_bench.json").read_text())
    own = {name.replace("Stable Diffusion 3", "SD3").rstrip("†"): row for name, row in paper[table]["rows"].items()}
    at = paper["table8_mini"]["columns"].index(column)
    printed = {name.rstrip("†"): row[at] for name, row in paper["table8_mini"]["rows"].items() if row[at] is not None}
    assert len(printed) > 5
    differ = {}
    for model, number in printed.items():
        found = float(category(F(str(own[model][i])) for i in subtasks) or 0)
        if found != pytest.approx(number, abs=0.011):
            differ[model] = round(found, 2)
    assert differ == erratum


@pytest.mark.parametrize(("model", "s", "m", "printed"), SAVINGS)
def test_contribution_ratio(model, s, m, printed):
    low, high = ratios(s, m)
    assert low <= printed <= high


def ratios(s, m):
    """R for what S and M may be that print as these, to a tenth of a percent; and half a unit of R's own last place."""
    half, last = F(5, 10_000), F(5, 100_000)
    s, m = F(str(s)) / 100, F(str(m)) / 100
    ends = [contribution_ratio(m + sign * half, s + sign * half) for sign in (-1, 1)]
    assert ends[0] is not None
    assert ends[1] is not None
    return ends[0] - last, ends[1] + last


def test_the_printed_numbers_of_servimage_follow_from_each_other(shared):
    facts = json.loads((shared / "reference/servimage.json").read_text())
    rows = facts["table7_cost_reduction"]["rows"]
    assert len(rows) == 16
    for model, (s, m, printed) in rows.items():
        low, high = ratios(s, m)
        assert low <= printed <= high, model
    earned = sum(row[0] for row in facts["table3_competition"]["rows"].values())
    assert earned == pytest.approx(facts["table1"]["rows"]["All"][2], abs=16 * 0.05)
    # not eq. 7, which counts complete orders: M = revenue share needs no order to be half accepted.
    shares = {model: row[1] for model, row in facts["table2_human"]["rows"].items()}
    others = {m for m, row in facts["table7_cost_reduction"]["rows"].items() if abs(row[1] - shares[m]) > 0.05}
    assert others == {"Gemini-Banana-Pro", "MJ-Relax-Edits", "MJ-Relax-Imagine"}
