"""The client against a mock transport: what is retried, what is unscored, what is never guessed."""

import asyncio
import json
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
from local_bench.judges.vlm.chat_api import Composer
from local_bench.judges.vlm.client import MAX_CONCURRENCY, Client
from local_bench.judges.vlm.judge import JudgeSpec
from local_bench.judges.vlm.transport import Unreachable, answers

_KEY = SecretStr("secret")
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
    api_key: SecretStr | None = _KEY
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


def reply(content='{"met":1}', finish="stop", status=200):
    return httpx2.Response(status, json={"choices": [{"message": {"content": content}, "finish_reason": finish}]})


def point_of(request):
    text = json.loads(request.content)["messages"][1]["content"][-1]["text"]
    return int(text.split("\n<")[1].split(">")[0])


def verdicts_of(handler, server=None, in_flight=4, load=make_image, spec=SPEC, questions=QUESTIONS):
    found = {}
    with Client(
        server or Here(), Composer(load, 32), in_flight, 5.0, transport=httpx2.MockTransport(handler)
    ) as client:
        try:
            for key, verdict in answers(client, spec, questions):
                found[key] = verdict
        except (Unreachable, LocalBenchError) as e:
            return found, e
    return found, None


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr("local_bench.judges.vlm.client._backoff", tenacity.wait_none())


def test_every_question_is_answered_once_within_the_concurrency_limit():
    running, most, keys = 0, 0, set()

    async def handler(request):
        nonlocal running, most
        keys.add(request.headers["authorization"])
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.002)
        running -= 1
        return reply()

    found, error = verdicts_of(handler, in_flight=3)
    assert error is None
    assert set(found) == set(range(20))
    assert most == 3
    assert keys == {"Bearer secret"}


@pytest.mark.parametrize("fault", [503, 429, httpx2.ConnectError, httpx2.ReadTimeout, httpx2.RemoteProtocolError])
def test_transport_errors_are_retried(fault):
    tries = {}

    def handler(request):
        point = point_of(request)
        tries[point] = tries.get(point, 0) + 1
        if tries[point] < 3:
            if isinstance(fault, int):
                return httpx2.Response(fault)
            raise fault("gone")
        return reply()

    found, error = verdicts_of(handler)
    assert error is None
    assert all(v.answer == {"met": 1} for v in found.values())
    assert set(tries.values()) == {3}


def test_an_invalid_answer_is_not_requested_again():
    received = []

    def handler(request):
        received.append(1)
        return reply("I would say 5")

    found, _ = verdicts_of(handler)
    assert len(received) == 20
    assert {v.unscored for v in found.values()} == {"the judge's answer is not JSON"}


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (lambda: httpx2.Response(400, text="too long"), "refused the question"),
        (lambda: httpx2.Response(200, json={"choices": []}), "not reply in its own format"),
        (lambda: httpx2.Response(200, text="<html>"), "not reply in its own format"),
        (lambda: reply(None), "gave no answer"),
        (lambda: reply('{"met":1}', "length"), "cut off"),
    ],
)
def test_other_responses_are_unscored(response, reason):
    found, error = verdicts_of(lambda request: response())
    assert error is None
    assert len(found) == 20
    assert all(reason in v.unscored for v in found.values())


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_asks_to_wait_is_waited_for(status, monkeypatch):
    """More often than other faults are retried, and as long as it says, in seconds or until a date."""
    delays, attempts = [], {}
    real = asyncio.sleep

    async def sleep(seconds, *_):
        delays.append(seconds)
        await real(0)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    until = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)

    def handler(request):
        point = point_of(request)
        attempts[point] = attempts.get(point, 0) + 1
        if attempts[point] <= 9:
            headers = [{}, {"Retry-After": "7"}, {"Retry-After": until}, {"Retry-After": "soon"}][attempts[point] % 4]
            return httpx2.Response(status, headers=headers)
        return reply()

    found, error = verdicts_of(handler, questions=QUESTIONS[:1], in_flight=1)
    assert error is None
    assert set(found) == {0}
    assert delays.count(7.0) == 3
    assert sum(25 < seconds <= 30 for seconds in delays) == 2


def test_a_slow_server_that_answers_steadily_is_waited_for():
    """One question at a time, so that the last one waits five times as long as an answer may take."""
    turn = asyncio.Lock()

    async def handler(request):
        async with turn:
            await asyncio.sleep(0.1)
        return reply()

    found = {}
    client = Client(Here(), Composer(make_image, 32), 20, 0.4, transport=httpx2.MockTransport(handler))
    with client:
        found = dict(answers(client, SPEC, QUESTIONS))
    assert set(found) == set(range(20))


def test_a_server_that_stops_answering_is_not_waited_for():
    async def handler(request):
        if point_of(request) > 3:
            await asyncio.sleep(60)
        return reply()

    found = {}
    with Client(Here(), Composer(make_image, 32), 2, 0.3, transport=httpx2.MockTransport(handler)) as client:
        replies = answers(client, SPEC, QUESTIONS)
        with pytest.raises(Unreachable, match=r"no answer within 0\.3 s"):
            found.update(replies)
    assert set(found) == set(range(4))


def test_redirects_within_the_server_are_followed():
    paths = []

    def handler(request):
        paths.append(request.url.path)
        if len(paths) <= 2:
            return httpx2.Response(307, headers={"Location": f"/moved{request.url.path}"})
        return reply()

    found, error = verdicts_of(handler, questions=QUESTIONS[:1])
    assert (set(found), error) == ({0}, None)
    assert paths[-1] == "/moved/moved/v1/chat/completions"
    found, error = verdicts_of(lambda request: httpx2.Response(308, headers={"Location": "/round"}))
    assert "more than 5 redirects" in str(error)


@pytest.mark.parametrize("location", ["http://[", "http://judge:port/", "//\x7f", "http://a" + "b" * 70_000])
def test_a_redirect_to_an_invalid_address_is_an_error(location):
    found, error = verdicts_of(lambda request: httpx2.Response(307, headers={"Location": location}))
    assert isinstance(error, Unreachable | LocalBenchError)
    assert not found


def test_a_server_that_asks_to_wait_for_0_seconds_is_not_flooded(monkeypatch):
    monkeypatch.setattr("local_bench.judges.vlm.client._backoff", tenacity.wait_fixed(0.2))
    received = []

    def handler(request):
        received.append(request)
        return httpx2.Response(429, headers={"Retry-After": "0"})

    client = Client(Here(), Composer(make_image, 32), 1, 1.0, transport=httpx2.MockTransport(handler))
    with client, pytest.raises(Unreachable):
        dict(answers(client, SPEC, QUESTIONS[:1]))
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

    found, error = verdicts_of(handler, server, in_flight=1)
    assert isinstance(error, Unreachable)
    assert set(found) == set(range(7))
    assert count == 8  # a dead server receives no more requests


def test_a_wrong_key_is_an_immediate_error():
    found, error = verdicts_of(lambda request: httpx2.Response(401))
    assert not found
    assert "rejects the key (status 401)" in str(error)


def test_an_unreadable_image_is_reported_and_other_answers_are_used():
    def load(sha):
        if sha == "5":
            raise ImageError("x.png is damaged: replace it")
        return make_image(sha)

    found, error = verdicts_of(lambda _: reply(), in_flight=1, load=load)
    assert set(found) == set(range(5))
    assert str(error) == "x.png is damaged: replace it"


def labelled(token, logprobs):
    top = [{"token": label, "logprob": p} for label, p in logprobs.items()]
    choice = {"message": {"content": token}, "finish_reason": "length"}
    sent = {"choices": [choice | {"logprobs": {"content": [{"top_logprobs": top}]}}]}
    return httpx2.Response(200, content=json.dumps(sent).encode())


LOGIT = JudgeSpec("card", "0" * 64, "float32", 16384, 32, 0, "logit")


def test_labels_give_their_expectation_as_score_and_the_likeliest_answer():
    received = []

    def handler(request):
        sent = json.loads(request.content)
        received.append(sent)
        assert sent["structured_outputs"] == {"choice": ["0", "1"]}
        assert sent["max_tokens"] == 1
        return labelled("1", {"0": -1.5, "1": -0.25})

    found, error = verdicts_of(handler, spec=LOGIT)
    assert error is None
    assert len(received) == 20
    for verdict in found.values():
        assert verdict.answer == {"met": 1}
        p = 1 / (1 + 2.718281828 ** (-1.25))
        assert verdict.value("met") == pytest.approx(p, abs=1e-6)
        assert verdict.variance("met") == pytest.approx(p * (1 - p), abs=1e-5)


@pytest.mark.parametrize(
    "response",
    [
        lambda: labelled("2", {"0": -1.0, "1": -1.0}),
        lambda: labelled("1", {"1": -1.0}),
        lambda: labelled("1", {"0": float("-inf"), "1": float("-inf")}),
        lambda: labelled("1", {"0": float("nan"), "1": -1.0}),
        lambda: labelled("1", {"0": "high", "1": -1.0}),
        lambda: labelled("1", {"0": 10**400, "1": -1.0}),
        lambda: reply("1", "length"),
        lambda: reply('{"met":1}'),
        lambda: reply(None),
    ],
)
def test_unknown_labels_or_missing_probabilities_are_unscored(response):
    found, error = verdicts_of(lambda _: response(), spec=LOGIT)
    assert error is None
    assert len(found) == 20
    assert all(v.answer is None and v.unscored for v in found.values())


def test_without_a_number_in_flight_the_default_is_reached_and_never_exceeded():
    most = running = 0

    async def handler(request):
        nonlocal most, running
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1
        return reply()

    questions = [((n, i), q) for n in range(40) for i, q in QUESTIONS]
    found, error = verdicts_of(handler, in_flight=None, questions=questions)
    assert error is None
    assert len(found) == 800
    assert 32 < most <= MAX_CONCURRENCY


def test_a_signal_while_requests_are_open_is_the_only_exception():
    """A KeyboardInterrupt raised inside the event loop, in whichever task runs then, closes all generators."""

    def handler(request):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        verdicts_of(handler)
