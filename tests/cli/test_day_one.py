"""docs/models.md: a new generator and a new judge, both folders on disk, on a benchmark by a config of a few lines."""

import re
import shlex
import shutil
from pathlib import Path

from local_bench.cli.main import main
from local_bench.models.cards import card
from local_bench.models.weights import resolve
from local_bench.runs.rundir import RunDir
from tests.judges.small_families import build

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "models.md").read_text()


def test_the_example_runs_as_it_is_printed(tmp_path, monkeypatch, capsys):
    """The generator has Z-Image's classes, the judge Qwen3.5's."""
    example = PAGE.split("## A new generator and a new judge on a benchmark")[1].split("\n## ")[0]
    commands, config = re.findall(r"```[^\n]*\n(.*?)```", example, re.DOTALL)
    assert len(config.splitlines()) <= 12
    shutil.copytree(resolve(card("tiny-z-image", "generator")), tmp_path / "checkpoints" / "our-generator")
    build("qwen35", tmp_path / "checkpoints" / "our-judge")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    Path("day-one.yaml").write_text(config)
    for command in commands.splitlines():
        program, *arguments = shlex.split(command)
        assert program == "local-bench"
        assert main(arguments) == 0, capsys.readouterr().err
    with RunDir.open(Path("runs/day-one")) as run:
        counts = run.store.counts()
        assert counts.done == counts.candidates > 0
        assert counts.verdicts > 0
        assert run.store.rows("SELECT count(*) AS n FROM verdicts WHERE unscored IS NULL")[0]["n"] > 0
    assert "$" in capsys.readouterr().out
    # The files of the judge are not part of the run. If they change, its answers are not silently others.
    (weights,) = (tmp_path / "checkpoints" / "our-judge").glob("*.safetensors")
    changed = bytearray(weights.read_bytes())
    changed[-100] ^= 1
    weights.write_bytes(changed)
    for times in (1, 0):
        assert main(["judge", "runs/day-one", "--set", "judge.canaries=false"]) == 0
        assert capsys.readouterr().err.count("our-judge is another judge than before (its weights or") == times
    with RunDir.open(Path("runs/day-one")) as run:
        assert (
            len(list(run.store.verdicts(counted=False))) == 2 * len(list(run.store.verdicts())) == 2 * counts.verdicts
        )
