"""Cells of CSV files."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local_bench.core.tables import guarded, unguarded

FORMULAS = [
    "=1+2",
    "+cmd|x",
    "-1+2",
    "@SUM(A1)",
    "\tx",
    "\rx",
    "\nx",
    "\N{FULLWIDTH EQUALS SIGN}x",
    "'=x",
    "''-x",
    "-",
    "+",
]


@pytest.mark.parametrize("text", FORMULAS)
def test_a_formula_is_text_behind_an_apostrophe_and_is_read_again(text):
    assert guarded(text) == f"'{text}"
    assert unguarded(f"'{text}") == text


@pytest.mark.parametrize(
    "cell", ["-1", "+1", "-1.5e-3", "-0", "", "a", " =x", "it's", "'quoted'", "é", -1, -0.5, None, True]
)
def test_numbers_and_other_text_are_unchanged(cell):
    assert guarded(cell) is cell
    assert not isinstance(cell, str) or unguarded(cell) == cell


@given(st.text("=+-@'\t1.ea", max_size=6))
def test_every_text_is_read_again(text):
    assert unguarded(guarded(text)) == text
