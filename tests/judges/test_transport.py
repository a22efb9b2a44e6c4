"""Questions in requests and back, and several judges side by side: everything answered once, or Unreachable."""

import random
import sys
import threading
import time
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint

import pytest

from local_bench.core.errors import ConfigError, ImageError, ServerError
from local_bench.core.types import Question
from local_bench.judges.vlm import judge as judge_module
from local_bench.judges.vlm import replicas as replicas_module
from local_bench.judges.vlm.judge import Judge, JudgeSpec, Unreachable, answers
from local_bench.judges.vlm.protocols import Reply, Request, Shown
from local_bench.judges.vlm.replicas import Replicas

JSON = JudgeSpec("card", "0" * 64, "float32", 16384, 32, 0)
LOGIT = JudgeSpec("card", "0" * 64, "float32", 16384, 32, 0, "logit")
TECHNICAL = [(i, Question("veq_technical", 0, (f"{i}",), ())) for i in range(12)]
WAIT_S = 20


@dataclass
class Fake:
    """Answers with `answer(request)`; after `lasts` replies it raises `fault`."""

    answer: object = lambda request: Reply(request.name, "stop")
    lasts: int = 10**9
    fault: Exception = field(default_factory=lambda: Unreachable("gone"))
    together: threading.Barrier | None = None
    """Where those that raise a fault wait for each other."""
    after: threading.Event | None = None
    """Until it is set, no reply is given."""
    pause_s: float = 0.0005
    cannot_start: Exception | None = None
    cannot_restart: Exception | None = None
    counted: dict = field(default_factory=dict)
    received: list = field(default_factory=list)
    at_once: list = field(default_factory=list)
    restarts: int = 0
    up: bool = False
    ended: threading.Event = field(default_factory=threading.Event)
    closed: threading.Event = field(default_factory=threading.Event)
    taken: threading.Event = field(default_factory=threading.Event)
    """It has taken a request."""

    def __enter__(self):
        if self.cannot_start:
            raise self.cannot_start
        self.up = True
        return self

    def __exit__(self, *_):
        self.up = False
        self.ended.set()

    def complete(self, requests, at_once=None):
        self.at_once.append(at_once)
        try:
            for n, (key, request) in enumerate(requests):
                if n >= self.lasts:
                    if self.together:
                        self.together.wait()
                    raise self.fault
                self.taken.set()
                if self.after:
                    self.after.wait(WAIT_S)
                time.sleep(self.pause_s)
                self.received.append(request)
                yield key, self.answer(request)
        finally:
            self.closed.set()

    def restart(self):
        self.restarts += 1
        if self.cannot_restart:
            raise self.cannot_restart
        self.lasts = 10**9

    def counters(self):
        return self.counted


class Shuffled(Fake):
    """Takes everything, then answers in an order of its own."""

    def complete(self, requests, at_once=None):
        taken = list(requests)
        random.Random(1).shuffle(taken)
        for key, request in taken:
            yield key, self.answer(request)


def request(image, name="r"):
    return Request("system", (Shown((image,)),), "text", 8, 0, 0, name)


def requests_of(images, each):
    """`each` requests on every image, the images one after the other."""
    return [((p, i), request(f"{p}", f"{p}/{i}")) for p in range(images) for i in range(each)]


def label(request):
    """Sure of a digit that the image and the criterion decide."""
    best = str((int(request.shown[0].images[0]) + request.text.count('"clarity" alone')) % 6)
    return Reply(best, "length", {digit: 0.0 if digit == best else -50.0 for digit in request.labels})


@pytest.mark.parametrize("transport", [Fake(label), Shuffled(label)])
def test_replies_of_a_question_are_combined_in_any_order(transport):
    results = list(answers(transport, LOGIT, TECHNICAL))
    assert len(results) == 12
    assert {key: v.answer for key, v in results} == {n: {"clarity": (n + 1) % 6, "realism": n % 6} for n in range(12)}


def test_a_question_is_answered_once_its_own_requests_are_and_questions_are_read_lazily():
    drawn, transport = [], Fake(label)

    def questions():
        for key, question in TECHNICAL:
            drawn.append(key)
            yield key, question

    results = answers(transport, LOGIT, questions(), at_once=1)
    assert [next(results)[0], list(drawn), next(results)[0]] == [0, [0], 1]
    assert transport.at_once == [1]
    assert list(answers(Fake(), JSON, [])) == []


def test_a_partly_answered_question_is_not_answered():
    results = {}
    with pytest.raises(Unreachable):
        results.update(answers(Fake(label, lasts=7), LOGIT, TECHNICAL))
    assert {key: v.answer["realism"] for key, v in results.items()} == {0: 0, 1: 1, 2: 2}


def within(seconds, call):
    """The result of `call` and its error, in a thread, so that one that never ends fails instead of hanging."""
    results = []

    def work():
        try:
            results.append((call(), None))
        except Exception as e:  # noqa: BLE001  # the test checks the error
            results.append((None, e))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    assert results, "it did not end"
    return results[0]


def complete_all(members, requests, at_once=None):
    """The keys and texts of the replies, and the error that ended the call."""
    came = []

    def go():
        with Replicas(members) as replicas:
            for key, reply in replicas.complete(requests, at_once):
                came.append((key, reply.text))

    return came, within(WAIT_S, go)[1]


def all_of(requests):
    return sorted((key, request.name) for key, request in requests)


def test_several_judges_start_together_and_answer_everything_once():
    together = threading.Barrier(3, timeout=WAIT_S)

    class Slow(Fake):
        def __enter__(self):
            together.wait()
            return super().__enter__()

    members = [Slow(pause_s=p) for p in (0.0001, 0.001, 0.003)]
    requests = requests_of(60, 3)
    came, error = complete_all(members, iter(requests), at_once=5)
    assert (error, sorted(came)) == (None, all_of(requests))
    assert len(members[0].received) > len(members[2].received) > 0  # the quicker one did more
    assert [member.at_once for member in members] == [[5]] * 3
    assert not any(member.up for member in members)


def test_requests_with_the_same_first_image_go_to_one_judge():
    members = [Fake() for _ in range(4)]
    assert complete_all(members, requests_of(40, 5))[1] is None
    owners = [{r.shown[0].images[0] for r in member.received} for member in members]
    assert all(owners)
    assert sum(map(len, owners)) == len(set().union(*owners)) == 40


ENDED = ServerError("the judge keeps failing")


def test_requests_of_an_ended_replica_go_to_the_others():
    members = [Fake(), Fake(lasts=5), Fake()]
    requests = requests_of(200, 2)
    came, error = complete_all(members, iter(requests))
    assert (error, sorted(came)) == (None, all_of(requests))
    assert members[1].restarts == 1
    assert len(members[1].received) > 5


def test_last_requests_of_an_ended_replica_go_to_a_finished_one():
    members = [Fake(), Fake(lasts=1, pause_s=0.2, cannot_restart=ENDED)]
    members[0].after = members[1].taken
    requests = requests_of(2, 3)
    notes = []
    with Replicas(members, notes.append) as replicas:
        came = [key for key, _ in replicas.complete(iter(requests))]
    assert sorted(came) == sorted(key for key, _ in requests)
    assert notes == ["a replica of the judge stopped responding (gone); 2 questions go to the others", str(ENDED)]


def test_received_replies_are_yielded_before_unreachable():
    members = [Fake(lasts=5, cannot_restart=ENDED) for _ in range(3)]
    came, error = complete_all(members, requests_of(200, 2))
    assert isinstance(error, Unreachable)
    assert len(set(came)) == len(came) == 15


def test_a_joining_replica_gets_requests_unless_it_cannot_start(monkeypatch):
    monkeypatch.setattr(replicas_module, "_POLL_S", 0.05)
    late, broken = Fake(), Fake(cannot_start=ENDED)
    joining = [[late, broken]]
    members, notes = [Fake(pause_s=0.02)], []
    with Replicas(members, notes.append, lambda: joining.pop() if joining else []) as replicas:
        came = list(replicas.complete(requests_of(60, 1)))
        assert late.up
    assert sorted(key for key, _ in came) == [(p, 0) for p in range(60)]
    assert late.received
    assert not late.up
    assert any("could not be started" in note for note in notes)


@pytest.mark.parametrize("fault", [ImageError("x.png is damaged"), ServerError("wrong key"), ZeroDivisionError("ours")])
def test_permanent_errors_take_precedence_over_unreachable(fault):
    together = threading.Barrier(3, timeout=WAIT_S)
    members = [Fake(lasts=3, together=together, cannot_restart=ENDED) for _ in range(3)]
    members[1].fault = fault
    came, error = complete_all(members, requests_of(200, 1))
    assert (error, len(came)) == (fault, 9)


def test_an_error_while_reading_questions_is_raised():
    def requests():
        yield from requests_of(20, 1)
        raise ZeroDivisionError

    came, error = complete_all([Fake(), Fake()], requests())
    assert isinstance(error, ZeroDivisionError)
    assert len(came) == 19  # what shares the last image was still being gathered


@pytest.mark.parametrize(("images", "each"), [(500, 1), (3, 200)])
def test_a_call_can_be_abandoned_and_repeated(images, each):
    members = [Fake(pause_s=0.001) for _ in range(3)]

    def n_received():
        return sum(len(member.received) for member in members)

    def go():
        with Replicas(members) as replicas:
            replies = replicas.complete(requests_of(images, each))
            next(replies)
            replies.close()
            before = n_received()
            assert all(member.closed.is_set() for member in members)  # nobody works on what nobody waits for
            again = dict(replicas.complete(requests_of(30, 2)))
            return before, n_received() - before, set(again)

    (before, after, keys), error = within(WAIT_S, go)
    assert (error, after, keys) == (None, 60, {key for key, _ in requests_of(30, 2)})
    assert before < 100


@pytest.mark.parametrize("fault", [ServerError("the judge ended while starting"), ZeroDivisionError("ours")])
def test_a_judge_that_cannot_start_ends_the_others(fault):
    members = [Fake(), Fake(cannot_start=fault), Fake()]
    assert complete_all(members, requests_of(3, 1)) == ([], fault)
    assert [member.ended.is_set() for member in members] == [True, False, True]
    assert not any(member.up for member in members)


def test_counts_are_sums_and_a_restart_is_for_all():
    members = [Fake(counted={"prompt_tokens": 3.0, "cached_tokens": 1.0}), Fake(counted={"prompt_tokens": 4.0}), Fake()]
    replicas = Replicas(members)
    assert replicas.counters() == {"prompt_tokens": 7.0, "cached_tokens": 1.0}
    replicas.restart()
    assert [member.restarts for member in members] == [1, 1, 1]


class Plugged(Judge):
    version = "1"
    returns: object = Reply("{}", "stop")
    fault: Exception | None = None

    def open(self):
        if self.fault:
            raise self.fault

    def reply(self, request, images):
        return self.returns


class Incomplete(Judge):
    version = "1"


@pytest.fixture
def installed(monkeypatch):
    """A package with the judges of this file."""
    names = ("Plugged", "Incomplete")
    points = tuple(EntryPoint(name.lower(), f"{__name__}:{name}", judge_module.PLUGINS) for name in names)
    monkeypatch.setattr(judge_module, "entry_points", lambda group: points)


@pytest.mark.parametrize(
    ("returned", "fault"),
    [
        (Reply("{}", "stop", {"1": -0.5}), None),
        (Reply(None, refusal="too long"), None),
        (None, "Plugged.reply returned NoneType instead of Reply"),
        ('{"met": 1}', "Plugged.reply returned str instead of Reply"),
        (Reply({"met": 1}, "stop"), "Plugged.reply: text is dict instead of str"),
        (Reply("{}", 7), "Plugged.reply: finish_reason is int instead of str"),
        (Reply("1", "stop", [-0.5]), "Plugged.reply: logprobs is list instead of Mapping"),
        (Reply("1", refusal=["no"]), "Plugged.reply: refusal is list instead of str"),
    ],
)
def test_a_plugins_reply_that_is_none_is_that_questions_failure(monkeypatch, installed, returned, fault):
    """Named by class and field; without the check it ended the run as an unexpected error."""
    monkeypatch.setattr(Plugged, "returns", returned)
    with judge_module.plugged("plugged", None, None, "cpu", "float32") as judge:
        replies = list(judge.complete([(7, Request("", (), "?", 9, 0, 0, "veq_technical", {}))]))
    expected = returned if fault is None else Reply("", refusal=f"failed while judging (TypeError: {fault})")
    assert replies == [(7, expected)]


def test_a_plugin_that_cannot_be_opened_is_named(monkeypatch, installed):
    monkeypatch.setattr(Plugged, "fault", KeyError("model"))
    expected = r"'plugged' \(tests.judges.test_transport.Plugged\) cannot be opened \(KeyError: 'model'\): correct"
    with pytest.raises(ConfigError, match=expected), judge_module.plugged("plugged", None, None, "cpu", "float32"):
        pass
    monkeypatch.setattr(Plugged, "fault", ServerError("its own sentence"))
    with (
        pytest.raises(ServerError, match=r"^its own sentence$"),
        judge_module.plugged("plugged", None, None, "cpu", ""),
    ):
        pass


def test_a_plugin_that_exits_ends_nothing_else(monkeypatch, installed):
    """Its exit ended the command, without a sentence and with the status that it chose."""
    monkeypatch.setattr(Plugged, "reply", lambda *_: sys.exit(0))
    with judge_module.plugged("plugged", None, None, "cpu", "float32") as judge:
        ((_, reply),) = judge.complete([(7, Request("", (), "?", 9, 0, 0, "veq_technical", {}))])
    assert reply.refusal == "failed while judging (SystemExit: 0)"
    monkeypatch.setattr(Plugged, "fault", SystemExit(0))
    with (
        pytest.raises(ConfigError, match=r"cannot be opened \(SystemExit: 0\)"),
        judge_module.plugged("plugged", None, None, "cpu", "float32"),
    ):
        pass


def test_a_plugin_without_what_a_judge_has_is_refused(monkeypatch, installed):
    with pytest.raises(ConfigError, match="Incomplete defines no reply, which every judge has"):
        judge_module.plugin("incomplete")
    monkeypatch.delattr(Plugged, "version")
    with pytest.raises(ConfigError, match="Plugged defines no version"):
        judge_module.plugin("plugged")
