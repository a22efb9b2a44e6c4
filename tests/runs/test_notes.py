"""The forms of the JSON values in a ledger's `meta`."""

import json

import pytest

from local_bench.core.errors import LedgerDamaged, LedgerError
from tests.runs.random_run import random_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with random_run(tmp_path_factory.mktemp("notes") / "run", 8) as opened:
        yield opened


CHECKS = {
    "judge": "x",
    "repeats": {"reproducible": True, "differs": [], "n": 24, "sessions": 1},
    "attacks": {"n": 15, "n_unscored": 0, "fooled_by": ["changes-answered"]},
}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("batches:flux", {"ef39": 4}),
        ("canary:qwen", CHECKS),
        ("canary:qwen", {"judge": "x"}),
        ("judges", {"2bf0": "qwen"}),
        ("metric:entropy", {"higher_is_better": True, "highest": 8.0}),
        ("numerics:flux", {"threads": 1}),
        ("provenance", {"judge": {"name": "qwen"}, "panel": [], "models": {"flux": {"card": "flux"}}, "sessions": 1}),
        ("provenance", {"judge": None, "panel": [None]}),
    ],
)
def test_stored_forms_are_read(run, key, value):
    run.store.set_meta(key, json.dumps(value))
    assert run.store.json_meta(key) == value


@pytest.mark.parametrize(
    ("key", "value", "fault"),
    [
        ("batches:flux", {"ef39": None}, "at 'ef39'"),
        ("batches:flux", {"ef39": 0}, "at 'ef39'"),
        ("canary:qwen", CHECKS | {"repeats": -1}, "at 'repeats'"),
        ("canary:qwen", CHECKS | {"repeats": {"reproducible": True}}, "at 'repeats.differs'"),
        ("canary:qwen", CHECKS | {"attacks": CHECKS["attacks"] | {"fooled_by": "all"}}, "at 'attacks.fooled_by'"),
        ("judges", ["qwen"], "is a list"),
        ("judges", {"2bf0": 1}, "at '2bf0'"),
        ("metric:entropy", {"higher_is_better": "yes"}, "at 'higher_is_better'"),
        ("numerics:flux", 3, "is a number"),
        ("provenance", {"models": {"flux": 1}}, "at 'models.flux'"),
        ("provenance", {"judge": 1}, "at 'judge'"),
    ],
)
def test_other_forms_are_refused(run, key, value, fault):
    run.store.set_meta(key, json.dumps(value))
    with pytest.raises(LedgerDamaged, match=f"its entry '{key}' .*{fault}"):
        run.store.json_meta(key)


def test_other_forms_of_truncated_tokens_are_refused(run):
    run.store.write("UPDATE candidates SET truncated = '{\"clip\": 3}'")
    assert {n for _, _, tokens in run.store.truncations() for n in tokens.values()} == {3}
    for text in ("[]", "null", "1", '{"clip": null}', '{"clip": "x"}', '{"clip": [1]}'):
        run.store.write("UPDATE candidates SET truncated = ?", text)
        with pytest.raises(LedgerError):
            run.store.truncations()
