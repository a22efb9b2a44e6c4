"""A server that sends invalid responses: each becomes unscored with its text stored, none a score."""

import json
import math
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import tenacity
from PIL import Image

from local_bench.core.errors import ServerError
from local_bench.core.types import Question
from local_bench.judges.vlm import client as client_module
from local_bench.judges.vlm.client import MAX_BYTES, TOO_LARGE, Client, ExternalServer
from local_bench.judges.vlm.judge import JudgeSpec, Unreachable, answers
from local_bench.judges.vlm.protocols import preparing

JSON = JudgeSpec("card", "0" * 64, "float32", 16384, 32, 0)
LOGIT = JudgeSpec("card", "0" * 64, "float32", 16384, 32, 0, "logit")
FORMAT = "the judge did not reply in its own format"
REFUSED = "the judge refused the question"
GOOD = '{"met":1}'
HUGE = 3_000_000
"""Below the limit of a response."""


def message(content, finish="stop", **more):
    return {"choices": [{"message": {"role": "assistant", "content": content}, "finish_reason": finish} | more]}


def tops(results):
    return {"content": [{"token": "?", "logprob": 0.0, "top_logprobs": results}]}


def label(token, results, finish="length"):
    """A reply of one token, with these (token, log-probability)."""
    return message(token, finish, logprobs=tops([{"token": t, "logprob": p} for t, p in results]))


def right(sent):
    """What a good judge replies to this body."""
    return label("1", [("0", -3.0), ("1", -0.05)]) if "structured_outputs" in sent else message(GOOD)


class Response:
    """Replies with this body, JSON unless it is bytes."""

    def __init__(self, body, status=200, **headers):
        self.body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.status = status
        self.headers = {"Content-Type": "application/json"} | {k.replace("_", "-"): v for k, v in headers.items()}

    def __call__(self, handler, _):
        handler.send_response(self.status)
        for name, value in self.headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(self.body)))
        handler.end_headers()
        handler.wfile.write(self.body)


class Breaks:
    """Writes these bytes to the wire and hangs up; from the `times`-th on it replies as it should."""

    def __init__(self, wire, times=3):
        self.wire = wire
        self.times = times

    def __call__(self, handler, sent):
        if handler.server.requests[point_of(sent)] > self.times:
            Response(right(sent))(handler, sent)
            return
        handler.wfile.write(self.wire)
        handler.close_connection = True


def point_of(sent):
    return sent["messages"][1]["content"][-1]["text"].split("\n<<")[1].split(">>")[0]


class Hostile(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.plays = {}
        self.requests = Counter()
        self.metrics = b""
        self.lock = threading.Lock()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hostile

    def do_GET(self):
        if self.path == "/v1/models":
            Response({"data": [{"id": "judge", "owned_by": "somebody"}]})(self, None)
        else:
            self.server.requests[self.path] += 1
            Response(self.server.metrics, Content_Type="text/plain")(self, None)

    def do_POST(self):
        sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.requests[point_of(sent)] += 1
        play = self.server.plays.get(point_of(sent)) or Response(right(sent))
        play(self, sent)

    def log_message(self, *_):
        pass


@pytest.fixture
def hostile(monkeypatch):
    monkeypatch.setattr(client_module, "_backoff", tenacity.wait_none())
    with Hostile() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def question(point):
    slots = (("title", "T"), ("brief", "B"), ("point", f"<<{point}>>"))
    return point, Question("brf", 0, ("a",), slots, ("delivered",))


def verdicts_of(hostile, spec, points, in_flight=4, timeout_s=10):
    """What was answered, and what it ended in."""
    prepared = preparing(lambda _: Image.new("RGB", (32, 32)), 32)
    results = {}
    with Client(ExternalServer(hostile.url, None), prepared, in_flight, timeout_s) as client:
        try:
            for key, verdict in answers(client, spec, [question(point) for point in points]):
                assert key not in results
                results[key] = verdict
        except (Unreachable, ServerError) as e:
            return results, e
    return results, None


FALSE = '{"met":1} is what you asked for: {"met":1}'
EVERYWHERE = {
    "empty body": (Response(b""), FORMAT, ""),
    "not JSON": (Response(b"<html>{}</html>", Content_Type="text/html"), FORMAT, "<html>{}</html>"),
    "a picture": (Response(b"\x89PNG\r\n\xff\xfe\x00", Content_Type="image/png"), FORMAT, "PNG"),
    "cut in the middle": (Response(json.dumps(message(GOOD)).encode()[:-9]), FORMAT, '\\"met\\":1'),
    "a large body": (Response(b"x" * HUGE), FORMAT, "x" * 2000),
    "a huge body": (Response(b"x" * (MAX_BYTES + 1)), TOO_LARGE, ""),
    "a deep body": (Response(b"[" * 100_000), FORMAT, "[" * 2000),
    "a deep body that ends": (Response(b'{"choices":' + b"[" * 990 + b"]" * 990 + b"}"), FORMAT, "["),
    "a list": (Response([message(GOOD)]), FORMAT, "met"),
    "a text": (Response(GOOD), FORMAT, "met"),
    "null": (Response(None), FORMAT, "None"),
    "an error with status 200": (Response({"error": {"message": "out of memory"}}), FORMAT, "out of memory"),
    "no choices": (Response({"choices": []}), FORMAT, "choices"),
    "choices in an object": (Response({"choices": message(GOOD)}), FORMAT, "met"),
    "a list for a choice": (Response({"choices": [[message(GOOD)]]}), FORMAT, "met"),
    "no message": (Response({"choices": [{"text": GOOD}]}), FORMAT, "met"),
    "a tool's call": (Response({"choices": [{"message": {"tool_calls": [GOOD]}}]}), FORMAT, "met"),
    "content in parts": (Response(message([{"type": "text", "text": GOOD}])), FORMAT, "met"),
    "content as an object": (Response(message({"met": 1})), FORMAT, "met"),
    "content as a number": (Response(message(1)), FORMAT, "1"),
    "no content": (Response(message(None)), "the judge gave no answer", ""),
    "an end that is none": (Response(message(GOOD, {"why": "stop"})), FORMAT, "met"),
    "400": (Response({"message": "too many tokens"}, 400), REFUSED, "too many tokens"),
    "413": (Response(b"too large", 413), REFUSED, "too large"),
    "422": (Response(b"y" * HUGE, 422), REFUSED, "y" * 2000),
    "a right reply with the wrong status": (Response(message(GOOD), 202), REFUSED, "met"),
    "an unknown charset": (Response(b"caf\xe9", 400, Content_Type="text/plain; charset=klingon"), REFUSED, "caf"),
    "a charset that is none": (Response(b"caf\xe9", 400, Content_Type="text/plain; charset=zlib"), REFUSED, "caf"),
}
NOT_JSON = [
    *("", " ", '{"met":', '{"met":1', "I would say 1", 'I say {"met":1}', '{"met":1} indeed', FALSE, GOOD * 2),
    *(f"```json\n{GOOD}\n```", f"<think>hm</think>{GOOD}", f"\ufeff{GOOD}", '{"met":0,"met":1}'),
    *('{"met":NaN}', '{"met":Infinity}', '{"met":-Infinity}', '{"met":' + "9" * 5000 + "}", "[" * 100_000),
    *("[" * 100_000 + "]" * 100_000, "z" * HUGE),
]
NO_ANSWERS = {
    "not JSON": NOT_JSON,
    "": ['{"met":1e999}', '{"met":' + "9" * 4000 + "}", '{"met":' + "[" * 900 + "]" * 900 + "}"],
    "out of range": ['{"met":2}', '{"met":-1}', '{"met":0.5}'],
    "is a text, not a number": ['{"met":"1"}'],
    "is true or false, not a number": ['{"met":true}'],
    "is null, not a number": ['{"met":null}'],
    "no form of brf": ['{"met":1,"why":"x"}', '{"score":1}', '{"Met":1}', "{}"],
    "not a JSON object": [f"[{GOOD}]", "[]", "1", "null"],
}
AS_JSON = {
    f"{reason} {n}": (Response(message(text)), reason, text)
    for reason, texts in NO_ANSWERS.items()
    for n, text in enumerate(texts)
} | {
    "truncated": (Response(message('{"met":', "length")), "cut off (length)", '{"met":'),
    "whole and yet cut off": (Response(message(GOOD, "length")), "cut off (length)", GOOD),
    "ended by nothing": (Response(message(GOOD, "")), "cut off ()", GOOD),
    "filtered": (Response(message(GOOD, "\ud800content_filter" * 1000)), "cut off", GOOD),
    "half a character": (Response(message('{"met":"\ud83d"}')), "", '{"met":"\\ud83d"}'),
}
OK = [("0", -1.0), ("1", -1.0)]
NO_PROBABILITIES = [
    *([("0", value), ("1", -1.0)] for value in (math.nan, 0.5, math.inf, None, False, 10**400, "-1", "low")),
    *([("0", value), ("1", value)] for value in (-math.inf, -1e300)),
    *([("yes", -0.1), ("no", -3.0)], [("yes", -3.0), ("1", -0.1)], [(0, -3.0), (1, -0.1)], []),
]
AS_LABELS = {
    f"no probabilities {n}": (Response(label("1", sent)), "no probabilities", "1")
    for n, sent in enumerate(NO_PROBABILITIES)
} | {
    "no list": (Response(message("1", "length")), "no probabilities", "1"),
    "null for a list": (Response(message("1", "length", logprobs=None)), "no probabilities", "1"),
    "none in the list": (Response(message("1", "length", logprobs={"content": []})), FORMAT, "1"),
    "a list for them": (Response(message("1", "length", logprobs=[1])), FORMAT, "1"),
    "tokens in a list": (Response(message("1", logprobs=tops([{"token": ["1"], "logprob": -1.0}]))), FORMAT, "1"),
    "a label not offered": (Response(label("2", [*OK, ("2", -0.1)])), "none of its labels", "2"),
    "a label and more": (Response(label("1.", OK)), "none of its labels", "1."),
    "a label with a space": (Response(label(" 1", OK)), "none of its labels", " 1"),
    "a whole answer": (Response(label(GOOD, OK, "stop")), "none of its labels", GOOD),
    "no label": (Response(label("", OK)), "none of its labels", ""),
    "a filtered label": (Response(label("1", OK, "content_filter")), "none of its labels", "1"),
}


@pytest.mark.parametrize(("spec", "cases"), [(JSON, EVERYWHERE | AS_JSON), (LOGIT, EVERYWHERE | AS_LABELS)])
def test_every_invalid_response_is_unscored_with_its_text(hostile, spec, cases):
    hostile.plays = {name: play for name, (play, _, _) in cases.items()}
    good = [f"good {i}" for i in range(5)]
    results, error = verdicts_of(hostile, spec, [*good[:2], *cases, *good[2:]])
    assert error is None
    assert set(results) == {*cases, *good}
    for name, (_, reason, raw) in cases.items():
        verdict = results[name]
        assert verdict.answer is None, name
        assert (verdict.value("met"), verdict.labels) == (None, None), name
        assert reason in verdict.unscored, (name, verdict.unscored)
        assert len(verdict.unscored) < 300, name
        assert raw in verdict.raw, (name, verdict.raw[:200])
        assert (verdict.unscored + verdict.raw).encode(), name  # can be stored
    assert all(results[name].answer == {"met": 1} for name in good)
    assert set(hostile.requests.values()) == {1}  # an invalid answer is not requested again


COMPLETE = json.dumps(message(GOOD)).encode()
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
FAULTS = {
    "hangs up at once": b"",
    "hangs up in its head": HEAD[:20],
    "hangs up in the body": HEAD + f"Content-Length: {len(COMPLETE)}\r\n\r\n".encode() + COMPLETE[:-20],
    "hangs up between chunks": HEAD + b"Transfer-Encoding: chunked\r\n\r\n10\r\n" + COMPLETE[:16] + b"\r\n",
    "chunks of no length": HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + COMPLETE,
    "does not speak HTTP": b"SSH-2.0-OpenSSH_9.6\r\n",
    "says it is packed": HEAD
    + f"Content-Encoding: gzip\r\nContent-Length: {len(COMPLETE)}\r\n\r\n".encode()
    + COMPLETE,
    "a head without end": HEAD + b"X-A: " + b"a" * 200_000,
    "busy": b"HTTP/1.1 503 Busy\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
    "too many": b"HTTP/1.1 429 Later\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
}


@pytest.mark.parametrize("spec", [JSON, LOGIT], ids=["json", "logit"])
def test_transport_errors_are_retried(hostile, spec):
    hostile.plays = {name: Breaks(wire) for name, wire in FAULTS.items()}
    results, error = verdicts_of(hostile, spec, [*FAULTS, "good"])
    assert error is None
    assert {name: verdict.answer for name, verdict in results.items()} == {
        name: {"met": 1} for name in [*FAULTS, "good"]
    }
    assert hostile.requests == Counter(dict.fromkeys(FAULTS, 4)) + Counter(["good"])


@pytest.mark.parametrize("name", ["hangs up in the body", "says it is packed", "busy"])
def test_a_persistent_error_leaves_the_received_answers(hostile, name):
    hostile.plays = {name: Breaks(FAULTS[name], times=10**9)}
    points = ["good 1", "good 2", name, "good 3"]
    results, error = verdicts_of(hostile, JSON, points, in_flight=1, timeout_s=2 if name == "busy" else 10)
    assert isinstance(error, Unreachable)
    assert set(results) == {"good 1", "good 2"}
    if name == "busy":  # it asks to wait, and is sent the question again until the time is over
        assert hostile.requests[name] > client_module.ATTEMPTS
    else:
        assert hostile.requests[name] == client_module.ATTEMPTS
    assert hostile.requests["good 3"] == 0


def test_a_redirect_to_another_server_is_an_error(hostile):
    hostile.plays = {"away": Response(b"over there", 307, Location="http://127.0.0.1:9/")}
    results, error = verdicts_of(hostile, JSON, ["good", "away"], in_flight=1)
    assert "redirects to http://127.0.0.1:9/, which is another server" in str(error)
    assert set(results) == {"good"}


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_wrong_path_or_key_is_an_error(hostile, status):
    hostile.plays = {"lost": Response(b"<html>nothing here</html>", status)}
    results, error = verdicts_of(hostile, JSON, ["good", "lost"], in_flight=1)
    assert isinstance(error, ServerError)
    assert f"(status {status})" in str(error)
    assert ("judge.base_url" if status == 404 else "judge.api_key_env") in str(error)
    assert "\n" not in str(error)
    assert set(results) == {"good"}


METRICS = [
    b"",
    b"vllm:prefix_cache_hits_total many\nvllm:prefix_cache_queries_total many\n",
    b"vllm:prefix_cache_hits_total NaN\nvllm:prefix_cache_queries_total \xff\xfe\n",
    b"vllm:prefix_cache_hits_total{" + b"a" * 100_000,
    b"vllm:prefix_cache_hits_total 1e308\nvllm:prefix_cache_hits_total +Inf\n",
]


def test_invalid_metrics_are_ignored(hostile):
    with Client(ExternalServer(hostile.url, None), preparing(lambda _: None, 32), 1, 10) as client:
        for hostile.metrics in METRICS:
            assert all(isinstance(count, float | int) for count in client.counters().values())
