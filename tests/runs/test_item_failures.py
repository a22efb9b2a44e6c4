"""An exception of one item makes that item unscored; the others have the bytes, answers and scores of a run without it.
What fails for every item in the same way ends the phase, and nothing of it is stored."""

import errno
import pickle

import pytest

from local_bench.core.errors import (
    MAX_EQUAL,
    ConfigError,
    FirstFailures,
    LocalBenchError,
    PartFailed,
    StorageError,
    is_of_item,
)
from local_bench.generators import tokenizers
from local_bench.generators.flux import FluxKontext
from local_bench.generators.sd3 import StableDiffusion3
from local_bench.generators.staged import Staged
from local_bench.judges.metrics.embeddings import ClipNetwork
from local_bench.judges.metrics.pixels import PixelMetric
from local_bench.judges.vlm.judge import JudgeSpec
from local_bench.judges.vlm.local import Local
from local_bench.runs import stages
from local_bench.runs.config import RunConfig
from local_bench.runs.judge import PACE
from local_bench.runs.plan import without_control_tokens
from local_bench.runs.rundir import RunDir
from local_bench.runs.worker import LaunchedBatch, OutOfDeviceMemory
from tests.orders import Recorded, noise, order, write_orders
from tests.small_references import small_references
from tests.stages import run_stages

CRASH = "crash"
"""Prompts with this word are those of the item for which an exception is raised."""


@pytest.fixture(scope="module")
def orders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("orders")
    lines = []
    for i, text in enumerate(("Red.", f"Blue {CRASH}.", "Green.", "White.")):
        noise(folder / f"{i}.png", i, (64, 64))
        lines.append(order(f"t{i}", brief=text, source_image=f"{i}.png"))
    write_orders(folder / "tasks.jsonl", lines)
    write_orders(folder / "many.jsonl", (order(f"t{i}", brief=f"Number {i}.") for i in range(40)))
    return folder


def config(folder, card="tiny-flux-kontext", tasks="tasks.jsonl", **more):
    models = [{"card": card, "height": 64, "width": 64, "num_inference_steps": 2}]
    suite = {"name": "servimage", "path": str(folder / tasks)}
    more = {"models": models, "metrics": [], "engine": {"device": "cpu", "batch_size": 2}} | more
    return RunConfig(name="t", suite=suite, **more)


def generate(run_dir, *arguments, progress=None, **more):
    return run_stages(config(*arguments, **more), run_dir, ("generate",), progress)


def rows(run_dir, query="SELECT task_id, state, pixels_sha256, unscored, identity FROM candidates ORDER BY task_id"):
    with RunDir.open(run_dir) as run:
        return [tuple(row) for row in run.store.rows(query)]


@pytest.fixture(scope="module")
def clean(orders, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "clean"
    generate(path, orders)
    return path


def except_for(task_id, run_rows):
    return [row for row in run_rows if row[0] != task_id]


def plant(monkeypatch, of, name, concerns, error=None):
    """Make the method `name` of the class `of` raise for calls that `concerns`."""
    original = getattr(of, name)

    def planted(self, *arguments, **more):
        if concerns(self, *arguments):
            raise error or ValueError("planted in one item\nwith a second line")
        return original(self, *arguments, **more)

    monkeypatch.setattr(of, name, planted)


def has_word(request):
    return CRASH in request.prompt


STAGES = {
    "encoding": (FluxKontext, "encode_text", lambda _, request: has_word(request)),
    "generating": (Staged, "denoise", lambda _, items: any(has_word(item.request) for item in items)),
    "storing": (LaunchedBatch, "store", lambda self, _, i: has_word(self.requests[i])),
}


@pytest.mark.parametrize("step", STAGES)
def test_a_package_that_exits_concerns_one_image(step, orders, clean, tmp_path, monkeypatch):
    plant(monkeypatch, *STAGES[step], SystemExit(7))
    generate(tmp_path / "run", orders)
    crashed = rows(tmp_path / "run")
    assert crashed[1][:4] == ("t1", "unscored", None, f"failed while {step} (SystemExit: 7)")
    assert except_for("t1", crashed) == except_for("t1", rows(clean))


def test_a_package_that_exits_while_a_model_is_loaded_leaves_the_other_models(orders, tmp_path, monkeypatch):
    models = [{"card": card, "height": 64, "width": 64, "num_inference_steps": 2} for card in ("tiny-sd3", "tiny-flux")]
    plant(monkeypatch, StableDiffusion3, "load_encoder", lambda *_: True, SystemExit(0))
    with pytest.raises(
        PartFailed, match=r"tiny-sd3: a package ended the work \(SystemExit: 0\): finished work is kept"
    ):
        generate(tmp_path / "run", orders, models=models)
    states = set(rows(tmp_path / "run", "SELECT model, state FROM candidates"))
    assert states == {("tiny-sd3", "planned"), ("tiny-flux", "done")}


@pytest.mark.parametrize("step", STAGES)
def test_a_crash_of_one_image_leaves_the_others_and_the_next_session_repeats_it(
    step, orders, clean, tmp_path, monkeypatch
):
    with monkeypatch.context() as patched:
        plant(patched, *STAGES[step])
        outcome = generate(tmp_path / "run", orders)
    crashed = rows(tmp_path / "run")
    reason = f"failed while {step} (ValueError: planted in one item)"
    assert crashed[1][:4] == ("t1", "unscored", None, reason)
    assert except_for("t1", crashed) == except_for("t1", rows(clean))
    assert [(items.reasons, items.n) for items in outcome.unscored] == [(((reason, 1),), 4)]
    generate(tmp_path / "run", orders)
    assert rows(tmp_path / "run") == rows(clean)


def test_an_input_image_that_cannot_be_encoded_concerns_its_tasks_alone(orders, clean, tmp_path, monkeypatch):
    with RunDir.open(clean) as run:
        (bad,) = (row.work["pictures"][0] for row in run.store.candidates() if row.task_id == "t2")
    plant(monkeypatch, FluxKontext, "encode_image", lambda _, image, sampler: image.sha256 == bad)
    generate(tmp_path / "run", orders)
    crashed = rows(tmp_path / "run")
    assert crashed[2][1:4] == ("unscored", None, "failed while encoding (ValueError: planted in one item)")
    assert except_for("t2", crashed) == except_for("t2", rows(clean))


def test_a_crash_while_decoding_is_found_in_its_batch(orders, clean, tmp_path, monkeypatch):
    """The decoder has no prompt: the image is recognised by its latents."""
    seen, denoise = set(), Staged.denoise

    def remember(self, items):
        latents = denoise(self, items)
        seen.update(x.float().sum().item() for item, x in zip(items, latents, strict=True) if has_word(item.request))
        return latents

    monkeypatch.setattr(Staged, "denoise", remember)
    plant(monkeypatch, Staged, "pixels", lambda _, latents, s: any(x.float().sum().item() in seen for x in latents))
    generate(tmp_path / "run", orders)
    crashed = rows(tmp_path / "run")
    assert crashed[1][1] == "unscored"
    assert except_for("t1", crashed) == except_for("t1", rows(clean))


def test_what_fails_for_every_image_ends_the_model_and_nothing_is_stored(orders, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        plant(patched, Staged, "denoise", lambda *_: True)
        with pytest.raises(LocalBenchError, match=f"none of the first {MAX_EQUAL} images of tiny-flux.*planted.*check"):
            generate(tmp_path / "run", orders, "tiny-flux", "many.jsonl")
    assert {row[1] for row in rows(tmp_path / "run")} == {"planned"}
    generate(tmp_path / "run", orders, "tiny-flux", "many.jsonl")
    assert {row[1] for row in rows(tmp_path / "run")} == {"done"}


def test_a_model_that_fails_for_every_image_leaves_the_others(orders, tmp_path, monkeypatch):
    models = [{"card": card, "height": 64, "width": 64, "num_inference_steps": 2} for card in ("tiny-sd3", "tiny-flux")]
    progress = Recorded()
    plant(monkeypatch, StableDiffusion3, "denoise", lambda *_: True)
    with pytest.raises(LocalBenchError, match=f"none of the first {MAX_EQUAL} images of tiny-sd3"):
        generate(tmp_path / "run", orders, tasks="many.jsonl", models=models, progress=progress)
    assert any(f"none of the first {MAX_EQUAL} images of tiny-sd3" in note for note in progress.notes)
    assert set(rows(tmp_path / "run", "SELECT model, state FROM candidates")) == {
        ("tiny-sd3", "planned"),
        ("tiny-flux", "done"),
    }


@pytest.mark.parametrize("error", [StorageError("the disk is full"), OSError(errno.ENOSPC, "full"), MemoryError()])
def test_an_error_that_is_not_of_the_item_ends_the_session(error, orders, tmp_path, monkeypatch):
    plant(monkeypatch, FluxKontext, "encode_text", lambda _, request: has_word(request), error)
    with pytest.raises((LocalBenchError, OSError)):
        generate(tmp_path / "run", orders)
    assert all(row[1] != "unscored" for row in rows(tmp_path / "run"))


OF_ITEM = (ValueError("x"), RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"))
OF_ITEM += (AssertionError(), OSError("image file is truncated"))
OF_SESSION = (RuntimeError("CUDA error: device-side assert triggered"), RuntimeError("CUDA out of memory"))
OF_SESSION += (OutOfDeviceMemory("x"), OSError(errno.EIO, "Input/output error"))
OF_SESSION += (ConfigError("x"), KeyboardInterrupt())


def test_which_errors_are_of_an_item():
    from vllm.v1.engine.exceptions import EngineDeadError  # here, as it takes seconds

    assert [error for error in (*OF_ITEM, *OF_SESSION, EngineDeadError()) if is_of_item(error)] == [*OF_ITEM]


def test_first_failures_are_held_back_until_something_succeeds():
    first = FirstFailures[int]("images", "check")
    assert first.failed("a", 1) == first.failed("a", 2, 3) == []
    assert first.succeeded(4) == [1, 2, 3, 4]
    assert [first.failed("a", i) for i in range(2 * MAX_EQUAL)] == [[i] for i in range(2 * MAX_EQUAL)]
    mixed = FirstFailures[int]("images", "check")
    assert [mixed.failed(f"reason {i % 2}", i) for i in range(2 * MAX_EQUAL)] == [[]] * 2 * MAX_EQUAL
    assert mixed.released() == list(range(2 * MAX_EQUAL))
    error = pickle.loads(pickle.dumps(PartFailed("none of them", "images of x")))  # from a worker
    assert (str(error), error.what) == ("none of them", "images of x")


# ---- judges and metrics


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """Imported images, each with its own content; a function that runs stages over them."""
    folder = tmp_path_factory.mktemp("judged")
    lines = []
    for i in range(6):
        noise(folder / f"images/t{i}/1.png", 100 + i)
        lines.append(order(f"t{i}", brief=f"Blue {CRASH}." if i == 2 else f"Red {i}."))
    write_orders(folder / "tasks.jsonl", lines)

    def run(path, stages, **more):
        models = [{"card": "imported", "name": "theirs", "imported": {"images": str(folder / "images")}}]
        return run_stages(config(folder, models=models, **more), path, stages)

    return run


JUDGE = {"judge": {"card": "mini-judge", "transport": "local", "canaries": False}}
VERDICTS = """SELECT c.task_id, v.rubric, v.point, v.answer, v.unscored FROM verdicts v
              JOIN candidates c USING (work_id) ORDER BY 1, 2, 3"""


@pytest.fixture(scope="module")
def answered(judged, tmp_path_factory):
    """The verdicts of a run without a crash."""
    path = tmp_path_factory.mktemp("clean") / "run"
    judged(path, ("generate", "judge"), **JUDGE)
    return rows(path, VERDICTS)


def requests_in(arguments):
    flat = [part for argument in arguments for part in (argument if isinstance(argument, list) else [argument])]
    return [part for part in flat if hasattr(part, "text")]


@pytest.mark.parametrize(
    ("of", "name", "concerns"),
    [
        (JudgeSpec, "requests", lambda _, question: CRASH in dict(question.slots).get("brief", "")),
        (Local, "_prompt", lambda _, request, __: CRASH in request.text),
        (Local, "_generate", lambda *arguments: any(CRASH in request.text for request in requests_in(arguments))),
    ],
)
def test_a_crash_of_one_question_leaves_the_others(of, name, concerns, judged, answered, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        plant(patched, of, name, concerns)
        judged(tmp_path / "run", ("generate", "judge"), **JUDGE)
    verdicts = rows(tmp_path / "run", VERDICTS)
    failed = [row for row in verdicts if row[4]]
    assert {(row[0], row[4]) for row in failed} == {("t2", "failed while judging (ValueError: planted in one item)")}
    questions = {row[:3] for row in failed}
    assert [row for row in verdicts if not row[4]] == [row for row in answered if row[:3] not in questions]
    judged(tmp_path / "run", ("judge",), **JUDGE)
    assert rows(tmp_path / "run", VERDICTS) == answered


def test_a_judge_that_answers_no_question_ends_and_nothing_is_stored(judged, tmp_path, monkeypatch):
    monkeypatch.setattr("local_bench.core.errors.MAX_EQUAL", 8)
    with monkeypatch.context() as patched:
        plant(patched, Local, "_prompt", lambda *_: True)
        with pytest.raises(LocalBenchError, match=r"none of the first 8 questions to mini-judge.*planted in one item"):
            judged(tmp_path / "run", ("generate", "judge"), **JUDGE)
    assert rows(tmp_path / "run", VERDICTS) == []
    judged(tmp_path / "run", ("judge",), **JUDGE)
    verdicts = rows(tmp_path / "run", VERDICTS)
    assert all(row[3] for row in verdicts)
    with RunDir.open(tmp_path / "run") as run:
        (pace,) = run.store.notes(PACE).values()
    assert pace["n"] == len(verdicts)
    assert pace["seconds"] > 0


def test_a_judge_that_answers_no_question_leaves_the_other_judges_to_answer(judged, answered, tmp_path, monkeypatch):
    monkeypatch.setattr("local_bench.core.errors.MAX_EQUAL", 8)
    judges = {"judge": JUDGE["judge"] | {"name": "first", "seed": 1}, "panel": [JUDGE["judge"]]}
    with monkeypatch.context() as patched:
        plant(patched, JudgeSpec, "requests", lambda spec, _: spec.seed == 1)
        with pytest.raises(LocalBenchError, match="none of the first 8 questions to first has a result"):
            judged(tmp_path / "run", ("generate", "judge"), **judges)
    assert rows(tmp_path / "run", VERDICTS) == answered
    judged(tmp_path / "run", ("judge",), **judges)
    assert len(rows(tmp_path / "run", VERDICTS)) == 2 * len(answered)


def test_a_judge_without_any_answer_can_be_changed(judged, tmp_path, monkeypatch):
    """The message names settings to check; the images are kept."""
    monkeypatch.setattr("local_bench.core.errors.MAX_EQUAL", 8)
    with monkeypatch.context() as patched:
        plant(patched, Local, "_prompt", lambda *_: True)
        with pytest.raises(LocalBenchError, match="none of the first 8 questions"):
            judged(tmp_path / "run", ("generate", "judge"), **JUDGE)
    judged(tmp_path / "run", ("judge",), judge=JUDGE["judge"] | {"max_tokens": 300})
    assert all(row[3] for row in rows(tmp_path / "run", VERDICTS))
    with pytest.raises(ConfigError, match=r"judge\.max_tokens: 300 in the run, null now"):  # it has answered
        judged(tmp_path / "run", ("judge",), **JUDGE)


def test_checks_that_a_judge_does_not_answer_have_no_result_and_are_repeated(judged, tmp_path, monkeypatch):
    monkeypatch.setattr("local_bench.core.errors.MAX_EQUAL", 8)
    checked = {"judge": JUDGE["judge"] | {"canaries": True}}
    with monkeypatch.context() as patched:
        plant(patched, Local, "_prompt", lambda *_: True)
        with pytest.raises(LocalBenchError, match="none of the first 8 questions"):
            judged(tmp_path / "run", ("generate", "judge"), **checked)
    with RunDir.open(tmp_path / "run") as run:
        assert [set(checks) for checks in run.store.notes("canary").values()] == [{"judge"}]
    judged(tmp_path / "run", ("judge",), **checked)
    with RunDir.open(tmp_path / "run") as run:
        (checks,) = run.store.notes("canary").values()
    assert checks["attacks"]["n"] + checks["attacks"]["n_unscored"] == 15
    assert checks["attacks"]["n"] > 0
    assert checks["repeats"]["sessions"] == 1


METRICS = {"metrics": ["entropy", "clip_cap:mini-clip"]}
SCORES = """SELECT c.task_id, s.name, s.value, s.unscored FROM scores s JOIN candidates c USING (work_id)
            WHERE kind = 'metric' ORDER BY 1, 2"""


def test_a_package_that_exits_concerns_one_score_or_one_metric(judged, tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL_BENCH_CACHE", str(tmp_path / "cache"))  # no features of other runs
    with monkeypatch.context() as patched:
        plant(patched, PixelMetric, "measure", lambda _, seen: CRASH in seen.caption, SystemExit(7))
        plant(patched, ClipNetwork, "prepare", lambda _, images, text: CRASH in (text or ""), SystemExit(7))
        judged(tmp_path / "run", ("generate", "measure"), **METRICS)
    reasons = [row[2:] for row in rows(tmp_path / "run", SCORES) if row[0] == "t2"]
    assert reasons == [(None, "failed while measuring (SystemExit: 7)")] * 2
    for method in ("run", "open"):
        with monkeypatch.context() as patched:
            patched.setenv("LOCAL_BENCH_CACHE", str(tmp_path / method))
            plant(patched, ClipNetwork, method, lambda *_: True, SystemExit(7))
            with pytest.raises(PartFailed, match=r"cannot be used on cpu \(SystemExit: 7\): check its files"):
                judged(tmp_path / f"run-{method}", ("generate", "measure"), **METRICS)
        assert {row[1] for row in rows(tmp_path / f"run-{method}", SCORES)} == {"entropy"}


@pytest.mark.parametrize(
    ("of", "name", "concerns", "metric"),
    [
        (PixelMetric, "measure", lambda _, seen: CRASH in seen.caption, "entropy"),
        (ClipNetwork, "prepare", lambda _, images, text: CRASH in (text or ""), "clip_cap:mini-clip"),
    ],
)
def test_a_crash_of_one_score_leaves_the_others(of, name, concerns, metric, judged, tmp_path, monkeypatch):
    judged(tmp_path / "clean", ("generate", "measure"), **METRICS)
    monkeypatch.setenv("LOCAL_BENCH_CACHE", str(tmp_path / "cache"))  # no features of the first run
    with monkeypatch.context() as patched:
        plant(patched, of, name, concerns)
        judged(tmp_path / "run", ("generate", "measure"), **METRICS)
    expected = rows(tmp_path / "clean", SCORES)
    reason = "failed while measuring (ValueError: planted in one item)"
    assert rows(tmp_path / "run", SCORES) == [
        (*row[:2], None, reason) if row[:2] == ("t2", metric) else row for row in expected
    ]
    judged(tmp_path / "run", ("measure",), **METRICS)
    assert rows(tmp_path / "run", SCORES) == expected


@pytest.mark.parametrize(
    ("of", "name", "other", "sentence"),
    [
        (
            PixelMetric,
            "measure",
            "clip_cap:mini-clip",
            r"none of the first 3 scores of entropy has a result, .*planted",
        ),
        (ClipNetwork, "open", "entropy", r"clip_cap:mini-clip: the metric's network cannot be used on cpu .*planted"),
    ],
)
def test_a_metric_that_fails_for_every_image_leaves_the_other_phases_complete(
    of, name, other, sentence, judged, answered, tmp_path, monkeypatch
):
    """It ended the run before the judge had begun, and cannot be removed from the config of the run."""
    monkeypatch.setattr("local_bench.core.errors.MAX_EQUAL", 3)
    monkeypatch.setenv("LOCAL_BENCH_CACHE", str(tmp_path / "cache"))  # no features of other runs
    with monkeypatch.context() as patched:
        plant(patched, of, name, lambda *_: True)
        with pytest.raises(LocalBenchError, match=sentence):
            judged(tmp_path / "run", stages.STAGES, **METRICS | JUDGE)
    assert rows(tmp_path / "run", VERDICTS) == answered
    assert {row[1] for row in rows(tmp_path / "run", SCORES)} == {other}
    assert rows(tmp_path / "run", "SELECT count(*) FROM decisions") == [(6,)]
    judged(tmp_path / "run", stages.STAGES, **METRICS | JUDGE)
    judged(tmp_path / "clean", ("generate", "measure"), **METRICS)
    assert rows(tmp_path / "run", SCORES) == rows(tmp_path / "clean", SCORES)


# ---- texts and images that no model can process


TOKENIZERS = {
    "clip": tokenizers.clip_tokenizer,
    "t5": tokenizers.t5_tokenizer,
    "qwen": tokenizers.qwen_tokenizer,
    "qwen_vl": lambda: tokenizers.qwen_vl_processor().tokenizer,
    "mistral": lambda: tokenizers.pixtral_processor().tokenizer,
    "omnigen": tokenizers.llama_tokenizer,
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_control_tokens_in_a_text_are_read_as_text(name):
    tokenizer = TOKENIZERS[name]()
    for token in {*tokenizer.all_special_tokens, *tokenizer.added_tokens_encoder}:
        ids = tokenizer(f"a{token}b", add_special_tokens=False).input_ids
        assert tokenizer.convert_tokens_to_ids(token) in ids, token
        ids = tokenizer(without_control_tokens(f"a{token}b"), add_special_tokens=False).input_ids
        assert tokenizer.convert_tokens_to_ids(token) not in ids, token


SPLIT = {
    "<|image_pad|> and <|vision_start|>": "< |image_pad|> and < |vision_start|>",
    "<img><|image_1|></img>": "< img>< |image_1|>< /img>",
    "</think><tool_call>": "< /think>< tool_call>",
    "[IMG][/INST] [IMG_END]": "[ IMG][ /INST] [ IMG_END]",
    "a </s><extra_id_12>": "a < /s>< extra_id_12>",
    "[[IMG]": "[[ IMG]",
}
UNCHANGED = ("a < b | c > d", "<b>bold</b>", "[image]", "<3", "1 <| 2", "[PNG]", "<|>")


def test_control_tokens_are_split_by_a_visible_space_and_other_text_is_unchanged():
    for text, split in (SPLIT | dict(zip(UNCHANGED, UNCHANGED, strict=True))).items():
        assert without_control_tokens(text) == without_control_tokens(split) == split


@pytest.mark.parametrize("card", ["tiny-qwen-image-edit", "tiny-omnigen", "tiny-flux2"])
def test_a_brief_with_control_tokens_is_generated(card, tmp_path, monkeypatch):
    small_references(monkeypatch.setattr)
    noise(tmp_path / "source.png", 0, (64, 64))
    text = "Draw <|image_pad|><|vision_start|><img><|image_1|></img>[IMG]</s> in red."
    write_orders(tmp_path / "tasks.jsonl", [order("t", brief=text, title="<|im_end|>", source_image="source.png")])
    progress = Recorded()
    generate(tmp_path / "run", tmp_path, card, progress=progress)
    with RunDir.open(tmp_path / "run") as run:
        (row,) = run.store.candidates()
    assert row.state == "done"
    assert "< |image_pad|>" in row.prompt == row.work["prompt"]
    assert any("1 prompt contains control tokens" in note for note in progress.notes)


@pytest.mark.parametrize(
    ("card", "sizes", "limit"),
    [
        ("tiny-qwen-image-edit", [(3000, 10), (2, 500)], "whose longer side is at most 100 times the shorter one"),
        ("tiny-flux2", [(20, 30)], "of at least 64 pixels a side"),
    ],
)
def test_an_input_image_beyond_a_models_limits_is_unscored_in_the_plan(card, sizes, limit, tmp_path, monkeypatch):
    small_references(monkeypatch.setattr)
    images = [*sizes, (64, 64)]
    for i, size in enumerate(images):
        noise(tmp_path / f"{i}.png", i, size)
    write_orders(tmp_path / "tasks.jsonl", [order(f"t{i}", source_image=f"{i}.png") for i in range(len(images))])
    generate(tmp_path / "run", tmp_path, card)
    *bad, good = rows(tmp_path / "run")
    assert good[1] == "done"
    for row, (width, height) in zip(bad, sizes, strict=True):
        assert row[1] == "unscored"
        assert f"{limit}, and one of this order's is {width} x {height}" in row[3]
