"""The last edge, the form of messages, the streams: what is printed when nothing else describes a fault. Each class of
faults that the harness detects is planted here once and must be found (negative controls)."""

import json
import os
import subprocess
import sys
import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local_bench.cli import main as module
from local_bench.cli.main import main
from local_bench.core.errors import MAX_CHARACTERS, UserError, escaped, escaped_json, sentence
from tests.hostile import harness
from tests.hostile.harness import Case, faults_of, run

COMMAND = ["ls", "."]


def planted(monkeypatch, act):
    command = module.cli.commands["ls"]
    monkeypatch.setattr(command, "callback", lambda *a, **k: act())


def fail(error):
    def act():
        raise error

    return act


PLANTED = {
    "AttributeError": fail(AttributeError("'NoneType' object has no attribute 'get'")),
    "NoneType": fail(UserError("the entry is a NoneType")),
    "ValueError": fail(UserError("[Errno 2] ValueError: no")),
    "SystemExit": fail(SystemExit(7)),
    "exit 7": lambda: 7,
    "hang": lambda: time.sleep(60),
    "control characters": lambda: print("\x1b[31m"),
    "exit 2 without a message": fail(UserError("")),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_the_harness_finds_a_planted_fault(fault, monkeypatch, tmp_path):
    monkeypatch.setattr(harness, "LIMIT_S", 0.2)
    monkeypatch.chdir(tmp_path)
    planted(monkeypatch, PLANTED[fault])
    if fault == "exit 2 without a message":
        monkeypatch.setattr(module, "say", lambda message: None)
    assert any(fault in text for text in run(COMMAND).faults)


def test_the_harness_finds_a_changed_input_and_bad_json(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inputs").mkdir()
    planted(monkeypatch, lambda: (tmp_path / "inputs/new").write_text("x") and print('{"a": NaN}'))
    faults = faults_of([Case("planted", ["ls", ".", "--json"])], unchanged=[tmp_path / "inputs"])
    assert any("changed in" in fault for fault in faults)
    planted(monkeypatch, lambda: print('{"a": NaN}'))
    assert "stdout is not strict JSON" in run(["ls", ".", "--json"]).faults


def test_an_unexpected_error_has_one_sentence_and_a_log(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("LOCAL_BENCH_CACHE", str(tmp_path))
    monkeypatch.setenv("MY_API_KEY", "planted-secret-1")
    planted(monkeypatch, fail(KeyError("planted-secret-1")))
    assert main(COMMAND) == 1
    stderr = capsys.readouterr().err
    (log,) = (tmp_path / "crashes").iterdir()
    assert stderr.count("\n") == 1
    assert str(log) in stderr
    assert "KeyError" in log.read_text()
    assert "planted-secret-1" not in log.read_text() + stderr
    with pytest.raises(KeyError):
        main(["--debug", *COMMAND])


@pytest.mark.parametrize(
    ("error", "statuses", "message"),
    [
        (MemoryError(), (1,), "not enough memory"),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), (1,), "not enough memory"),
        (RuntimeError("can't start new thread"), (1,), "cannot start another thread"),
        (OSError(28, "No space left on device", "x"), (1, 2), ""),
        (OSError(20, "Not a directory", "x/y"), (1, 2), ""),
    ],
)
def test_limits_of_the_machine_and_system_errors_are_reported(error, statuses, message, monkeypatch, capsys):
    planted(monkeypatch, fail(error))
    assert main(COMMAND) in statuses
    stderr = capsys.readouterr().err
    assert message in stderr
    assert "Errno" not in stderr


@pytest.mark.parametrize(("code", "status"), [(0, 1), (7, 7), ("text", 1)])
@pytest.mark.parametrize("command", [COMMAND, ["models", "list"]])
def test_a_package_that_exits_has_one_sentence_and_a_status(monkeypatch, capsys, command, code, status):
    planted(monkeypatch, fail(SystemExit(code)))
    monkeypatch.setattr(module.cli.commands["models"].commands["list"], "callback", lambda *a, **k: sys.exit(code))
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == status
    sentence = f"local-bench: a package ended the command (SystemExit: {code}): finished work is kept\n"
    assert capsys.readouterr().err == sentence


@given(st.text())
def test_messages_are_limited_and_printable(text):
    printed = sentence(text * 50)
    assert all(len(line) <= MAX_CHARACTERS for line in printed.split("\n"))
    assert all(c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in escaped(text))


JSON = st.recursive(st.none() | st.booleans() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x))


@given(JSON)
def test_escaped_json_has_the_same_value(value):
    text = escaped_json(json.dumps(value, ensure_ascii=False))
    assert json.loads(text) == value
    assert not set(text) & {"\x7f", "\x9b", "\u202e"}


def test_a_url_is_printed_without_its_user():
    assert sentence("no judge at http://me:secret@host/v1") == "no judge at http://host/v1"


STREAMS = {
    "full": ('exec "$@" > /dev/full', 1),
    "closed": ('exec "$@" >&-', 0),
    "both closed": ('exec "$@" >&- 2>&-', 0),
    "stdin closed": ('exec "$@" <&-', 0),
    "reader gone": ('"$@" | true; exit ${PIPESTATUS[0]}', None),
    "latin-1": ('export PYTHONIOENCODING=latin-1; exec "$@"', 0),
    "ascii": ('export PYTHONIOENCODING=ascii; exec "$@"', 0),
    "no locale": ('export LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0; exec "$@"', 0),
    "unknown locale": ('export LC_ALL=xx_YY.ZZ; exec "$@"', 0),
    "no home": ('unset HOME LOCAL_BENCH_CACHE; exec "$@"', 0),
    "home not a folder": ('unset LOCAL_BENCH_CACHE; export HOME=/dev/null; exec "$@"', 0),
    "few files": ('ulimit -n 12; exec "$@"', None),
    "folder gone": ('mkdir gone; cd gone; rmdir ../gone; exec "$@"', None),
}


@pytest.mark.parametrize("name", STREAMS)
def test_streams_and_environment(name, tmp_path):
    script, status = STREAMS[name]
    command = ["bash", "-c", script, "-", sys.executable, "-m", "local_bench", "suites", "list"]
    env = os.environ | {"PYTHONPATH": os.getcwd()}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, timeout=120, check=False)
    stderr = done.stderr.decode("utf-8", "replace")
    assert not any(word in stderr for word in ("Traceback", "Errno", "Exception ignored")), stderr
    assert done.returncode in ((0, 1, 2) if status is None else (status,)), stderr
