"""The store and the directory of a run: who may write, what may change, and the forms of the values in `meta`."""

import json
import sys

import pytest

from local_bench.core.errors import ConfigError, LedgerDamaged, LedgerError, UserError
from local_bench.core.types import Score
from local_bench.runs.config import JudgeConfig, ModelConfig, RunConfig
from local_bench.runs.rundir import RunDir
from local_bench.runs.store import Store
from tests.runs.random_run import random_run

CONFIG = RunConfig(name="x", models=[ModelConfig(card="tiny-flux")], judge=JudgeConfig(card="tiny-qwen3-vl"))


@pytest.mark.parametrize("n", [0, 1, 450, 451, 1000])
def test_rows_written_several_at_a_time_are_those_written_singly(tmp_path, n):
    store = Store(tmp_path / "l.sqlite", create=True)
    expected = {row["key"]: row["value"] for row in store.rows("SELECT * FROM meta")}
    for word in ("a", "b"):
        rows = [(f"k{i % 700}", f"{word}{i}" if i % 7 else "?") for i in range(n)]
        store.write_many("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", iter(rows))
        expected |= dict(rows)
        store.write_many(
            "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = value || excluded.value", iter(rows)
        )
        for key, value in rows:
            expected[key] += value
        assert {row["key"]: row["value"] for row in store.rows("SELECT * FROM meta")} == expected


def test_one_writer_at_a_time_and_any_number_of_readers(tmp_path):
    with RunDir.begin(tmp_path / "run", CONFIG):
        with pytest.raises(LedgerError, match="another local-bench process is writing"):
            RunDir.begin(tmp_path / "run", CONFIG)
        with RunDir.open(tmp_path / "run") as reader:
            assert reader.config == CONFIG
    with RunDir.begin(tmp_path / "run", CONFIG):
        pass


def test_a_folder_that_is_no_run_is_not_changed(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="not empty and not a run directory"):
        RunDir.begin(tmp_path, CONFIG)
    with pytest.raises(UserError, match="not a run directory"):
        RunDir.open(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} <= {"thesis.tex", ".lock"}


def test_execution_settings_may_change_and_work_settings_may_not(tmp_path):
    with RunDir.begin(tmp_path / "run", CONFIG.model_copy(update={"seed": 1})):
        pass  # a run without a plan accepts another config
    with RunDir.begin(tmp_path / "run", CONFIG) as run:
        run.store.set_meta("planned", "1")
    judge = CONFIG.judge.model_copy(update={"in_flight": 7, "base_url": "http://127.0.0.1:1/v1"})
    with RunDir.begin(tmp_path / "run", CONFIG.model_copy(update={"judge": judge})) as run:
        run.write_config()
    rule = CONFIG.acceptance.model_copy(update={"brf": 1.0})
    with RunDir.begin(tmp_path / "run", CONFIG.model_copy(update={"acceptance": rule})) as run:
        run.write_config()
    with RunDir.open(tmp_path / "run") as run:
        assert run.config.acceptance.brf == 1.0
    with pytest.raises(ConfigError, match="seed: 0 in the run, 1 now"):
        RunDir.begin(tmp_path / "run", CONFIG.model_copy(update={"seed": 1}))


@pytest.mark.parametrize(("begun", "now"), [("cpu", "auto"), ("auto", "cpu")])
def test_auto_is_the_cpu_of_a_machine_without_gpu(tmp_path, monkeypatch, begun, now):
    torch = pytest.importorskip("torch")
    first, other = (
        CONFIG.model_copy(update={"engine": CONFIG.engine.model_copy(update={"device": device})})
        for device in (begun, now)
    )
    with RunDir.begin(tmp_path / "run", first) as run:
        run.store.set_meta("planned", "1")
    with RunDir.begin(tmp_path / "run", other) as run:
        assert run.config.engine.device == now
    with pytest.raises(ConfigError, match="seed: 0 in the run, 1 now"):
        RunDir.begin(tmp_path / "run", other.model_copy(update={"seed": 1}))
    refused = pytest.raises(ConfigError, match=f"engine.device: {begun} in the run, ")
    ray = other.engine.model_copy(update={"executor": "ray"})  # whose nodes may have GPUs
    with refused:
        RunDir.begin(tmp_path / "run", other.model_copy(update={"engine": ray}))
    monkeypatch.setattr("local_bench.generators.numerics.choose_device", lambda _: torch.device("cuda", 0))
    with refused:
        RunDir.begin(tmp_path / "run", other)
    monkeypatch.setitem(sys.modules, "local_bench.generators.numerics", None)  # it imports torch
    with refused:
        RunDir.begin(tmp_path / "run", other)


def test_scores_that_are_no_longer_computed_are_removed(tmp_path):
    with random_run(tmp_path / "run", 8) as run:
        work_id = run.store.candidates()[0].work_id
        for scores in ([Score("brf", 1.0), Score("brf_expected", 0.9)], [Score("brf", 0.0)]):
            run.store.enter_scores("judge", [(work_id, score) for score in scores], replace_all=True)
        judged = {row.score.name: row.score.value for row in run.store.scores() if row.score.name != "entropy"}
        assert judged == {"brf": 0.0}
        assert run.store.scores_by_candidate("metric")  # of another kind


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
        ("provenance", {"sessions": "1"}, "at 'sessions'"),
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
