import pytest

from local_bench.core.types import Verdict
from local_bench.judges.vlm.protocols import deliverables, lines


def entry(name, **rules):
    return {"subtask": name, "rules": rules, "evidence": ["two cards"]}


def verdict_of(*entries, quantity=None):
    count = len(entries) if quantity is None else quantity
    return Verdict({"output_quantity": count, "deliverables": list(entries)}, None, "")


def test_deliverables_have_their_rules():
    rules = deliverables(
        verdict_of(entry("card_front", file_type=["PNG"], visual_specs={"min_dpi": 300}), entry("card_back"))
    )
    assert rules[0].file_type == ["PNG"]
    assert rules[0].visual_specs.min_dpi == 300
    assert [of_image.model_dump(exclude_defaults=True) for of_image in rules[1:]] == [{}]


@pytest.mark.parametrize(
    ("verdict", "reason"),
    [
        (verdict_of(entry("a"), quantity=2), "counts 2 deliverables and names 1"),
        (verdict_of(entry("a"), entry("a")), "names 'a' twice"),
        (Verdict(None, "the judge's answer was cut off (length)", "{"), "cut off"),
    ],
)
def test_inconsistent_deliverables_are_an_error_and_no_guess(verdict, reason):
    assert reason in deliverables(verdict)


def test_sentences_are_unique_and_not_blank():
    verdict = Verdict({"points": ["白色  背景", " ", "One cup", "One cup"]}, None, "")
    assert lines(verdict, "points") == ("白色 背景", "One cup")
    assert "empty" in lines(Verdict({"points": ["", " "]}, None, ""), "points")
    assert lines(Verdict(None, "no", ""), "points") == "no"
