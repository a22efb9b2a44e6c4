"""A server that sends what no judge should: every bit of it becomes unscored with its words kept, none a score."""

import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import tenacity
from PIL import Image

from local_bench.core.errors import ServerError
from local_bench.core.types import Question
from local_bench.judges.vlm import client as module
from local_bench.judges.vlm.client import Client
from local_bench.judges.vlm.composer import Composer
from local_bench.judges.vlm.http import MAX_BYTES, TOO_LARGE
from local_bench.judges.vlm.judge import JudgeSpec
from local_bench.judges.vlm.server import ExternalServer
from local_bench.judges.vlm.transport import Unreachable, answers

JSON = JudgeSpec("card", "0" * 64, "float32", 16384, 32, 0)
LOGIT = JudgeSpec("card", "0" * 64, "float32", 16384, 32, 0, "logit")
FORMAT = "the judge did not reply in its own format"
REFUSED = "the judge refused the question"
GOOD = '{"met":1}'
HUGE = 3_000_000
"""Below the limit of a response."""


def message(content, finish="stop", **more):
    return {"choices": [{"message": {"role": "assistant", "content": content}, "finish_reason": finish} | more]}


def tops(found):
    return {"content": [{"token": "?", "logprob": 0.0, "top_logprobs": found}]}


def label(token, found, finish="length"):
    """A reply of one token, with these (token, log-probability)."""
    return message(token, finish, logprobs=tops([{"token": t, "logprob": p} for t, p in found]))


def right(sent):
    """What a good judge replies to this body."""
    return label("1", [("0", -3.0), ("1", -0.05)]) if "structured_outputs" in sent else message(GOOD)


class Says:
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
        if handler.server.asked[point_of(sent)] > self.times:
            Says(right(sent))(handler, sent)
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
        self.asked = Counter()
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
            Says({"data": [{"id": "judge", "owned_by": "somebody"}]})(self, None)
        else:
            self.server.asked[self.path] += 1
            Says(self.server.metrics, Content_Type="text/plain")(self, None)

    def do_POST(self):
        sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.asked[point_of(sent)] += 1
        play = self.server.plays.get(point_of(sent)) or Says(right(sent))
        play(self, sent)

    def log_message(self, *_):
        pass


@pytest.fixture
def hostile(monkeypatch):
    monkeypatch.setattr(module.tenacity, "wait_exponential", lambda *_, **__: tenacity.wait_none())
    with Hostile() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def question(point):
    slots = (("title", "T"), ("brief", "B"), ("point", f"<<{point}>>"))
    return point, Question("brf", 0, ("a",), slots, ("delivered",))


def ask(hostile, spec, points, in_flight=4):
    """What was answered, and what it ended in."""
    composer = Composer(lambda _: Image.new("RGB", (32, 32)), 32)
    found = {}
    with Client(ExternalServer(hostile.url, None), composer, in_flight, 10) as client:
        try:
            for key, verdict in answers(client, spec, [question(point) for point in points]):
                assert key not in found
                found[key] = verdict
        except (Unreachable, ServerError) as e:
            return found, e
    return found, None


FALSE = '{"met":1} is what you asked for: {"met":1}'
EVERYWHERE = {
    "empty body": (Says(b""), FORMAT, ""),
    "not JSON": (Says(b"<html>{}</html>", Content_Type="text/html"), FORMAT, "<html>{}</html>"),
    "a picture": (Says(b"\x89PNG\r\n\xff\xfe\x00", Content_Type="image/png"), FORMAT, "PNG"),
    "cut in the middle": (Says(json.dumps(message(GOOD)).encode()[:-9]), FORMAT, '\\"met\\":1'),
    "a large body": (Says(b"x" * HUGE), FORMAT, "x" * 2000),
    "a huge body": (Says(b"x" * (MAX_BYTES + 1)), TOO_LARGE, ""),
    "a deep body": (Says(b"[" * 100_000), FORMAT, "[" * 2000),
    "a deep body that ends": (Says(b'{"choices":' + b"[" * 990 + b"]" * 990 + b"}"), FORMAT, "["),
    "a list": (Says([message(GOOD)]), FORMAT, "met"),
    "a text": (Says(GOOD), FORMAT, "met"),
    "null": (Says(None), FORMAT, "None"),
    "an error with status 200": (Says({"error": {"message": "out of memory"}}), FORMAT, "out of memory"),
    "no choices": (Says({"choices": []}), FORMAT, "choices"),
    "choices in an object": (Says({"choices": message(GOOD)}), FORMAT, "met"),
    "a list for a choice": (Says({"choices": [[message(GOOD)]]}), FORMAT, "met"),
    "no message": (Says({"choices": [{"text": GOOD}]}), FORMAT, "met"),
    "a tool's call": (Says({"choices": [{"message": {"tool_calls": [GOOD]}}]}), FORMAT, "met"),
    "content in parts": (Says(message([{"type": "text", "text": GOOD}])), FORMAT, "met"),
    "content as an object": (Says(message({"met": 1})), FORMAT, "met"),
    "content as a number": (Says(message(1)), FORMAT, "1"),
    "no content": (Says(message(None)), "the judge gave no answer", ""),
    "an end that is none": (Says(message(GOOD, {"why": "stop"})), FORMAT, "met"),
    "400": (Says({"message": "too many tokens"}, 400), REFUSED, "too many tokens"),
    "413": (Says(b"too large", 413), REFUSED, "too large"),
    "422": (Says(b"y" * HUGE, 422), REFUSED, "y" * 2000),
    "a redirect": (Says(b"over there", 307, Location="http://127.0.0.1:9/"), REFUSED, "over there"),
    "a right reply with the wrong status": (Says(message(GOOD), 202), REFUSED, "met"),
    "an unknown charset": (Says(b"caf\xe9", 400, Content_Type="text/plain; charset=klingon"), REFUSED, "caf"),
    "a charset that is none": (Says(b"caf\xe9", 400, Content_Type="text/plain; charset=zlib"), REFUSED, "caf"),
}
AS_JSON = {
    "truncated": (Says(message('{"met":', "length")), "cut off (length)", '{"met":'),
    "truncated without a word": (Says(message('{"met":')), "not JSON", '{"met":'),
    "whole and yet cut off": (Says(message(GOOD, "length")), "cut off (length)", GOOD),
    "filtered": (Says(message(GOOD, "content_filter" * 100)), "cut off", GOOD),
    "nothing": (Says(message("")), "not JSON", ""),
    "words": (Says(message("I would say 1")), "not JSON", "I would say 1"),
    "a verdict in prose": (Says(message(FALSE)), "not JSON", FALSE),
    "a verdict in a fence": (Says(message(f"```json\n{GOOD}\n```")), "not JSON", GOOD),
    "two verdicts": (Says(message(GOOD + GOOD)), "not JSON", GOOD + GOOD),
    "a verdict after thoughts": (Says(message(f"<think>hm</think>{GOOD}")), "not JSON", GOOD),
    "a field twice": (Says(message('{"met":0,"met":1}')), "not JSON", '{"met":0,"met":1}'),
    "out of range": (Says(message('{"met":5}')), "out of range", '{"met":5}'),
    "below the range": (Says(message('{"met":-1}')), "out of range", '{"met":-1}'),
    "not whole": (Says(message('{"met":1.0}')), "out of range", '{"met":1.0}'),
    "a text for a number": (Says(message('{"met":"1"}')), "out of range", '{"met":"1"}'),
    "true for a number": (Says(message('{"met":true}')), "out of range", '{"met":true}'),
    "not a number": (Says(message('{"met":NaN}')), "not JSON", '{"met":NaN}'),
    "a field more": (Says(message('{"met":1,"score":5}')), "no form of brf", '{"met":1,"score":5}'),
    "another field": (Says(message('{"score":1}')), "no form of brf", '{"score":1}'),
    "a list of verdicts": (Says(message(f"[{GOOD}]")), "not a JSON object", f"[{GOOD}]"),
    "a huge answer": (Says(message("z" * HUGE)), "not JSON", "z" * HUGE),
    "a deep answer": (Says(message("[" * 100_000)), "not JSON", "[" * 100_000),
    "half a character": (Says(message('{"met":"\ud83d"}')), "", '{"met":"\\ud83d"}'),
}
OK = [("0", -1.0), ("1", -1.0)]
AS_LABELS = {
    "no probabilities": (Says(message("1", "length")), "no probabilities", "1"),
    "null for them": (Says(message("1", "length", logprobs=None)), "no probabilities", "1"),
    "none in the list": (Says(message("1", "length", logprobs={"content": []})), FORMAT, "1"),
    "a list for them": (Says(message("1", "length", logprobs=[1])), FORMAT, "1"),
    "none for the first": (Says(message("1", logprobs=tops([]))), "no probabilities", "1"),
    "NaN": (Says(label("1", [("0", float("nan")), ("1", -1.0)])), "no probabilities", "1"),
    "certainty and more": (Says(label("1", [("0", -1.0), ("1", 0.5)])), "no probabilities", "1"),
    "infinite": (Says(label("1", [("0", -1.0), ("1", float("inf"))])), "no probabilities", "1"),
    "nothing possible": (Says(label("1", [("0", float("-inf")), ("1", float("-inf"))])), "no probabilities", "1"),
    "words": (Says(label("1", [("0", "low"), ("1", "high")])), "no probabilities", "1"),
    "nothing": (Says(label("1", [("0", None), ("1", -1.0)])), "no probabilities", "1"),
    "truth": (Says(label("1", [("0", -1.0), ("1", False)])), "no probabilities", "1"),
    "of other tokens": (Says(label("1", [("yes", -0.1), ("no", -3.0)])), "no probabilities", "1"),
    "of one label only": (Says(label("1", [("1", -0.1), ("yes", -3.0)])), "no probabilities", "1"),
    "tokens that are none": (Says(label("1", [(1, -0.1), (0, -3.0)])), "no probabilities", "1"),
    "tokens in a list": (Says(message("1", logprobs=tops([{"token": ["1"], "logprob": -1.0}]))), FORMAT, "1"),
    "a label not offered": (Says(label("2", [*OK, ("2", -0.1)])), "none of its labels", "2"),
    "a label and more": (Says(label("1.", OK)), "none of its labels", "1."),
    "a label with a space": (Says(label(" 1", OK)), "none of its labels", " 1"),
    "a whole answer": (Says(label(GOOD, OK, "stop")), "none of its labels", GOOD),
    "no label": (Says(label("", OK)), "none of its labels", ""),
    "a filtered label": (Says(label("1", OK, "content_filter")), "none of its labels", "1"),
}


@pytest.mark.parametrize(("spec", "cases"), [(JSON, EVERYWHERE | AS_JSON), (LOGIT, EVERYWHERE | AS_LABELS)])
def test_whatever_a_server_sends_is_unscored_with_its_words_kept(hostile, spec, cases):
    hostile.plays = {name: play for name, (play, _, _) in cases.items()}
    good = [f"good {i}" for i in range(5)]
    found, error = ask(hostile, spec, [*good[:2], *cases, *good[2:]])
    assert error is None
    assert set(found) == {*cases, *good}
    for name, (_, reason, raw) in cases.items():
        verdict = found[name]
        assert verdict.answer is None, name
        assert verdict.value("met") is None, name
        assert reason in verdict.unscored, (name, verdict.unscored)
        assert len(verdict.unscored) < 300, name
        assert raw in verdict.raw, (name, verdict.raw[:200])
        assert (verdict.unscored + verdict.raw).encode(), name  # fit to be kept
    assert all(found[name].answer == {"met": 1} for name in good)
    assert set(hostile.asked.values()) == {1}  # a bad answer is an answer: it is not asked for again


WHOLE = json.dumps(message(GOOD)).encode()
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
FAULTS = {
    "hangs up at once": b"",
    "hangs up in its head": HEAD[:20],
    "hangs up in the body": HEAD + f"Content-Length: {len(WHOLE)}\r\n\r\n".encode() + WHOLE[:-20],
    "hangs up between chunks": HEAD + b"Transfer-Encoding: chunked\r\n\r\n10\r\n" + WHOLE[:16] + b"\r\n",
    "chunks of no length": HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + WHOLE,
    "does not speak HTTP": b"SSH-2.0-OpenSSH_9.6\r\n",
    "says it is packed": HEAD + f"Content-Encoding: gzip\r\nContent-Length: {len(WHOLE)}\r\n\r\n".encode() + WHOLE,
    "a head without end": HEAD + b"X-A: " + b"a" * 200_000,
    "busy": b"HTTP/1.1 503 Busy\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
    "too many": b"HTTP/1.1 429 Later\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
}


@pytest.mark.parametrize("spec", [JSON, LOGIT], ids=["json", "logit"])
def test_faults_of_the_transport_are_tried_again(hostile, spec):
    hostile.plays = {name: Breaks(wire) for name, wire in FAULTS.items()}
    found, error = ask(hostile, spec, [*FAULTS, "good"])
    assert error is None
    assert {name: verdict.answer for name, verdict in found.items()} == {name: {"met": 1} for name in [*FAULTS, "good"]}
    assert hostile.asked == Counter(dict.fromkeys(FAULTS, 4)) + Counter(["good"])


@pytest.mark.parametrize("name", ["hangs up in the body", "says it is packed", "busy"])
def test_a_fault_that_stays_leaves_what_was_answered(hostile, name):
    hostile.plays = {name: Breaks(FAULTS[name], times=10**9)}
    found, error = ask(hostile, JSON, ["good 1", "good 2", name, "good 3"], in_flight=1)
    assert isinstance(error, Unreachable)
    assert set(found) == {"good 1", "good 2"}
    assert hostile.asked[name] == module.ATTEMPTS
    assert hostile.asked["good 3"] == 0


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_path_or_a_key_that_is_wrong_is_one_sentence(hostile, status):
    hostile.plays = {"lost": Says(b"<html>nothing here</html>", status)}
    found, error = ask(hostile, JSON, ["good", "lost"], in_flight=1)
    assert isinstance(error, ServerError)
    assert f"returned status {status}: check its key and model name" in str(error)
    assert "\n" not in str(error)
    assert set(found) == {"good"}


METRICS = [
    b"",
    b"vllm:prefix_cache_hits_total many\nvllm:prefix_cache_queries_total many\n",
    b"vllm:prefix_cache_hits_total NaN\nvllm:prefix_cache_queries_total \xff\xfe\n",
    b"vllm:prefix_cache_hits_total{" + b"a" * 100_000,
    b"vllm:prefix_cache_hits_total 1e308\nvllm:prefix_cache_hits_total +Inf\n",
]


@pytest.mark.parametrize("metrics", METRICS)
def test_metrics_that_are_none_disturb_nobody(hostile, metrics):
    hostile.metrics = metrics
    with Client(ExternalServer(hostile.url, None), Composer(lambda _: None, 32), 1, 10) as client:
        assert all(isinstance(count, float | int) for count in client.counters().values())
