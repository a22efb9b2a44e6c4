import pytest

from local_bench.core.types import canonical_json, digest, seed_of

pytestmark = pytest.mark.every_cpu


def test_one_value_has_one_text():
    assert canonical_json({"b": [1, 2.5], "a": "é"}) == '{"a":"é","b":[1,2.5]}'
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert digest({"a": 1}) != digest({"a": 1.5})


def test_nan_has_no_text():
    with pytest.raises(ValueError, match="Out of range"):
        canonical_json(float("nan"))


def test_seeds_are_pinned_and_fit_torch():
    assert seed_of("work") == 86245716234574103
    assert seed_of("work") != seed_of("work2")
    assert all(0 <= seed_of(str(i)) < 2**63 for i in range(200))
