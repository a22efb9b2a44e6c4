"""The authors' own labels and orders give the paper's row of SeedEdit-3.0, to the printed digits."""

import json

import pytest

from local_bench.cli.main import main
from tests.conftest import SHARED

FOLDER = SHARED / "data/servimage-bench"
LABELS = FOLDER / "seededit-3.0-i2i_annotations.jsonl"
MODEL = "seededit-3.0-i2i"

pytestmark = pytest.mark.skipif(not LABELS.is_file(), reason="the published orders and labels are not here")


def run(capsys, *arguments):
    assert main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def rounded(of, *digits):
    keys = ("revenue_usd", "share", "task_acceptance", "deliverable_acceptance")
    scales = (1e-3, 100, 100, 100)
    return [round(of[key] * scale, n) for key, scale, n in zip(keys, scales, digits, strict=True)]


def test_both_settlements_of_the_published_labels(capsys):
    data = run(capsys, "score", "servimage", LABELS, "--tasks", FOLDER, "--api-prices")
    model = data["models"][MODEL]
    assert round(model["revenue_usd"], 2) == 1979.16  # eq. 1
    assert model["share_ci95_low"] < model["share"] < model["share_ci95_high"]
    assert model["revenue_ci95_high_usd"] == pytest.approx(model["share_ci95_high"] * 295_038.08)
    printed = model["as_printed"]
    assert rounded(printed, 2, 1, 2, 2) == [1.81, 0.6, 6.98, 6.77]
    assert (printed["n_tasks"], printed["n_deliverables"]) == (129, 251)
    assert rounded(printed["by_category"]["C-Product"], 2, 1, 2, 2) == [0.67, 0.5, 6.76, 6.43]
    assert rounded(printed["by_category"]["C-Digital"], 2, 1, 2, 2) == [1.14, 0.9, 7.41, 7.27]
    assert rounded(printed["by_category"]["C-Portrait"], 2, 1, 2, 2) == [0, 0, 0, 0]
    saved = [model[key] for key in ("cost_savings", "model_contribution", "contribution_ratio")]
    assert [round(saved[0], 3), round(saved[1], 3), round(saved[2], 4)] == [0.006, 0.006, 0.0062]


def rows(capsys, name, *options):
    return run(capsys, "reproduce", "servimage", name, LABELS, "--tasks", FOLDER, *options)["rows"]


def printed_digits(row, digits):
    """The numbers of a table's row after its names, rounded as the paper prints them."""
    numbers = [value for value in row.values() if not isinstance(value, str)]
    return [round(value, n) for value, n in zip(numbers, digits, strict=True)]


def test_the_papers_tables_of_the_published_labels(capsys):
    reference = json.loads((SHARED / "reference/servimage.json").read_text())
    paper_1 = reference["table1"]["rows"]
    for row in rows(capsys, "table-1"):
        assert printed_digits(row, (0, 0, 1, 2)) == paper_1[row["category"]]
    (row,) = rows(capsys, "table-2")
    assert printed_digits(row, (2, 1, 2, 2, 2, 1, 2, 1, 2, 1)) == reference["table2_human"]["rows"]["SeedEdit-3.0-i2i"]
    (row,) = rows(capsys, "table-7", "--api-prices")
    assert printed_digits(row, (1, 1, 4)) == reference["table7_cost_reduction"]["rows"]["SeedEdit-3.0-i2i"]
    paper_8 = reference["table8_by_category"]["rows"]["SeedEdit-3.0-i2i"]
    for row in rows(capsys, "table-8"):
        assert printed_digits(row, (2, 1, 2, 2)) == paper_8[row["category"]]
