"""The client against a mock transport: what is retried, what is unscored, what is never guessed."""

import asyncio
import json
from dataclasses import dataclass

import httpx
import pytest
import tenacity

from local_bench.core.errors import ImageError, LocalBenchError
from local_bench.core.nouns import Question
from local_bench.judges.vlm.client import Client, Unreachable

QUESTIONS = [(i, Question("brf", i, ("x",), ())) for i in range(20)]


@dataclass
class Here:
    base_url: str = "http://judge/v1"
    api_key: str | None = "secret"
    model: str = "judge"
    up: bool = True

    def alive(self) -> bool:
        return self.up

    def restart(self) -> None:
        raise AssertionError


def reply(content='{"met":1}', finish="stop", status=200):
    return httpx.Response(status, json={"choices": [{"message": {"content": content}, "finish_reason": finish}]})


def body(question):
    return {"point": question.point}


def ask(handler, server=None, in_flight=4, request=body):
    client = Client(server or Here(), request, in_flight, 5.0, transport=httpx.MockTransport(handler))

    async def all_of_it():
        found = {}
        try:
            async for key, verdict in client.ask(QUESTIONS):
                found[key] = verdict
        except (Unreachable, LocalBenchError) as e:
            return found, e
        return found, None

    return asyncio.run(all_of_it())


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(
        "local_bench.judges.vlm.client.tenacity.wait_exponential", lambda *_, **__: tenacity.wait_none()
    )


def test_every_question_is_answered_once_with_the_key_and_never_more_in_flight_than_said():
    running, most, keys = 0, 0, set()

    async def handler(request):
        nonlocal running, most
        keys.add(request.headers["authorization"])
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.002)
        running -= 1
        return reply()

    found, error = ask(handler, in_flight=3)
    assert error is None
    assert set(found) == set(range(20))
    assert most == 3
    assert keys == {"Bearer secret"}


@pytest.mark.parametrize("fault", [503, 429, httpx.ConnectError, httpx.ReadTimeout, httpx.RemoteProtocolError])
def test_transport_faults_are_tried_again(fault):
    tries = {}

    def handler(request):
        point = json.loads(request.content)["point"]
        tries[point] = tries.get(point, 0) + 1
        if tries[point] < 3:
            if isinstance(fault, int):
                return httpx.Response(fault)
            raise fault("gone")
        return reply()

    found, error = ask(handler)
    assert error is None
    assert all(v.answer == {"met": 1} for v in found.values())
    assert set(tries.values()) == {3}


def test_a_bad_answer_is_not_asked_again():
    asked = []

    def handler(request):
        asked.append(1)
        return reply("I would say 5")

    found, _ = ask(handler)
    assert len(asked) == 20
    assert {v.unscored for v in found.values()} == {"the judge's answer is not JSON"}


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (lambda: httpx.Response(400, text="too long"), "refused the question (status 400)"),
        (lambda: httpx.Response(200, json={"choices": []}), "not reply in its own format"),
        (lambda: httpx.Response(200, text="<html>"), "not reply in its own format"),
        (lambda: reply(None), "gave no answer"),
        (lambda: reply('{"met":1}', "length"), "cut off"),
    ],
)
def test_whatever_else_comes_back_is_unscored(response, reason):
    found, error = ask(lambda request: response())
    assert error is None
    assert len(found) == 20
    assert all(reason in v.unscored for v in found.values())


def test_a_server_that_goes_down_leaves_what_was_answered():
    server, count = Here(), 0

    def handler(request):
        nonlocal count
        count += 1
        if count > 7:
            server.up = False
            raise httpx.ConnectError("refused")
        return reply()

    found, error = ask(handler, server, in_flight=1)
    assert isinstance(error, Unreachable)
    assert set(found) == set(range(7))
    assert count == 8  # a dead server is not asked again


def test_a_wrong_key_is_said_at_once():
    found, error = ask(lambda request: httpx.Response(401))
    assert not found
    assert "check its key" in str(error)


def test_an_image_that_cannot_be_read_is_said_and_the_rest_is_kept():
    def request(question):
        if question.point == 5:
            raise ImageError("x.png is damaged: replace it")
        return body(question)

    found, error = ask(lambda _: reply(), in_flight=1, request=request)
    assert set(found) == set(range(5))
    assert str(error) == "x.png is damaged: replace it"
