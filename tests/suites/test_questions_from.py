"""Other benchmarks' questions about a suite's images: which questions a task has, and the scores computed from their
answers."""

from dataclasses import replace

import pytest

from local_bench.core.errors import ConfigError
from local_bench.core.types import Score, Task, Verdict
from local_bench.judges.metrics.registry import metric_names
from local_bench.runs.config import RunConfig
from local_bench.runs.plan import check_config
from local_bench.suites.questions_from import (
    all_questions,
    borrowed_scores,
    check_borrowed,
    derived_scores,
    pass_fail,
    scale_of,
)
from local_bench.suites.registry import all_suites, suite
from local_bench.suites.run_results import ImageResult, RunResults
from tests.stages import run_stages

ALL = ["ice-bench", "hype-edit-1", "idea-bench"]
POINTS = ("It is red", "It is sharp")
EDIT = Task("edit", "Product", 0, "T", "Make <SOURCE> red.", ("front", "back"), POINTS, "s" * 64, ("r" * 64,))
TEXT_ONLY = Task("words", "Product", 0, "T", "A boot.", ("boot",), ("It is a boot",))


def questions_of(names, task, images, own="studio"):
    """Those of the benchmarks in `names`."""
    entry = suite(own)
    every = list(all_questions(entry, names, task, images))
    own = list(entry.questions(task, images))
    assert every[: len(own)] == own
    return every[len(own) :]


def test_an_edit_has_all_questions():
    found = questions_of(ALL, EDIT, {1: "a" * 64, 2: "b" * 64})
    assert len({key for key, _ in found}) == len(found) == 2 * (1 + 1 + 2 * 3)
    ice = [q for (i, rubric, *_), q in found if rubric == "vllm_qa" and i == 2]
    assert [(q.roles, q.images[-1]) for q in ice] == [(("source", "reference", "result"), "b" * 64)]
    hype = [q for (i, rubric, *_), q in found if rubric == "hype_edit" and i == 1]
    assert hype[0].images == ("s" * 64, "r" * 64, "a" * 64)
    idea = [q for (i, rubric, *_), q in found if rubric == "idea_question" and i == 1]
    assert {(q.slots[0][1], q.repeat) for q in idea} == {(p, r) for p in EDIT.evaluation_points for r in range(3)}


def test_a_task_of_text_alone_is_no_edit():
    assert {key[1] for key, _ in questions_of(ALL, TEXT_ONLY, {1: "a" * 64})} == {"idea_question"}
    found = {score.name: score for score in borrowed_scores(ALL, TEXT_ONLY, {})[1]}
    assert not found["ice_vllmqa"].applies
    assert not found["hype_pass"].applies
    assert found["idea_met"].unscored == "3 askings of point 1 have no answer"


def test_scores_are_each_benchmarks_own_of_each_image():
    def verdict(**answer):
        return Verdict(answer, None, "")

    verdicts = {
        (1, "vllm_qa", 0, 0): verdict(success=1),
        (2, "vllm_qa", 0, 0): verdict(success=0),
        (1, "hype_edit", 0, 0): verdict(changes_made=True, rest_preserved=True),
        (2, "hype_edit", 0, 0): verdict(changes_made=True, rest_preserved=False),
    }
    for i, met in ((1, (1, 1, 0)), (2, (0, 0, 0))):
        for repeat in range(3):
            verdicts[i, "idea_question", 0, repeat] = verdict(met=met[repeat])
            verdicts[i, "idea_question", 1, repeat] = verdict(met=1)
    found = {i: {s.name: s.value for s in of} for i, of in borrowed_scores(ALL, EDIT, verdicts).items()}
    assert found[1] == {"ice_vllmqa": 1, "hype_pass": 1, "hype_rating": 1, "idea_met": pytest.approx((2 / 3 + 1) / 2)}
    assert found[2] == {"ice_vllmqa": 0, "hype_pass": 0, "hype_rating": 0, "idea_met": 0.5}
    assert pass_fail(ALL) == ("hype_pass",)


def test_servimages_questions_of_another_benchmarks_task():
    found = questions_of(["servimage"], EDIT, {1: "a" * 64}, own="ice-bench")
    assert {key[1] for key, _ in found} == {"veq_technical", "veq_aesthetic", "veq_text", "cns_edit"}
    names = {score.name for score in borrowed_scores(["servimage"], EDIT, {})[1]}
    assert names == {"servimage_veq", "servimage_cns"}


@pytest.mark.parametrize(
    ("task", "caption"),
    [
        (TEXT_ONLY, suite("studio").deliverables(TEXT_ONLY)[0].prompt),
        (replace(TEXT_ONLY, caption="a boot on snow"), "a boot on snow"),
        (replace(TEXT_ONLY, caption=""), None),
    ],
)
def test_vqascore_is_asked_about_the_caption_that_metrics_use(task, caption):
    found = questions_of(["vqa-score"], task, {1: "a" * 64})
    asked = [(key, q.rubric, q.images, dict(q.slots)) for key, q in found]
    key = (1, "vqa_score", 0, 0)
    assert asked == ([] if caption is None else [(key, "vqa_score", ("a" * 64,), {"caption": caption})])
    answered = Verdict({"shown": 1}, None, "Yes", {"shown": {"0": 0.25, "1": 0.75}})
    for verdicts, expected in (
        ({key: answered}, Score("vqa_score", 0.75)),
        ({key: Verdict(None, "the judge gave no answer", "")}, Score("vqa_score", None, "the judge gave no answer")),
        ({}, Score("vqa_score", None, "the judge was not reached")),
    ):
        wanted = expected if caption is not None else Score("vqa_score", None, applies=False)
        assert borrowed_scores(["vqa-score"], task, verdicts)[1] == [wanted]
    assert scale_of("studio", "vqa_score") == (0.0, 1.0)


def test_every_images_prompt_and_every_benchmarks_scores_are_its_own():
    found = questions_of(["vqa-score"], EDIT, {1: "a" * 64, 2: "b" * 64})
    prompts = {d.index: d.prompt for d in suite("studio").deliverables(EDIT)}
    assert {key[0]: dict(q.slots)["caption"] for key, q in found} == prompts
    assert len(set(prompts.values())) == 2
    names = [name for entry in all_suites() for name in entry.lent.values()]
    assert len(names) == 6
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("own", "names", "message"),
    [
        (
            "servimage",
            ["ice"],
            "unknown benchmark 'ice': available are servimage, hype-edit-1, idea-bench, ice-bench, vqa",
        ),
        ("servimage", ["servimage"], "servimage already includes the questions of servimage"),
        ("printshop", ["servimage"], "printshop already includes the questions of servimage"),
        ("ice-bench", ["ice-bench"], "already includes the questions of ice-bench"),
        ("servimage", ["ice-bench", "ice-bench"], "duplicate 'ice-bench'"),
    ],
)
def test_questions_that_cannot_be_borrowed_are_an_error(own, names, message):
    with pytest.raises(ConfigError, match=message):
        check_borrowed(own, names)


DESCRIBED = """
title: Ours
licence: ours
source: ours
tasks: ours.jsonl
rubrics: {RUBRIC: [FIELD]}
thresholds: {FIELD: 1}
"""


def test_a_benchmark_of_files_borrows_all_but_what_it_asks_itself(tmp_path, monkeypatch):
    """Also ServImage's questions; two suites that ask with one rubric would overwrite each other's answers."""
    monkeypatch.setenv("LOCAL_BENCH_CONFIG_DIRS", str(tmp_path))
    (tmp_path / "suites").mkdir()
    for name, rubric, field in (("ours", "cns_edit", "preserved"), ("edits", "hype_edit", "changes_made")):
        text = DESCRIBED.replace("RUBRIC", rubric).replace("FIELD", field)
        (tmp_path / "suites" / f"{name}.yaml").write_text(text)
    for name in ALL:
        check_borrowed("ours", [name])
    check_borrowed("edits", ["servimage"])
    assert {key[1] for key, _ in questions_of(["servimage"], EDIT, {1: "a" * 64}, "edits")} >= {"veq_text", "cns_edit"}
    for own, other in (("ours", "servimage"), ("edits", "hype-edit-1")):
        with pytest.raises(ConfigError, match=f"{other} asks with the rubric '[a-z_]+', as another suite of this run"):
            questions_of([other], EDIT, {1: "a" * 64}, own)


@pytest.mark.parametrize(
    ("suite", "metrics", "message"),
    [
        ({"name": "ours"}, ["piqe", "entropy"], "'entropy' is a judge's score of ours and a metric"),
        ({"name": "ruled"}, [], "'rules' is the score of the hard rules and a judge's score of ruled"),
        ({"name": "whole"}, [], "'ice_composite' is ICE-Bench's score and a judge's score of whole"),
        (
            {"name": "lent", "questions_from": ["ice-bench"]},
            [],
            "score of lent and a judge's score of suite.questions_f",
        ),
        ({"name": "servimage"}, ["brf"], "'brf' is a judge's score of servimage and a metric"),
        ({"name": "studio", "questions_from": ["hype-edit-1"]}, ["hype_pass"], "score of suite.questions_from and a m"),
    ],
)
def test_two_scores_of_one_name_are_refused_before_a_run(tmp_path, monkeypatch, suite, metrics, message):
    """One would overwrite the other; also where a metric is added to a run."""
    pytest.importorskip("torch")
    monkeypatch.setenv("LOCAL_BENCH_CONFIG_DIRS", str(tmp_path))
    (tmp_path / "suites").mkdir()
    for name, field in {"ours": "entropy", "ruled": "rules", "whole": "ice_composite", "lent": "ice_vllmqa"}.items():
        (tmp_path / f"suites/{name}.yaml").write_text(DESCRIBED.replace("RUBRIC", "cns_edit").replace("FIELD", field))
    config = RunConfig(name="x", suite=suite, models=[{"card": "tiny-flux"}], metrics=metrics)
    for stages in (("generate",), ("measure",)):
        with pytest.raises(ConfigError, match=f"{message}.*: rename the field in the suite's rubrics or the plug-in"):
            run_stages(config, tmp_path / "run", stages)
    assert not (tmp_path / "run").exists()


def test_a_suite_may_inherit_from_a_benchmark_with_a_score_of_its_own(monkeypatch):
    class Ours(type(suite("idea-bench"))):
        name, title = "ours", "Ours: briefs"

    monkeypatch.setattr("local_bench.suites.registry._known", lambda: {"ours": "x:Ours"})
    monkeypatch.setattr("local_bench.suites.registry.load_object", lambda *_: Ours)
    for settings in ({"name": "studio"}, {"name": "ours", "path": "x"}):
        check_config(RunConfig(name="x", suite=settings, models=[{"card": "tiny-flux"}], metrics=[]), files=False)
    taken = RunConfig(name="x", suite={"name": "studio"}, models=[{"card": "tiny-flux"}], metrics=["idea_case"])
    with pytest.raises(ConfigError, match="'idea_case' is IDEA-Bench's score and a metric"):
        check_config(taken, files=False)


def test_every_benchmark_may_have_every_metric_and_all_other_questions():
    for entry in all_suites():
        others = [lender.name for lender in all_suites() if lender.lent and lender.questions != entry.questions]
        asked = {"name": entry.name, "questions_from": [*others, "vqa-score"]}
        model = {"card": "tiny-flux"}
        check_config(RunConfig(name="x", suite=asked, models=[model], metrics=metric_names()), files=False)


RAW = {"aes_v2.5": 5.0, "musiq_koniq": 60.0, "clip_cap": 0.3, "clip_src": 0.8, "l1_raw": 0.1}
SHOWN = replace(EDIT, reference_sha256=(), deliverables=("front",))


def derived(suite_name, task, scores, names=("ice-bench",), verdicts=None, repeat=1):
    images = [
        ImageResult(f"w{i}", "m", task, i, 1, "a" * 64, None, None, {s.name: s for s in scores})
        for i in range(1, repeat + 1)
    ]
    results = RunResults(images, {}, verdicts or {}, lambda _: None, lambda _: None)
    return list(derived_scores(suite_name, list(names), results))


def raw(**changed):
    values = RAW | {name.replace("_v25", "_v2.5"): value for name, value in changed.items()}
    return [Score(name, value) for name, value in values.items() if value is not None]


def test_ice_benchs_composite_of_one_image_of_another_benchmark():
    by_hand = 0.3 * 5 / 10 + 0.3 * 60 / 100 + 0.3 * (2 * 0.3 + 1) / 2 + 0.1 * (0.8 + 1 - 0.1) / 2
    answered = Score("ice_vllmqa", 1.0)
    [(work_id, score)] = derived("servimage", SHOWN, [*raw(), answered])
    assert (work_id, score.name, score.value) == ("w1", "ice_composite", pytest.approx(by_hand))
    [(_, of_text)] = derived("servimage", TEXT_ONLY, raw(clip_src=None, l1_raw=None))
    assert of_text.value == pytest.approx((5 / 10 + 60 / 100 + 2 * 0.3) / 3)


def test_ice_benchs_composite_is_unscored_with_the_reason_or_does_not_apply():
    unanswered = Score("ice_vllmqa", None, "the answer was cut off")
    small = Score("aes_v2.5:tiny-aesthetic", 5.0)
    [(_, score)] = derived("servimage", SHOWN, [*raw(aes_v25=None), unanswered, small])
    assert score == Score("ice_composite", None, "aes_v2.5 was not computed; vllmqa the answer was cut off")
    [(_, score)] = derived("servimage", EDIT, [*raw(), Score("ice_vllmqa", 1.0)])
    assert not score.applies, "what its reference shows is not stated"


def test_an_item_of_ice_bench_is_scored_by_the_recipe_of_its_task():
    item = replace(SHOWN, category="Depth-guided Generation")
    [(_, score)] = derived("ice-bench", item, [*raw(), Score("l1_depth", 0.9)], ("hype-edit-1",))
    assert score.value == pytest.approx(0.3 * 0.5 + 0.3 * 0.6 + 0.2 * 0.6 + 0.2 * 0.9)
    assert derived("ice-bench", replace(TEXT_ONLY, category="Text2Image"), raw(), ()) == [], "without other benchmarks"


def test_idea_benchs_score_of_a_case_is_shared_by_its_images():
    own = {"uid": "0014", "case_id": "0001"}
    case = replace(TEXT_ONLY, deliverables=("left", "right"), own=own, evaluation_points=("p",) * 6)
    yes = {1: (1, 1, 1, 0, 1, 1), 2: (1, 0, 1, 1, 1, 1), 3: (0, 0, 0, 0, 0, 0)}  # points: 3, 1 and 0 of 6
    verdicts = {
        "w1": {
            ("idea_question", k, repeat - 1): Verdict({"met": of[k]}, None, "")
            for repeat, of in yes.items()
            for k in range(6)
        }
    }
    found = derived("idea-bench", case, [], ("hype-edit-1",), verdicts, repeat=2)
    assert [(work_id, score.name) for work_id, score in found] == [("w1", "idea_case"), ("w2", "idea_case")]
    assert [score.value for _, score in found] == [pytest.approx(100 * (3 + 1 + 0) / 18)] * 2
    del verdicts["w1"]["idea_question", 2, 0]
    [(_, score), _] = derived("idea-bench", case, [], ("hype-edit-1",), verdicts, repeat=2)
    assert score == Score("idea_case", None, "1 of 18 answers are missing")
    del verdicts["w1"]["idea_question", 5, 2]
    verdicts["w1"]["idea_question", 2, 0] = Verdict({"met": 1}, None, "")
    [(_, score), _] = derived("idea-bench", case, [], ("hype-edit-1",), verdicts, repeat=2)
    assert score.value == pytest.approx(100 * 4 / 18), "its first level failed: the missing answer changes nothing"
