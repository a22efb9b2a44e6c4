import pytest

from local_bench.core.types import Verdict
from local_bench.judges.vlm.enrichment import deliverables, lines, numbered


def entry(name, **rules):
    return {"subtask": name, "rules": rules, "evidence": ["two cards"]}


def said(*entries, quantity=None):
    count = len(entries) if quantity is None else quantity
    return Verdict({"output_quantity": count, "deliverables": list(entries)}, None, "")


def test_deliverables_come_with_their_rules_and_the_words_for_them():
    found = deliverables(
        said(entry("card_front", file_type=["PNG"], visual_specs={"min_dpi": 300}), entry("card_back"))
    )
    assert found.subtasks == ("card_front", "card_back")
    assert found.rules[0].file_type == ["PNG"]
    assert found.rules[0].visual_specs.min_dpi == 300
    assert found.rules[1].model_dump(exclude_defaults=True) == {}
    assert found.evidence == (("two cards",), ("two cards",))


@pytest.mark.parametrize(
    ("verdict", "reason"),
    [
        (said(entry("a"), quantity=2), "counts 2 deliverables and names 1"),
        (said(entry("a"), entry("a")), "names 'a' twice"),
        (Verdict(None, "the judge's answer was cut off (length)", "{"), "cut off"),
    ],
)
def test_what_does_not_hold_together_is_a_sentence_and_no_guess(verdict, reason):
    assert reason in deliverables(verdict)


def test_sentences_stand_once_and_never_blank():
    verdict = Verdict({"points": ["白色  背景", " ", "One cup", "One cup"]}, None, "")
    assert lines(verdict, "points") == ("白色 背景", "One cup")
    assert "empty" in lines(Verdict({"points": ["", " "]}, None, ""), "points")
    assert lines(Verdict(None, "no", ""), "points") == "no"
    assert numbered(("a", "b")) == "1. a\n2. b"
    assert numbered(()) == "none"
