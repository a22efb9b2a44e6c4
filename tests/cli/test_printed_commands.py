"""Every command that the documentation, `--help` or a message prints is executed, with its literal arguments.

The commands are found in the files, so that a new one is tested without being listed here; a placeholder without an
entry in `VALUES` or `BLANKS` is an error. They run in one process, in a folder that has the runs and files they name.
What needs weights, a GPU, a network or a server stops there: `reached` is in the place of the phases.
"""

import ast
import os
import re
import shlex
import shutil
import socket

import click
import pytest

from local_bench.cli.main import cli, main
from local_bench.core.errors import UserError
from tests.conftest import ROOT

EARLIER_RUN = ROOT / "tests/data/earlier_run"
COMMAND = re.compile(r"(?:`|^[ >]*(?:\$ )?(?:[A-Z_]+=\S+ )*|&& )(?:\S*/)?local-bench ([^`\n]+)", re.MULTILINE)
AFTER = re.compile(r"\s+#.*|\s&&.*")
RUN = "runs/studio"
VALUES = {
    "RUN": RUN, "RUN_A": "runs/a", "RUN_B": "runs/b", "CONFIG": "my.yaml", "FOLDER": "images", "DIR": "payers/new",
    "FILE": "labels.jsonl", "FILE.svg": "new.svg", "FILE|FOLDER": "new.json", "DATASET_FOLDER": "images",
    "OUT": "new.jsonl", "COMMIT": 40 * "a", "K": "2", "CARD": "qwen3-vl-8b", "ADDRESS": "node1:6379",
    "SUITE": "servimage", "PAPER": "servimage", "TABLE": "table-2", "NAME": "servimage",
    "models NAME": "flux1-schnell", "annotate NAME": "r01", "export NAME": "ice-bench", "doctor NAME": "speed",
    "--protocol NAME": "accept", "--out FOLDER": "new", "--out FILE": "new.jsonl", "--metrics …": "ssim",
    "--set …": "acceptance.brf=4", "--path …": "images",
}  # fmt: skip
"""What a placeholder stands for, after an option or in a command if it has another meaning there."""
BLANKS = {
    "plan": ["my.yaml"], "run": ["my.yaml"],
    "judge": [RUN, "panel_word=mean"], "annotate": [RUN], "annotate status": [RUN], "annotate export": [RUN],
    "settle": [RUN, "acceptance.brf=4"],
    "verify": [RUN], "report": [RUN], "recover": [RUN], "agreement": [RUN, "labels.jsonl"], "reproduce": ["servimage"],
    "score": ["servimage", "annotations.jsonl", ""], "predictor evaluate": ["payers/a"],
    "models fetch": ["flux1-schnell", 40 * "a"], "models add": ["lab/model"], "suites fetch": ["servimage", "new"],
}  # fmt: skip
"""What a message has in its blanks, by command."""
PLUGINS = "unknown metric 'sharpness'|unknown paper 'lab-shapes'"
"""The metric and the benchmark that docs/extending.md adds."""


def printed():
    """The command lines that the project prints, without `local-bench`; the blanks of a message are `{}`."""
    texts = [file.read_text() for file in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))]
    texts += [file.read_text() for file in (ROOT / "docs").rglob("*.ipynb")]
    for file in (ROOT / "local_bench").rglob("*.j2"):
        texts.append(re.sub("</?code>", "`", file.read_text()))
    for file in (ROOT / "local_bench").rglob("*.py"):
        inside = set()
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                inside |= {id(part) for part in node.values}
                texts.append("".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
                texts.append(node.value)
    lines = (line for text in texts for line in COMMAND.findall(text.replace("\\\n", " ")))
    return sorted({AFTER.sub("", line).strip(" .").replace("\\|", "|") for line in lines})


PRINTED = printed()


def names_of(words):
    """The names of the command and its subcommand at the start of the words."""
    command, names = cli, []
    while isinstance(command, click.Group) and len(names) < len(words) and words[len(names)] in command.commands:
        names.append(words[len(names)])
        command = command.commands[names[-1]]
    return names


def arguments(line):
    """The words of a printed command line, with something in the place of every blank and placeholder. Brackets are
    left out, and of alternatives all but the first. What is only the name of a command gets `--help`."""
    names = names_of(line.split())
    for blank in BLANKS.get(" ".join(names), ()):
        line = line.replace("{}", blank, 1)
    assert "{}" not in line, f"give BLANKS[{' '.join(names)!r}] a value"
    line = re.sub(r" (\||or) --[a-z-]+( [A-Z]+)?|[\[\]]", "", line)
    words = shlex.split(re.sub(r"(?<!--metrics )(?<!--set )(?<!--path )…", "", line))[len(names) :]
    return [*names, *(valued(names[:1], i and words[i - 1], words[i].rstrip(",")) for i in range(len(words)))] + (
        [] if words else ["--help"]
    )


def valued(of, before, word):
    value = next((VALUES[key] for key in (f"{before} {word}", " ".join([*of, word]), word) if key in VALUES), word)
    assert not re.fullmatch(r"[A-Z_|]{2,}|[A-Z]|…", value), f"give VALUES[{word!r}] a value"
    return value


def test_commands_are_found_where_they_are_printed():
    for line in (
        "doctor --gpu",  # README
        "compare RUN_A RUN_B",  # an indented block
        "settle runs/studio --set settlement.usd_per_hour=2 --save",  # --help
        "judge {}",  # a message
        "models fetch studio",  # after a variable
    ):
        assert line in PRINTED
    assert len(PRINTED) > 200


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """Prepares the working folder for the words of a command, and returns their exit status and stderr."""

    def lab_for(words):
        for run in {RUN, *(word for word in words if word.startswith("runs/"))} - {"runs/whole"}:
            shutil.copytree(EARLIER_RUN, tmp_path / run)
        for name in ("images", "originals", "outputs", "data"):
            if any(word.partition("/")[0] == name for word in words):
                shutil.copytree(EARLIER_RUN / "images", tmp_path / name)
        for name in ("my.yaml", "edit.yaml"):
            (tmp_path / name).write_text("name: mine\nmodels: [{card: flux1-schnell}]\njudge: {card: qwen3-vl-8b}\n")
        (tmp_path / "captions.jsonl").write_text('{"image": "a.png", "caption": "a house"}\n')
        (tmp_path / "raters.yaml").write_text("annotators: [{name: r01}, {name: r02, role: lead}]\n")
        (tmp_path / "local-bench/models").mkdir(parents=True)
        (tmp_path / "local-bench/models/my-flux.yaml").write_text(
            "name: my-flux\nextends: flux1-schnell\ntitle: ours\n"
        )
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin/sbatch").write_text("#!/bin/sh\necho 1\n")
        (tmp_path / "bin/sbatch").chmod(0o755)

    monkeypatch.chdir(tmp_path)
    proxies = [name for name in os.environ if name.lower().endswith("_proxy")]
    for name in ("LOCAL_BENCH_RUNS", "LOCAL_BENCH_CONFIG_DIRS", *proxies):
        monkeypatch.delenv(name, raising=False)
    for name, value in (("HOME", tmp_path), ("HF_HUB_CACHE", tmp_path / "hub")):
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    for place in (
        "local_bench.runs.stages.ran", "local_bench.runs.timing.add_timings", "uvicorn.Server.run",
        "local_bench.runs.gpu_check.main.run_checks", "local_bench.runs.payment.judge_payment",
        "local_bench.report.site.build.write_site", "local_bench.report.site.paper.write_exports",
        "local_bench.annotation.serve.serve",
    ):  # fmt: skip
        monkeypatch.setattr(place, reached)
    monkeypatch.setattr("socket.getaddrinfo", offline)
    return lab_for


def reached(*_, **__):
    raise UserError("reached")


def offline(host, *more, real=socket.getaddrinfo, **how):
    if host == "127.0.0.1":
        return real(host, *more, **how)
    raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")


def fault(words, capsys):
    """What is wrong with a command line: it has to end well, or with one sentence of ours (click's own begin with
    `Error`) that is not about its arguments."""
    status = main(words)
    said = capsys.readouterr().err
    last = (said.splitlines() or [""])[-1]
    wrong = "unexpected error|there is no key|is no setting|input should be|must be an |not of the form|unknown "
    if status not in (0, 1, 2) or (status == 2 and not last.startswith(("local-bench: ", "gpu_check: "))):
        return said
    return said if re.search(wrong, re.sub(PLUGINS, "", said)) else None


@pytest.mark.parametrize("line", PRINTED)
def test_it_works_as_it_is_printed(lab, capsys, line):
    words = arguments(line)
    lab(words)
    assert fault(words, capsys) is None


def test_a_path_with_a_space_is_quoted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(EARLIER_RUN, "a run")
    (tmp_path / "c.yaml").write_text("name: c\nmodels: [{card: tiny-flux}]\njudge: {card: tiny-qwen3-vl}\n")
    assert main(["init", "studio", "--out", "my config.yaml"]) == 0
    assert main(["revise", "write", "a run", "--out", "new tasks"]) == 0
    commands = [line.replace("CONFIG", "c.yaml") for line in COMMAND.findall(capsys.readouterr().out)]
    assert [shlex.split(line)[:2] for line in commands] == [
        ["plan", "my config.yaml"],
        ["run", "my config.yaml"],
        ["run", "c.yaml"],
    ]
    assert main(["plan", *shlex.split(commands[2])[1:], "--json"]) == 0, "the tasks of the revisions are planned"


@pytest.mark.parametrize(
    "line",
    [
        "plam studio", "plan studio --gpuz a6000", "plan studio --gpus many", "plan studio studio", "settle",
        "run my.yaml --set seed=one", "run my.yaml --set judge.protocoll=logit", "models fetch --on-nodes",
        "settle runs/studio --set settlement.usd_per_hour=free", "measure images --metrics clipscore",
    ],
)  # fmt: skip
def test_a_command_that_does_not_work_is_noticed(lab, capsys, line):
    words = line.split()
    lab(words)
    assert fault(words, capsys)
