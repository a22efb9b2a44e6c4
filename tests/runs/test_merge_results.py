"""Parts with different results of the same items or with other rules: the merged run is as that of one machine.

Failures are entered as the phases store them."""

import json
import shlex
import shutil
from dataclasses import replace
from functools import partial

import pytest

from local_bench.cli.main import main
from local_bench.core.errors import ConfigError, UserError
from local_bench.core.types import Score
from local_bench.judges.metrics.base import NO_WEIGHTS
from local_bench.runs import merge as merging
from local_bench.runs.config import AcceptanceConfig, SettlementConfig
from local_bench.runs.rundir import RunDir, read_run_config
from local_bench.runs.scoring import decide, score
from local_bench.runs.store.contents import contents, file_digests, record
from local_bench.runs.store.rows import ImageResult
from local_bench.runs.verify import verify
from tests.stages import run_stages

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
        record(run.store, file_digests(run.path))
    return path


def no_weights(run):
    run.store.enter_scores("metric", [(row.work_id, Score("entropy", None, NO_WEIGHTS)) for row in run.store.scores()])


def no_answers(run):
    failed = {"question_id": "", "answer_json": None, "labels_json": None, "unscored": "failed while judging (x)"}
    run.store.enter_verdicts([replace(row, **failed) for row in run.store.verdicts()])


def no_image(deliverable, run):
    row = next(r for r in run.store.candidates("alpha") if (r.task_id, r.deliverable) == ("mug", deliverable))
    run.store.write("DELETE FROM verdicts WHERE work_id IN (SELECT work_id FROM candidates WHERE task_id = 'mug')")
    run.store.write("DELETE FROM scores WHERE work_id = ?", row.work_id)
    run.store.enter_image(ImageResult(row.work_id, None, None, {}, "failed while decoding (x)"), row.work_id)
    run.image(row.pixels_sha256).unlink()


def merged(out, *parts):
    merge(out, parts)
    with RunDir.open(out) as run:
        assert verify(run) == []
    return results(out)


@pytest.mark.parametrize("change", [no_weights, no_answers])
def test_a_result_replaces_its_failure_when_runs_are_merged_again(shards, tmp_path, change):
    complete, (first, second) = shards
    worse, out = altered(first, tmp_path / "worse", change), tmp_path / "merged"
    assert merged(out, worse, second) != results(complete)
    for part in (first, worse):
        assert merged(out, part) == results(complete)


def test_an_image_replaces_its_failure_and_its_set_is_judged(shards, folder, question_server, tmp_path):  # noqa: F811
    complete, (first, second) = shards
    out, worse = tmp_path / "merged", [tmp_path / "without-1", tmp_path / "without-2"]
    for deliverable, path in enumerate(worse, 1):
        altered(first, path, partial(no_image, deliverable))
        judged(folder, path, question_server, "1/2", ("judge", "settle"))  # about the other image alone
    assert merged(out, worse[0], second) != results(complete)
    assert merged(tmp_path / "both", *worse, second)[0]["candidates"] == results(complete)[0]["candidates"]
    assert results(judged(folder, tmp_path / "both", question_server)) == results(complete)
    for part in (first, worse[0]):
        assert merged(out, part) == results(complete)


def test_a_part_that_is_judged_later_completes_the_merged_run(shards, folder, question_server, tmp_path):  # noqa: F811
    complete, (first, second) = shards
    out, part = tmp_path / "merged", tmp_path / "part"
    judged(folder, part, question_server, "2/2", ("generate",))
    assert merged(out, first, part)[0]["verdicts"] != results(complete)[0]["verdicts"]
    assert merged(out, first, second) == results(complete)


def test_two_results_of_one_item_are_refused(shards, tmp_path):
    _, (first, second) = shards

    def other_score(run):
        row = next(run.store.scores("metric"))
        run.store.enter_scores("metric", [(row.work_id, Score("entropy", row.score.value + 1e-9))])

    def other_answer(run):
        row = next(row for row in run.store.verdicts() if row.rubric == "brf")
        run.store.enter_verdicts([replace(row, answer_json=row.answer_json.replace('"met":0', '"met":1'))])

    for change, what in ((other_score, "entropy"), (other_answer, "the answer brf/0")):
        part = altered(first, tmp_path / what.replace("/", "-"), change)
        with pytest.raises(UserError, match=rf"{what} of image \d of 'mug' by \w+, attempt 1, differs from that in "):
            merge(tmp_path / "merged", [part, first, second])
        assert not (tmp_path / "merged").exists()


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


def test_what_the_parts_noted_is_kept(shards, tmp_path):
    _, parts = shards
    placed = ({"compile": False, "offload": offload} for offload in ([], ["encode"]))
    noted = []
    for part, placement, cut in zip(parts, placed, ({"max_tokens": 40, "n": 4, "n_cut": 3}, None), strict=True):
        noted.append(shutil.copytree(part, tmp_path / part.name))
        with RunDir.begin(noted[-1], read_run_config(part)) as run:
            run.store.set_meta("placement:alpha", json.dumps(placement))
            if cut:
                run.store.set_meta("captions_cut:entropy", json.dumps(cut))
            record(run.store, file_digests(run.path))
    first = merged(tmp_path / "out", *noted)
    with RunDir.open(tmp_path / "out") as run:
        before = contents(run.store)
        assert run.store.notes("placement") == {"alpha": {"compile": False, "offload": ["encode"]}}
        assert run.store.notes("captions_cut") == {"entropy": {"max_tokens": 40, "n": 8, "n_cut": 3}}
        assert set(run.store.notes("pace")) == set(run.store.json_meta("judges"))
    for again in (noted, noted[:1], noted[1:]):
        assert merged(tmp_path / "out", *again) == first
        with RunDir.open(tmp_path / "out") as run:
            assert contents(run.store, ["meta"]) == {k: v for k, v in before.items() if k[0] == "meta"}


def test_judges_with_other_numerics_are_refused(shards, tmp_path):
    _, (first, second) = shards
    part = shutil.copytree(second, tmp_path / "part")
    with RunDir.begin(part, read_run_config(part)) as run:
        provenance = run.store.json_meta("provenance")
        provenance["judge"]["numerics"] |= {"device": "another"}
        run.store.set_meta("provenance", json.dumps(provenance))
    with RunDir.open(first) as one, RunDir.open(part) as two:
        with pytest.raises(UserError, match=r"the judge .* has other numerics than in another part"):
            merging._metas([one, two])


def test_an_imported_image_that_was_missing_is_merged(folder, tmp_path):  # noqa: F811
    own = tmp_path / "own"
    shutil.copytree(folder / "alpha", own / "alpha")
    shutil.copy(folder / "tasks.jsonl", own)
    (own / "alpha/mug/2_1.png").unlink()
    run_stages(config_of(own, {"tasks"}), tmp_path / "before", STAGES)
    run_stages(config_of(folder, {"tasks"}), tmp_path / "after", STAGES)
    merge(tmp_path / "merged", [tmp_path / "before"])
    assert merged(tmp_path / "merged", tmp_path / "after") == results(tmp_path / "after")
    assert merged(tmp_path / "merged", tmp_path / "before") == results(tmp_path / "after")
