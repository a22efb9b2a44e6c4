"""vLLM's engine in a child of ours: the answers of the served one, and nothing lost or left when it goes down."""

import json
import os
import signal
import socket
import threading
import time
from contextlib import suppress
from itertools import cycle, islice
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from local_bench.core.errors import RunImageError
from local_bench.core.types import Collage, Question
from local_bench.judges.vlm.client import Client, ExternalServer
from local_bench.judges.vlm.embedded import Embedded
from local_bench.judges.vlm.judge import JudgeSpec, Unreachable, answers
from local_bench.judges.vlm.protocols import preparing
from local_bench.judges.vlm.vllm_process import Child

pytestmark = pytest.mark.server

JSON = JudgeSpec("tiny-qwen3-vl", "0" * 64, "float32", 16384, 32, 0)
LOGIT = JudgeSpec("tiny-qwen3-vl", "0" * 64, "float32", 16384, 32, 0, "logit")
SPECS = pytest.mark.parametrize("spec", [JSON, LOGIT], ids=["json", "logit"])


def _make_image(seed):
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (4, 6, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((120 + 30 * seed, 160), Image.Resampling.BICUBIC)


IMAGES = {f"p{i}": _make_image(i) for i in range(5)}
NAMES = list(IMAGES)


def _brf(image, i):
    return Question("brf", i, (image,), (("title", "T"), ("brief", "B"), ("point", f"No. {i}")), ("delivered",))


def _kinds():
    """One question after the other, of every kind, each image in turn."""
    for n, image in enumerate(cycle(NAMES)):
        other = NAMES[(n + 1) % len(NAMES)]
        yield _brf(image, n)
        yield _brf(image, n + 1000)
        yield Question("veq_text", 0, (image,), ())
        yield Question("veq_technical", 0, (image,), ())
        yield Question("cns_edit", 0, (image, other), (), ("result", "source"))
        yield Question("idea_question", n, (image, other), (("question", f"{n}?"),), collage=Collage((1, 1)))


def _distinct(n):
    seen = dict.fromkeys(islice(_kinds(), 4 * n))
    return list(enumerate(islice(seen, n)))


QUESTIONS = _distinct(60)
assert len({JSON.question_id(q, {}) for _, q in QUESTIONS}) == 60
TOO_LONG = Question("brf", 0, ("p0",), (("title", "T"), ("brief", "B"), ("point", "x y z " * 20_000)), ("delivered",))


@pytest.fixture(scope="module")
def embedded(judge_server, tmp_path_factory):
    log, prepared = tmp_path_factory.mktemp("embedded") / "engine.log", preparing(IMAGES.__getitem__, 32)
    with Embedded(log, judge_server.engine, prepared, 600, timeout_s=300, max_restarts=10) as transport:
        group = transport._process.pid
        assert _of_group(group)
        yield transport
        group = transport._process.pid
    assert _ended(group)


@pytest.fixture(scope="module")
def served(judge_server):
    with Client(
        ExternalServer(judge_server.base_url, judge_server.api_key), preparing(IMAGES.__getitem__, 32), None, 300
    ) as client:
        yield client


@pytest.fixture(scope="module")
def undisturbed(embedded):
    return dict(answers(embedded, JSON, QUESTIONS))


def _processes():
    """pid -> (state, parent, group)"""
    results = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            state, parent, group = path.read_text().rpartition(")")[2].split()[:3]
            results[int(path.parent.name)] = (state, int(parent), int(group))
    return results


def _of_group(group):
    return [pid for pid, (state, _, g) in _processes().items() if g == group and state != "Z"]


def _ended(group, seconds=20):
    deadline = time.monotonic() + seconds
    while _of_group(group) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not _of_group(group)


def _engine_of(embedded):
    """The process that the model is in: the guard's only child."""
    guard = embedded._process.pid
    (pid,) = [pid for pid, (_, parent, _) in _processes().items() if parent == guard]
    return pid


@SPECS
def test_the_answers_are_the_served_ones(embedded, served, spec):
    ours = dict(answers(embedded, spec, QUESTIONS))
    theirs = dict(answers(served, spec, QUESTIONS))
    assert set(ours) == set(theirs) == set(range(60))
    assert {key: v for key, v in ours.items() if v != theirs[key]} == {}
    assert all(v.answer is not None for v in ours.values())
    # They are no constants: what changes places among the questions is seen.
    if spec is LOGIT:
        assert len({str(v.labels) for v in ours.values()}) > 40
    else:
        assert {v.answer["met"] for v in ours.values() if "met" in v.answer} == {0, 1}


@SPECS
def test_a_question_that_is_too_long_is_refused_and_the_others_are_answered(embedded, served, spec):
    questions = [*QUESTIONS[:3], ("long", TOO_LONG), *QUESTIONS[3:6]]
    for transport in (embedded, served):
        results = dict(answers(transport, spec, questions))
        assert results["long"].unscored == "the judge refused the question"
        assert results["long"].raw
        assert [results[i].unscored for i in range(6)] == [None] * 6


def test_repeated_prompts_are_read_from_the_cache_and_one_at_a_time_gives_the_same_answers(embedded, undisturbed):
    before = embedded.counters()
    list(answers(embedded, LOGIT, QUESTIONS))
    between = embedded.counters()
    list(answers(embedded, LOGIT, QUESTIONS))
    after = embedded.counters()
    assert before["prompt_tokens"] < between["prompt_tokens"] < after["prompt_tokens"]
    cached = after["cached_tokens"] - between["cached_tokens"]
    assert 0 < cached <= after["prompt_tokens"] - between["prompt_tokens"]
    assert dict(answers(embedded, JSON, QUESTIONS[:12], at_once=1)) == {i: undisturbed[i] for i in range(12)}


def test_after_a_kill_the_remaining_questions_get_the_same_answers(embedded, undisturbed):
    group, results, left = embedded._process.pid, {}, dict(QUESTIONS)
    killed = 0
    while left:
        try:
            for key, verdict in answers(embedded, JSON, list(left.items()), at_once=8):
                assert key not in results  # nothing twice
                results[key] = verdict
                del left[key]
                if len(results) == 20 and not killed:
                    os.kill(_engine_of(embedded), signal.SIGKILL)
                    killed = len(results)
        except Unreachable:
            assert killed <= len(results) < 60
            with pytest.raises(Unreachable):
                next(answers(embedded, JSON, QUESTIONS))
            embedded.restart()
            assert _ended(group)
            assert embedded._process.pid != group
    assert killed
    assert results == undisturbed


def test_an_abandoned_call_does_not_affect_the_next(embedded, undisturbed):
    group = embedded._process.pid
    pending = answers(embedded, JSON, QUESTIONS)
    first, verdict = next(pending)
    assert verdict == undisturbed[first]
    pending.close()
    assert _ended(group)  # an engine with abandoned requests is ended, with all its processes
    with pytest.raises(Unreachable, match="it has ended"):
        next(answers(embedded, JSON, QUESTIONS))
    embedded.restart()
    assert dict(answers(embedded, JSON, QUESTIONS)) == undisturbed


def test_a_call_abandoned_between_two_requests_ends_the_engine(monkeypatch):
    """No request is in flight at that moment, but the feeder is about to send the next request."""
    ours, theirs = (Connection(end.detach()) for end in socket.socketpair())
    stopped = []
    monkeypatch.setattr(Child, "alive", lambda _: not stopped)
    monkeypatch.setattr(Child, "stop", lambda _: stopped.append(True))
    embedded = Embedded(Path(), None, preparing(IMAGES.__getitem__, 32), start_timeout_s=1, timeout_s=5)
    embedded._end = ours
    may_go_on = threading.Event()
    reply = {"text": '{"met": 1}', "finish_reason": "stop", "logprobs": None}

    def questions():
        yield QUESTIONS[0]
        theirs.send_bytes(json.dumps({"replies": [[0, reply]], "counters": {}}).encode())
        may_go_on.wait(20)
        yield QUESTIONS[1]

    pending = answers(embedded, JSON, questions())
    assert next(pending)[0] == 0
    pending.close()
    may_go_on.set()
    assert stopped
    with pytest.raises(Unreachable, match="it has ended"):
        next(answers(embedded, JSON, QUESTIONS))


def test_an_unreadable_image_is_an_error_and_another_exception_of_a_question_leaves_the_others(embedded, monkeypatch):
    """An error with a message for the user is raised where the answers are read, and the engine goes on."""
    prepared, results = embedded.prepared, {}

    def of_run(shown):
        if "no such picture" in shown.images:
            raise RunImageError("the picture is damaged", "damaged")
        return prepared(shown)

    questions = [*QUESTIONS[:2], ("none", _brf("no such picture", 0)), *QUESTIONS[2:4]]
    with monkeypatch.context() as patch:
        patch.setattr(embedded, "prepared", of_run)
        with pytest.raises(RunImageError, match="the picture is damaged"):
            results.update(answers(embedded, JSON, questions))
    assert set(results) == {0, 1}
    results = dict(answers(embedded, JSON, questions))
    assert results.pop("none").unscored == "failed while judging (KeyError: 'no such picture')"
    assert embedded.alive()
    assert results == dict(answers(embedded, JSON, QUESTIONS[:4]))
