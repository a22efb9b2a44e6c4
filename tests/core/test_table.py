"""Cells of CSV files."""

from hypothesis import given
from hypothesis import strategies as st

from local_bench.core.table import guarded, unguarded

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


def test_a_formula_is_text_behind_an_apostrophe():
    assert [guarded(text) for text in FORMULAS] == [f"'{text}" for text in FORMULAS]
    assert [unguarded(f"'{text}") for text in FORMULAS] == FORMULAS
    for cell in ("-1", "+1", "-1.5e-3", "-0", "", "a", " =x", "it's", "'quoted'", "é", -1, -0.5, None, True):
        assert guarded(cell) is cell  # numbers and other text
        assert not isinstance(cell, str) or unguarded(cell) == cell


@given(st.text("=+-@'\t1.ea", max_size=6))
def test_every_text_is_read_again(text):
    assert unguarded(guarded(text)) == text
