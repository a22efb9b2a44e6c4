"""Numbers of things in sentences."""

import pytest

from local_bench.core.errors import count


@pytest.mark.parametrize(
    ("words", "one"),
    [
        ("tasks", "1 task"),
        ("imported images", "1 imported image"),
        ("batches did not fit in memory and were", "1 batch did not fit in memory and was"),
        ("entries", "1 entry"),
        ("cases cannot be read and are", "1 case cannot be read and is"),
        ("files that are", "1 file that is"),
        ("tasks lack their images and are", "1 task lacks its images and is"),
        ("attempts have no majority of their raters and are", "1 attempt has no majority of its raters and is"),
        ("answers in files have no score and count", "1 answer in files has no score and counts"),
        ("images have no row: they count", "1 image has no row: it counts"),
        ("labels are fractions", "1 label is a fraction"),
        ("differ", "1 differs"),
        ("questions remain", "1 question remains"),
    ],
)
def test_one_thing_is_singular(words, one):
    assert count(1, words) == one
    assert [count(n, words) for n in (0, 2, 1234)] == [f"0 {words}", f"2 {words}", f"1,234 {words}"]
