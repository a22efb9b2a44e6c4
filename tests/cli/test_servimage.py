"""The three published ServImage orders through all phases, with a real judge."""

import json

import pytest

from local_bench.cli.main import main
from tests.conftest import ROOT

pytestmark = pytest.mark.server


def test_three_real_orders_from_generation_to_settlement(cli, shared, judge_server, tmp_path):
    tasks = shared / "data/servimage-cases/tasks.jsonl"
    ended = cli(
        *("run", ROOT / "configs/runs/servimage-tiny.yaml", "--json"),
        *("--set", f"suite.path={tasks}", "--set", f"judge.base_url={judge_server.base_url}"),
        *("--set", "judge.canaries=false"),
        VLLM_API_KEY=judge_server.api_key.get_secret_value(),
    )
    assert ended.returncode == 0, ended.stderr
    stderr = ended.stderr.splitlines()
    assert [s for s in stderr if s.startswith("portrait-001: The source image images/portrait-001_source.png")]
    assert [s for s in stderr if s.startswith("product-015: The reference image images/product-015_ref1.png is not")]

    result = json.loads(ended.stdout)
    assert result["candidates"] == {"n": 6, "n_done": 5, "n_unscored": 1, "n_failed": 0}
    assert result["verdicts"]["n"] == 4 * (3 + 7) + 4 + (3 + 6)
    settled = result["models"]["tiny-flux"]
    assert settled["value_usd"] == 347.22
    assert settled["open_usd"] == 138.89
    assert (settled["n_tasks"], settled["n_tasks_unscored"], settled["n_unscored"]) == (3, 1, 1)
    assert settled["coverage"] == pytest.approx(1 - 138.89 / 347.22)
    page = (tmp_path / result["report"]).read_text()
    assert "60.0 % of the tasks&#39; value could be settled" in page
    tasks_data = "".join(path.read_text() for path in (tmp_path / result["report"]).parent.glob("data/0-tasks-*.js"))
    assert "which the order asks to edit, is not there" in tasks_data


def test_a_port_in_use_is_reported_before_the_generation(cli, judge_server, tmp_path):
    port = judge_server.base_url.split(":")[2].split("/")[0]
    ended = cli("demo", "--set", f"judge.port={port}", "--set", "judge.transport=served")
    assert ended.returncode == 2
    assert f"judge.port: {port} is in use" in ended.stderr
    assert not (tmp_path / "runs").exists()


def test_separate_phases_give_the_same_result(judge_server, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VLLM_API_KEY", judge_server.api_key.get_secret_value())

    def stdout_of(*arguments):
        capsys.readouterr()
        assert main([*arguments]) == 0
        return capsys.readouterr().out

    (tmp_path / "c.yaml").write_text(
        "name: c\nsuite: {name: studio, limit: 2}\nmodels: [{card: tiny-flux, height: 64, width: 64}]\n"
        f"judge: {{card: tiny-qwen3-vl, canaries: false, base_url: '{judge_server.base_url}'}}\nmetrics: [entropy]\n"
    )
    stdout_of("run", "c.yaml", "--run-dir", "whole")
    server = ("--set", f"judge.base_url={judge_server.base_url}")  # a run directory's own is not contacted
    for stage, target, more in (
        *(("generate", "c.yaml", ()), ("measure", "runs/c", ()), ("judge", "runs/c", server), ("settle", "runs/c", ())),
    ):
        stdout_of(stage, target, *more)
    assert stdout_of("digest", "runs/c", "--json") == stdout_of("digest", "whole", "--json")
    again = json.loads(stdout_of("settle", "runs/c", "--set", "acceptance={brf: 5.0, veq: 5.0, cns: 5.0}", "--json"))
    strict = again["models"]["tiny-flux"]["revenue_usd"]
    again = json.loads(stdout_of("settle", "runs/c", "--set", "acceptance={brf: 0.0, veq: 0.0, cns: 0.0}", "--json"))
    assert strict < again["models"]["tiny-flux"]["revenue_usd"] == again["models"]["tiny-flux"]["value_usd"]
    assert stdout_of("report", "runs/c") == "report: runs/c/report/index.html\n"
