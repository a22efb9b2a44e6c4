"""A judge's server that fails after some answers: every complete answer is committed and not requested again."""

import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import tenacity

from local_bench.cli.main import main
from local_bench.judges.vlm import client
from local_bench.runs.rundir import RunDir
from local_bench.runs.verify import verify
from tests.orders import write_orders

from . import rows, two_orders
from .failing_server import FAILURES, FailingServer

CONFIG = """
name: t
suite: {name: servimage, path: orders.jsonl}
models:
  - {card: imported, name: theirs, imported: {images: images}}
metrics: []
judge: {card: tiny-qwen2-vl, canaries: false}
engine: {device: cpu}
"""
N_QUESTIONS = 2 * (2 * (3 + 2) + 2)  # three of VEQ and two points per image, the set and its second image


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    """A folder with orders, imported images and a run of them that is not judged."""
    path = tmp_path_factory.mktemp("generated")
    two_orders(path, "It is red", "It is round")
    (path / "run.yaml").write_text(CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        assert main(["generate", "run.yaml", "--run-dir", "run"]) == 0
    return path


@pytest.fixture(autouse=True)
def folder(generated, tmp_path, monkeypatch):
    shutil.copytree(generated, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("local_bench.judges.vlm.client._backoff", tenacity.wait_none())


def judge(url, *settings, name="run"):
    more = [text for setting in settings for text in ("--set", setting)]
    return main(["judge", "run.yaml", "--run-dir", name, "--set", f"judge.base_url={url}", *more])


def number(query, name="run"):
    return rows(Path(name), f"SELECT {query}")[0][0]


def n_verdicts(name="run"):
    return number("count(*) FROM verdicts WHERE answer IS NOT NULL", name)


def run_process(server, arguments):
    """Runs the command line in a fork, which the server may kill; returns its exit status."""
    server.pid_to_kill = pid = os.fork()
    if pid == 0:
        os._exit(main(arguments))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize(
    ("failure", "in_flight"), [*((failure, 4) for failure in FAILURES), ("reset", 1), ("refused", "null")]
)
def test_answered_questions_are_retained_and_not_sent_again(failure, in_flight, capsys):
    setting = f"judge.in_flight={in_flight}"
    with FailingServer(failure, n_answers=3) as first:
        assert judge(first.url, setting) == 1
    assert "stopped responding" in capsys.readouterr().err
    assert n_verdicts() == 3
    with FailingServer() as second:
        assert judge(second.url, setting) == 0
        assert second.answered.total() == N_QUESTIONS - 3
        assert not set(second.answered) & set(first.answered)
    assert n_verdicts() == N_QUESTIONS


def test_a_reply_that_is_no_answer_of_the_judge_is_requested_again():
    with FailingServer("200", n_answers=3) as first:
        assert judge(first.url) == 0
    with FailingServer() as second:
        assert judge(second.url) == 0
        assert second.answered.total() == N_QUESTIONS - 3
    assert n_verdicts() == N_QUESTIONS


def test_a_repeated_question_that_failed_is_repeated_again():
    with FailingServer() as server:
        assert judge(server.url) == 0
    repeat = ["judge", "run.yaml", "--run-dir", "run", "--rejudge", "1", "--set"]
    with FailingServer("200", n_answers=3) as first:
        assert main([*repeat, f"judge.base_url={first.url}"]) == 0
    with FailingServer() as second:
        assert main([*repeat, f"judge.base_url={second.url}"]) == 0
        assert second.answered.total() == N_QUESTIONS - 3
    assert number("count(*) FROM retests WHERE answer IS NOT NULL") == N_QUESTIONS


def test_an_incomplete_question_is_repeated_and_complete_ones_are_not(capsys):
    """Under `logit` each criterion is one request; sets are also sent in reverse order."""
    settings = ("judge.protocol=logit", "order_swap=true", "judge.in_flight=3")
    with FailingServer(n_answers=11) as first:
        assert judge(first.url, *settings, name="logit") == 1
    n_stored = n_verdicts("logit")
    assert n_stored >= 3  # only the question about a set, which is the last, has more than three criteria
    with FailingServer() as second:
        assert judge(second.url, *settings, name="logit") == 0
    with FailingServer() as third:
        assert judge(third.url, *settings, name="logit") == 0
        assert not third.answered
    assert 0 <= len(set(first.answered) & set(second.answered)) < 11
    charged = number("sum(n_items) FROM meter WHERE phase = 'judge'", "logit")
    assert number("count(*) FROM verdicts", "logit") == charged == N_QUESTIONS + 2 * 2


def test_when_one_of_two_judges_fails_the_other_is_not_repeated(capsys):
    panel = "panel=[{card: tiny-qwen2-vl, name: b, protocol: logit, canaries: false, base_url: 'URL'}]"
    with FailingServer() as first, FailingServer("reset", n_answers=5) as second:
        assert judge(first.url, panel.replace("URL", second.url)) == 1
        assert n_verdicts() > N_QUESTIONS
    with RunDir.open(Path("run")) as run:  # the session that failed has written no provenance, which is no fault
        assert verify(run) == []
        run.store.end_session(len(run.store.sessions()), "done")
        assert "has another number of sessions than the store" in [finding.fault for finding in verify(run)]
    with FailingServer() as first, FailingServer() as second:
        assert judge(first.url, panel.replace("URL", second.url)) == 0
        assert not first.answered
    assert n_verdicts() == 2 * N_QUESTIONS


def test_a_killed_command_has_committed_the_answers():
    """The process of the run is killed while it judges, before it has received 32 answers."""
    judging = ["judge", "run.yaml", "--run-dir", "run", "--set", "judge.in_flight=1", "--set"]
    with FailingServer("kill", n_answers=6) as first:
        assert run_process(first, [*judging, f"judge.base_url={first.url}"]) == -signal.SIGKILL
    n_stored = n_verdicts()
    assert 1 <= n_stored <= 6
    with FailingServer() as second:
        assert judge(second.url) == 0
        assert second.answered.total() == N_QUESTIONS - n_stored


@pytest.mark.parametrize("failure", ["refused", "500", "kill"])
def test_extract_retains_written_answers_and_requests_the_rest(tmp_path, failure, capsys):
    lines = [json.loads(line) for line in Path("orders.jsonl").read_text().splitlines()]
    bare = [{**line, "task_id": f"x{i}", "evaluation_points": []} for i, line in enumerate(lines * 4)]
    write_orders(Path("orders.jsonl"), bare)
    arguments = ["extract", "run.yaml", "--out", "written.jsonl", "--set", "judge.in_flight=1", "--set"]
    with FailingServer(failure, n_answers=3) as first:
        of_first = [*arguments, f"judge.base_url={first.url}"]
        status = run_process(first, of_first) if failure == "kill" else main(of_first)
    assert status == (-signal.SIGKILL if failure == "kill" else 1)
    captured = capsys.readouterr()
    assert "Traceback" not in captured.out + captured.err
    n_stored = len(Path("written.jsonl").read_text().splitlines())
    assert n_stored >= 1 if failure == "kill" else n_stored == 3
    with FailingServer() as second:
        assert main([*arguments, f"judge.base_url={second.url}"]) == 0
        assert second.answered.total() == 8 - n_stored
    assert len(Path("written.jsonl").read_text().splitlines()) == 8


@pytest.mark.parametrize(
    ("n_lost", "told", "status"), [(N_QUESTIONS, True, 1), (N_QUESTIONS // 2, True, 0), (1, False, 0)]
)
def test_verdicts_without_a_value_are_told_with_their_reason(n_lost, told, status, monkeypatch, capsys):
    """A tenth of them is told; all of them is an error."""
    read, given = client.reply, []

    def fenced(data):
        given.append(data)
        found = read(data)
        return replace(found, text=f"```{found.text}```") if len(given) <= n_lost else found

    monkeypatch.setattr(client, "reply", fenced)
    with FailingServer() as server:
        assert judge(server.url, "judge.in_flight=1") == status
    err = capsys.readouterr().err
    sentence = f"{n_lost} of {N_QUESTIONS} verdicts have no value: the judge's answer is not JSON ({n_lost})"
    assert (sentence in err) == told
    with RunDir.open(Path("run")) as run:
        (items,) = run.store.unscored_items()
    assert (items.n_unscored, items.n) == (n_lost, N_QUESTIONS)
    assert main(["settle", "run", "--json"]) == 0
    total = json.loads(capsys.readouterr().out)["models"]["theirs"]
    bounds = total["revenue_bound_low_usd"], total["revenue_bound_high_usd"]
    assert bounds == (total["revenue_usd"], total["revenue_usd"] + total["open_usd"])
    assert total["revenue_low_usd"] is None or total["revenue_low_usd"] < total["revenue_high_usd"]
    main(["settle", "run"])
    out = capsys.readouterr().out
    assert "$0.00 to $0.00" not in out
    assert ("up to $20.00 if its unscored images were accepted" in out) == (n_lost == N_QUESTIONS)


MODEL = {"id": "q", "root": "/data/models/qwen", "max_model_len": 4096}


@pytest.mark.parametrize("change", [{"id": "other"}, {"root": "/data/models/other"}, {"max_model_len": 8192}])
def test_another_model_at_a_resume_is_refused(change, capsys):
    with FailingServer(n_answers=3, **MODEL) as first:
        assert judge(first.url) == 1
    capsys.readouterr()
    with FailingServer(**(MODEL | change)) as second:
        assert judge(second.url) == 2
        assert not second.answered
    ((name, value),) = change.items()
    err = capsys.readouterr().err
    assert f"{name} {str(value).rpartition('/')[2]}" in err
    assert "and this run was judged by id q, max_model_len 4096, root qwen: serve that again" in err
    assert n_verdicts() == 3
    with FailingServer(**MODEL) as third:
        assert judge(third.url) == 0
    provenance = json.loads(Path("run/provenance.json").read_text())["judge"]
    assert provenance["served"] == {"id": "q", "root": "qwen", "max_model_len": 4096}  # no path
    assert main(["verify", "run"]) == 0
    assert judge("http://127.0.0.1:9/v1") == 0  # nothing is left to judge: no server is needed
    main(["generate", "run.yaml", "--run-dir", "second"])
    with FailingServer(**(MODEL | change)) as other:
        assert judge(other.url, name="second") == 0
    judged_by = json.loads(Path("second/provenance.json").read_text())["judge"]["judge_id"]
    assert judged_by != provenance["judge_id"]


def test_template_variables_are_part_of_a_judge_that_verifies():
    """`verify` computes the judge's identity from config and provenance."""
    setting = "judge.chat_template_kwargs={enable_thinking: false}"
    assert main(["generate", "run.yaml", "--run-dir", "brief", "--set", setting]) == 0
    with FailingServer(**MODEL) as server:
        assert judge(server.url, setting, name="brief") == 0
    assert main(["verify", "brief"]) == 0
