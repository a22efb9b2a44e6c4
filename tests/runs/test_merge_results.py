"""Parts with different results of the same items or with other rules: the merged run is as that of one machine.

Failures are entered as the phases store them."""

import shlex
import shutil

import pytest

from local_bench.cli.main import main
from local_bench.core.errors import ConfigError, UserError
from local_bench.runs.acceptance import decide
from local_bench.runs.config import AcceptanceConfig, SettlementConfig
from local_bench.runs.contents import record_contents
from local_bench.runs.rundir import RunDir, read_run_config
from local_bench.runs.scoring import score
from local_bench.runs.stages import run_stages
from local_bench.runs.verify import verify

from .test_growth import STAGES, config_of, folder, question_server, results  # noqa: F401
from .test_merge import merge

JUDGED = {"beta", "tasks", "entropy", "second judge"}
ALL_STAGES = ("generate", "measure", "judge", "settle")


def judged(folder, path, server, shard=None, stages=ALL_STAGES, questions_from=(), **changes):  # noqa: F811
    config = config_of(folder, JUDGED, judge_url=server.url)
    suite = config.suite.model_copy(update={"shard": shard, "questions_from": list(questions_from)})
    run_stages(config.model_copy(update={"suite": suite} | changes), path, stages)
    return path


@pytest.fixture(scope="module")
def shards(folder, question_server, tmp_path_factory):  # noqa: F811
    path = tmp_path_factory.mktemp("judged")
    parts = [judged(folder, path / f"part-{i}", question_server, f"{i}/2") for i in (1, 2)]
    return judged(folder, path / "complete", question_server), parts


def altered(part, path, change):
    """A copy of a run after `change`, with the scores and decisions that follow."""
    shutil.copytree(part, path)
    with RunDir.begin(path, read_run_config(path)) as run:
        change(run)
        score(run, list(run.store.json_meta("judges")))
        decide(run)
        record_contents(run)
    return path


def merged(out, *parts):
    merge(out, parts)
    with RunDir.open(out) as run:
        assert verify(run) == []
    return results(out)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"acceptance": AcceptanceConfig(brf=5, cns=1)}, r"acceptance\.brf is \d.0, and \d.0 in another part: `"),
        (
            {"settlement": SettlementConfig(usd_per_hour="2")},
            r'settlement\.usd_per_hour is (null|"2"), and ("2"|null) in',
        ),
        (
            {"panel_word": "majority"},
            r"panel_word is .* in another part: `local-bench judge .* --set 'panel_word=\S+ and",
        ),
        (
            {"panel": []},
            r'panel is \[("second")?\], and \[("second")?\] in another part: merge runs that were made with',
        ),
        (
            {"questions_from": ["idea-bench"]},
            r"suite\.questions_from is \[.* in another part: merge runs that were made",
        ),
    ],
)
def test_parts_with_other_rules_are_refused(shards, folder, question_server, tmp_path, changes, sentence):  # noqa: F811
    one, two = (shutil.copytree(part, tmp_path / part.name) for part in shards[1])
    judged(folder, two, question_server, "2/2", ("judge", "settle"), **changes)
    with pytest.raises(ConfigError, match=sentence) as refused:
        merge(tmp_path / "merged", [one, two])
    assert not (tmp_path / "merged").exists()
    if "--save`" in str(refused.value):
        assert main(shlex.split(str(refused.value).split("`")[1])[1:]) == 0
        merged(tmp_path / "merged", one, two)


def test_prices_of_models_at_apis_are_of_all_parts(folder, tmp_path):  # noqa: F811
    config = config_of(folder, {"beta"})
    for model, usd in zip(config.models, ("0.04", "0.03"), strict=True):
        settlement = SettlementConfig(api_usd_per_image={model.name: usd})
        part = config.model_copy(update={"models": [model], "settlement": settlement})
        run_stages(part, tmp_path / model.name, STAGES)
    merge(tmp_path / "merged", [tmp_path / "alpha", tmp_path / "beta"])
    settlement = read_run_config(tmp_path / "merged").settlement
    assert settlement.api_usd_per_image == {"alpha": "0.04", "beta": "0.03"}


def test_a_missing_shard_stays_missing_until_its_tasks_are_there(folder, tmp_path):  # noqa: F811
    def part(name, models, shard):
        config = config_of(folder, {"beta", "tasks"})
        models = [model for model in config.models if model.name in models]
        suite = config.suite.model_copy(update={"shard": shard})
        run_stages(config.model_copy(update={"models": models, "suite": suite}), tmp_path / name, STAGES)
        return tmp_path / name

    (one, two), beta = (part(f"alpha-{i}", {"alpha"}, f"{i}/2") for i in (1, 2)), part("beta-1", {"beta"}, "1/2")
    out = tmp_path / "merged"
    assert merge(out, [one], partial=True).missing_shards == ("2/2",)
    for parts in ([one], [one, beta]):
        with pytest.raises(UserError, match=r"^shard 2/2 is missing: add its run directory"):
            merge(out, parts)
    with pytest.raises(UserError, match=r"^shard 2/2 of beta is missing"):
        merge(out, [two, beta])
    assert merge(out, [two, beta], partial=True).missing_shards == ("2/2",)
    run_stages(config_of(folder, {"beta", "tasks"}), out, STAGES)
    assert merge(out, [one]).missing_shards == ()
    assert results(out) == results(part("complete", {"alpha", "beta"}, None))
