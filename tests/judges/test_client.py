"""The client against a mock transport: what is retried, what is unscored, what is never guessed."""

import asyncio
import json
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx2
import pytest
import tenacity
from PIL import Image
from pydantic import SecretStr

from local_bench.core.errors import ImageError, LocalBenchError
from local_bench.core.types import Question
from local_bench.judges.vlm.client import MAX_CONCURRENCY, Client, concurrently
from local_bench.judges.vlm.judge import JudgeSpec, Unreachable, answers
from local_bench.judges.vlm.protocols import preparing

SPEC = JudgeSpec("card", "0" * 64, "float32", 16384, 32, 0)
QUESTIONS = [
    (i, Question("brf", i, (f"{i}",), (("title", "T"), ("brief", "B"), ("point", f"<{i}>")), ("delivered",)))
    for i in range(20)
]


def make_image(sha):
    return Image.new("RGB", (32, 32))


@dataclass
class Here:
    base_url: str = "http://judge/v1"
    api_key: SecretStr | None = SecretStr("secret")  # noqa: RUF009
    model: str = "judge"
    content_ids: bool = True
    up: bool = True

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def alive(self) -> bool:
        return self.up

    def restart(self) -> None:
        raise AssertionError


def reply(content='{"met":1}', finish="stop"):
    return httpx2.Response(200, json={"choices": [{"message": {"content": content}, "finish_reason": finish}]})


def point_of(request):
    text = json.loads(request.content)["messages"][1]["content"][-1]["text"]
    return int(text.split("\n<")[1].split(">")[0])


def verdicts_of(handler, server=None, in_flight=4, timeout_s=5.0, load=make_image, questions=QUESTIONS):
    """What was answered, and what it ended in."""
    results = {}
    transport = httpx2.MockTransport(handler)
    with Client(server or Here(), preparing(load, 32), in_flight, timeout_s, transport=transport) as client:
        try:
            for key, verdict in answers(client, SPEC, questions):
                results[key] = verdict
        except (Unreachable, LocalBenchError) as e:
            return results, e
    return results, None


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr("local_bench.judges.vlm.client._backoff", tenacity.wait_none())


def test_the_next_request_is_on_its_way_before_the_caller_has_a_reply():
    """Otherwise the server has less to do while replies are stored."""
    begun, seen = [], []

    async def answer(request):
        begun.append(request)
        await asyncio.sleep(0)
        return request

    async def ask():
        async for replies in concurrently(iter(zip("abc", range(3), strict=True)), answer, 1):
            seen.append((replies, len(begun)))

    asyncio.run(ask())
    assert seen == [([("a", 0)], 2), ([("b", 1)], 3), ([("c", 2)], 3)]


@pytest.mark.parametrize(("in_flight", "least", "most"), [(3, 3, 3), (None, 33, MAX_CONCURRENCY)])
def test_every_question_is_answered_once_within_the_concurrency_limit(in_flight, least, most):
    running, reached, keys = 0, 0, set()

    async def handler(request):
        nonlocal running, reached
        keys.add(request.headers["authorization"])
        running += 1
        reached = max(reached, running)
        await asyncio.sleep(0.01)
        running -= 1
        return reply()

    questions = [((n, i), q) for n in range(15) for i, q in QUESTIONS]
    results, error = verdicts_of(handler, in_flight=in_flight, questions=questions)
    assert (error, len(results), keys) == (None, 300, {"Bearer secret"})
    assert least <= reached <= most


@pytest.mark.parametrize("fault", [httpx2.ConnectError, httpx2.ReadTimeout])
def test_transport_errors_are_retried(fault):
    """Those that no server can cause in tests/judges/test_hostile.py."""
    tries = Counter()

    def handler(request):
        point = point_of(request)
        tries[point] += 1
        if tries[point] < 3:
            raise fault("gone")
        return reply()

    results, error = verdicts_of(handler)
    assert error is None
    assert all(v.answer == {"met": 1} for v in results.values())
    assert set(tries.values()) == {3}


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_asks_to_wait_is_waited_for(status, monkeypatch):
    """More often than other faults are retried, and as long as it says, in seconds or until a date."""
    delays, real = [], asyncio.sleep

    async def sleep(seconds, *_):
        delays.append(seconds)
        await real(0)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    until = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    waits = [{"Retry-After": "7"}, {"Retry-After": until}, {"Retry-After": "soon"}, {}] * 2
    responses = iter([*(httpx2.Response(status, headers=headers) for headers in waits), reply()])
    results, error = verdicts_of(lambda _: next(responses), questions=QUESTIONS[:1], in_flight=1)
    assert (set(results), error) == ({0}, None)
    assert (delays.count(7.0), sum(25 < seconds <= 30 for seconds in delays)) == (2, 2)


def test_a_slow_server_that_answers_steadily_is_waited_for():
    """One question at a time, so that the last one waits five times as long as an answer may take."""
    turn = asyncio.Lock()

    async def handler(request):
        async with turn:
            await asyncio.sleep(0.1)
        return reply()

    results, error = verdicts_of(handler, in_flight=20, timeout_s=0.4)
    assert (set(results), error) == (set(range(20)), None)


def test_a_server_that_stops_answering_is_not_waited_for():
    async def handler(request):
        if point_of(request) > 3:
            await asyncio.sleep(60)
        return reply()

    results, error = verdicts_of(handler, in_flight=2, timeout_s=0.3)
    assert isinstance(error, Unreachable)
    assert "no answer within 0.3 s" in str(error)
    assert set(results) == set(range(4))


def test_redirects_within_the_server_are_followed():
    paths = []

    def handler(request):
        paths.append(request.url.path)
        if len(paths) <= 2:
            return httpx2.Response(307, headers={"Location": f"/moved{request.url.path}"})
        return reply()

    results, error = verdicts_of(handler, questions=QUESTIONS[:1])
    assert (set(results), error) == ({0}, None)
    assert paths[-1] == "/moved/moved/v1/chat/completions"
    results, error = verdicts_of(lambda request: httpx2.Response(308, headers={"Location": "/round"}))
    assert "more than 5 redirects" in str(error)


@pytest.mark.parametrize("location", ["http://[", "http://judge:port/", "//\x7f", "http://a" + "b" * 70_000])
def test_a_redirect_to_an_invalid_address_is_an_error(location):
    results, error = verdicts_of(lambda request: httpx2.Response(307, headers={"Location": location}))
    assert isinstance(error, Unreachable | LocalBenchError)
    assert not results


def test_a_server_that_asks_to_wait_for_0_seconds_is_not_flooded(monkeypatch):
    monkeypatch.setattr("local_bench.judges.vlm.client._backoff", tenacity.wait_fixed(0.2))
    received = []

    def handler(request):
        received.append(request)
        return httpx2.Response(429, headers={"Retry-After": "0"})

    _, error = verdicts_of(handler, in_flight=1, timeout_s=1.0, questions=QUESTIONS[:1])
    assert isinstance(error, Unreachable)
    assert len(received) <= 6


def test_a_server_that_goes_down_leaves_what_was_answered():
    server, count = Here(), 0

    def handler(request):
        nonlocal count
        count += 1
        if count > 7:
            server.up = False
            raise httpx2.ConnectError("refused")
        return reply()

    results, error = verdicts_of(handler, server, in_flight=1)
    assert isinstance(error, Unreachable)
    assert set(results) == set(range(7))
    assert count == 8  # a dead server receives no more requests


def test_an_unreadable_image_is_reported_and_other_answers_are_used():
    def load(sha):
        if sha == "5":
            raise ImageError("x.png is damaged: replace it")
        return make_image(sha)

    results, error = verdicts_of(lambda _: reply(), in_flight=1, load=load)
    assert set(results) == set(range(5))
    assert str(error) == "x.png is damaged: replace it"


def test_a_signal_while_requests_are_open_is_the_only_exception():
    """A KeyboardInterrupt raised inside the event loop, in whichever task runs then, closes all generators."""

    def handler(request):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        verdicts_of(handler)


def test_another_model_in_the_replies_is_reported_once_for_each_name():
    """An alias of a server or a gateway's name for its model: the answers count."""

    def handler(request):
        names = {"model": ("judge", "other", None, "judge-0813")[point_of(request) % 4]}
        return httpx2.Response(200, json=json.loads(reply().content) | names)

    notes, transport = [], httpx2.MockTransport(handler)
    with Client(Here(), preparing(make_image, 32), 1, 5.0, transport, notes.append) as client:
        verdicts = dict(answers(client, SPEC, QUESTIONS))
    assert [verdict.unscored for verdict in verdicts.values()] == [None] * len(QUESTIONS)
    sentence = "the judge at http://judge/v1 answers as {!r}, not judge: check its model"
    assert notes == [sentence.format(name) for name in ("other", "judge-0813")]


@pytest.mark.parametrize("status", [500, 502, 520])
def test_a_question_that_a_server_fails_on_is_unscored_also_if_it_is_the_first(status):
    """A later session sends only what failed; a request without an image then shows whether the server works."""

    def handler(request):
        if len(json.loads(request.content)["messages"]) == 1:
            return reply("Hello")
        return httpx2.Response(status) if point_of(request) == 0 else reply()

    results, error = verdicts_of(handler, in_flight=1)
    assert (set(results), error) == (set(range(20)), None)
    assert results[0].unscored == f"failed while judging (the server returned status {status} in 6 attempts)"
    results, error = verdicts_of(lambda _: httpx2.Response(status), in_flight=1)
    assert (results, str(error)) == ({}, f"status {status}")
