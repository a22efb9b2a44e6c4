"""Ranks from comparisons, against the maximum of the likelihood by hand."""

from math import log

import pytest

from local_bench.settle.pairwise import Comparison, notes, rank


def won(first, second, times, n):
    """`first` is preferred in `times` of n comparisons, each of a task."""
    return [Comparison(first, second, float(i < times), str(i)) for i in range(n)]


def test_the_strength_of_two_models_is_the_logarithm_of_their_odds():
    """Of n + 0.1 comparisons (the prior's is a tie) `a` won 30.05 and `b` 10.05."""
    first, second = rank(won("a", "b", 30, 40))
    assert (first.model, first.wins, first.losses, first.win_rate) == ("a", 30, 10, 0.75)
    assert first.strength == pytest.approx(log(30.05 / 10.05) / 2)
    assert second.strength == pytest.approx(-first.strength)
    assert notes([first, second]) == []


def test_a_chain_of_comparisons_is_one_scale():
    """a : b and b : c determine a : c; in a chain each pair is as if alone."""
    ranked = rank([*won("a", "b", 30, 40), *won("b", "c", 24, 40)])
    assert [model.model for model in ranked] == ["a", "b", "c"]
    strengths = {model.model: model.strength for model in ranked}
    assert strengths["b"] - strengths["c"] == pytest.approx(log(24.05 / 16.05))
    assert strengths["a"] - strengths["b"] == pytest.approx(log(30.05 / 10.05))
    assert {model.group for model in ranked} == {0}


def test_models_that_were_never_compared_have_no_common_scale():
    """`a` always wins against `b`, and `c` as often as `d`; nothing says whether `a` is stronger than `c`."""
    ranked = rank([*won("a", "b", 40, 40), *won("c", "d", 20, 40)])
    assert [(model.model, model.win_rate, model.strength, model.group) for model in ranked] == [
        ("a", 1, None, 0),
        ("c", 0.5, None, 1),
        ("d", 0.5, None, 1),
        ("b", 0, None, 0),
    ]
    (note,) = notes(ranked)
    assert note.endswith("these groups of models were never compared with each other: a, b; c, d")
