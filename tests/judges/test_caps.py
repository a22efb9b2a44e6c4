"""Servers that never end an answer: every request has a deadline, and every response a size."""

import asyncio
import gzip
import threading
from contextlib import contextmanager

import pytest
from PIL import Image
from pydantic import SecretStr

from local_bench.core.errors import ConfigError, ServerError
from local_bench.core.types import Question
from local_bench.judges.vlm.client import MAX_BYTES, TOO_LARGE, Client, ExternalServer, key_from
from local_bench.judges.vlm.judge import JudgeSpec, Unreachable, answers
from local_bench.judges.vlm.protocols import preparing

pytestmark = pytest.mark.timeout(30)
SPEC = JudgeSpec("card", "0" * 64, "float32", 16384, 32, 0)
QUESTIONS = [(0, Question("brf", 0, ("0",), (("title", "T"), ("brief", "B"), ("point", "p")), ("delivered",)))]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


async def drip(writer, head=HEAD + b"Content-Length: 1000000\r\n\r\n"):
    """A byte every 20 ms for as long as somebody listens."""
    writer.write(head)
    while not writer.is_closing():
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.02)


async def drip_head(writer):
    await drip(writer, b"HTTP/1.1 200 OK\r\nX-Slow: x")


async def endless(writer):
    writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    while not writer.is_closing():
        writer.write(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
        await writer.drain()


async def bomb(writer):
    packed = gzip.compress(b" " * (2 * MAX_BYTES))
    writer.write(HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed) + packed)


def answering(body, status=200):
    async def answer(writer):
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body)

    return answer


complete = answering(b'{"data":[{"id":"judge"}]}')


async def elsewhere(writer):
    writer.write(b"HTTP/1.1 307 T\r\nLocation: http://127.0.0.1:9/v1/models\r\nContent-Length: 0\r\n\r\n")


@contextmanager
def serving(models=complete, chat=complete):
    """A server on the loopback in a thread of its own; yields its URL and the first lines and headers it was sent."""
    heads = []

    async def handle(reader, writer):
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            heads.append(head)
            await (models if b"/models " in head else chat)(writer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(handle, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", heads
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


def client_of(url, timeout_s):
    return Client(
        ExternalServer(url, SecretStr("key")), preparing(lambda _: Image.new("RGB", (32, 32)), 32), 1, timeout_s
    )


def verdicts_of(url, timeout_s):
    with client_of(url, timeout_s) as client:
        return dict(answers(client, SPEC, QUESTIONS))


def refused_list(url, message, timeout_s=10.0):
    with pytest.raises(ServerError, match=message), ExternalServer(url, SecretStr("key"), timeout_s=timeout_s):
        pass


@pytest.mark.parametrize("slow", [drip, drip_head])
def test_a_slow_answer_or_list_of_models_ends_at_the_deadline(slow):
    with serving(chat=slow) as (url, heads):
        with pytest.raises(Unreachable, match=r"no answer within 0\.3 s \(judge\.request_timeout_s\)"):
            verdicts_of(url, 0.3)
        assert sum(b"/chat/completions " in head for head in heads) <= 2  # one deadline for all attempts
    with serving(models=slow) as (url, _):
        refused_list(url, r"no complete response within 0\.3 s", 0.3)


def test_an_answer_that_is_too_large_is_unscored_and_a_compressed_one_not_unpacked():
    with serving(chat=endless) as (url, _):
        verdict = verdicts_of(url, 20.0)[0]
        assert (verdict.answer, verdict.unscored) == (None, TOO_LARGE)
        with client_of(url, 5.0) as client:
            assert client.counters() == {}
    with serving(chat=bomb) as (url, _), pytest.raises(Unreachable, match="accepts no compression"):
        verdicts_of(url, 20.0)
    for large, message in ((endless, "larger than 4 MiB"), (bomb, "accepts no compression")):
        with serving(models=large) as (url, _):
            refused_list(url, message)


def test_a_redirect_is_not_followed_and_a_proxy_not_used(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with serving(models=elsewhere) as (url, heads):
        refused_list(url, r"redirects to http://127\.0\.0\.1:9/v1/models, which is another")
    assert len(heads) == 1


@pytest.mark.parametrize("key", ["sk-hunter2\n", "sk hunter2", "sk-hunter2\r\nX: y", "sk-hünter2", "\x00hunter2"])
def test_a_key_that_no_header_can_carry_is_refused_without_being_printed(monkeypatch, key):
    monkeypatch.setattr("os.environ", {"LOCAL_BENCH_K": key})
    with pytest.raises(ConfigError, match="LOCAL_BENCH_K contains a line break") as caught:
        key_from("LOCAL_BENCH_K")
    assert "nter2" not in str(caught.value)
    assert caught.value.__cause__ is None
    monkeypatch.setattr("os.environ", {"LOCAL_BENCH_K": "sk-1_a.B/=", "EMPTY": ""})
    assert [key_from(name) for name in ("LOCAL_BENCH_K", "EMPTY", "MISSING")] == [SecretStr("sk-1_a.B/="), None, None]
