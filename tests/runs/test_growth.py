"""Runs grow: an extended config adds models, attempts, tasks, metrics and judges to a run, and annotators add labels;
everything else is refused."""

import json
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file, save_file

from local_bench.analysis.digest import digests
from local_bench.annotation.database import FILE as ANNOTATIONS
from local_bench.annotation.ratings import stored_lines
from local_bench.cli.main import main
from local_bench.core.errors import ConfigError, LedgerError
from local_bench.models.cards import card
from local_bench.models.weights import resolve
from local_bench.runs import stages
from local_bench.runs.config import RunConfig
from local_bench.runs.rundir import RunDir
from local_bench.runs.verify import verify
from tests.annotation.conftest import answer_all
from tests.orders import Recorded, order, write_orders
from tests.stages import run_stages

from .failing_server import FailingServer

TASKS = {"mug": 2, "logo": 1, "hat": 1}
COLOURS = {"alpha": "red", "beta": "green", "gamma": "blue"}
STAGES = ("generate", "measure", "settle")
ADDITIONS = (
    *("beta", "gamma", "attempts alpha", "attempts beta", "tasks", "entropy", "l1_raw"),
    *("second judge", "labels first", "labels second"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("growth")
    lines = [order(task, [f"image {i}" for i in range(1, n + 1)], brief="Draw it.") for task, n in TASKS.items()]
    write_orders(path / "tasks.jsonl", lines)
    for model, colour in COLOURS.items():
        for task, n in TASKS.items():
            for i in range(1, n + 1):
                for attempt in (1, 2):
                    file = path / model / task / f"{i}_{attempt}.png"
                    file.parent.mkdir(parents=True, exist_ok=True)
                    Image.new("RGB", (24 + i, 16 + attempt), colour).save(file)
    return path


def config_of(folder: Path, added: set[str], *, seed: int = 0, reverse: bool = False, judge_url: str = "") -> RunConfig:
    served = {"card": "qwen3-vl-2b", "canaries": False, "base_url": judge_url, "served_model": "judge"}
    names = [name for name in COLOURS if name == "alpha" or name in added][:: -1 if reverse else 1]
    attempts = {name: 2 if f"attempts {name}" in added else 1 for name in names}
    images = {name: {"card": "imported", "imported": {"images": str(folder / name)}} for name in names}
    return RunConfig(
        name="t",
        seed=seed,
        suite={"name": "servimage", "path": str(folder / "tasks.jsonl"), "limit": None if "tasks" in added else 1},
        models=[images[name] | {"name": name, "attempts": attempts[name]} for name in names],
        metrics=[name for name in ("entropy", "l1_raw") if name in added],
        engine={"device": "cpu"},
        judge=served if judge_url else {"card": "tiny-qwen3-vl"},
        panel=[served | {"name": "second", "seed": 1}] if "second judge" in added else [],
    )


def grow(folder: Path, path: Path, added: set[str], server: FailingServer, reverse: bool = False) -> None:
    """Adds all of `added`, labels included, to the run at `path`."""
    config = config_of(folder, added, reverse=reverse, judge_url=server.url)
    run_stages(config, path, ("generate", "measure", "judge", "settle"))
    annotators = {name: "annotator" for name in ("first", "second") if f"labels {name}" in added}
    if annotators:
        answer_all(path, "accept", annotators, lambda name, item, *_: int(item.item_id[0], 16) > 7 + (name == "first"))


def results(path: Path) -> tuple[dict[str, str], list[tuple[str, int]]]:
    with RunDir.open(path) as run:
        return digests(run), [(row.key, row.position) for row in run.store.candidates()]


def results_of_judging(path: Path, server: FailingServer) -> tuple[dict[str, str], list, list, Counter]:
    """The results of a run, and how often each request was answered since the counter was last cleared."""
    with RunDir.open(path) as run:
        labels = sorted(map(str, stored_lines(path / ANNOTATIONS, run)))
    n_requests = Counter(server.answered)
    server.answered.clear()
    return *results(path), labels, n_requests


@pytest.fixture(scope="module")
def question_server():
    with FailingServer() as server:
        yield server


@pytest.fixture(scope="module")
def complete_run(folder, question_server):
    question_server.answered.clear()
    grow(folder, folder / "complete", set(ADDITIONS), question_server)
    return results_of_judging(folder / "complete", question_server)


@settings(
    max_examples=6, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(order=st.permutations(ADDITIONS), cuts=st.sets(st.integers(1, len(ADDITIONS) - 1), max_size=3), data=st.data())
def test_any_order_of_additions_gives_the_digests_of_the_complete_run(
    folder, tmp_path_factory, question_server, complete_run, order, cuts, data
):
    path = tmp_path_factory.mktemp("grown") / "run"
    for end in (0, *sorted(cuts), len(order)):
        grow(folder, path, set(order[:end]), question_server, reverse=data.draw(st.booleans()))
    grow(folder, path, set(ADDITIONS), question_server)
    assert results_of_judging(path, question_server) == complete_run
    assert complete_run[2]
    assert sum(complete_run[3].values()) > 100


def test_images_added_after_judging_are_named_until_they_are_judged(folder, tmp_path, question_server):
    def findings():
        with RunDir.open(tmp_path / "run") as run:
            return verify(run)

    grow(folder, tmp_path / "run", set(), question_server)
    assert findings() == []
    more = config_of(folder, {"attempts alpha"}, judge_url=question_server.url)
    run_stages(more, tmp_path / "run", ("generate",))
    faults = [(finding.subject, finding.fault) for finding in findings() if finding.check == "scores"]
    assert {name for name, _ in faults} == {f"image {i} of mug by alpha, attempt 2" for i in (1, 2)}
    assert len(faults) == 2
    assert all(f"enter `local-bench judge {tmp_path}/run`" in fault for _, fault in faults)
    of_decisions = [finding.fault for finding in findings() if finding.check == "decisions"]
    assert len(of_decisions) == 2
    assert all(
        f"is missing: if it was added after the others were settled, enter `local-bench settle {tmp_path}/run`" in fault
        for fault in of_decisions
    )
    run_stages(more, tmp_path / "run", ("judge", "settle"))
    assert findings() == []


def test_a_run_reports_the_time_of_additions(folder, tmp_path):
    suite, notes = {"name": "servimage", "path": str(folder / "tasks.jsonl"), "limit": 1}, Recorded()
    for attempts in (1, 2):
        model = {"card": "tiny-flux", "height": 64, "width": 64, "num_inference_steps": 1, "attempts": attempts}
        config = RunConfig(name="t", suite=suite, models=[model], metrics=[], engine={"device": "cpu"})
        run_stages(config, tmp_path / "run", ("generate",), notes)
    expected = r"tiny-flux: 2 candidates are added to the run's 2, about \d+ s on one device at the speed measured in "
    assert any(re.fullmatch(expected + "this run", note) for note in notes.notes), notes.notes


def test_a_run_reports_what_is_added_and_retains_results(folder, tmp_path):
    path = tmp_path / "run"
    run_stages(config_of(folder, set()), path, STAGES)
    with RunDir.open(path) as run:
        before = {row.work_id: row for row in run.store.candidates()}
    notes = Recorded()
    run_stages(config_of(folder, {"beta", "entropy"}), path, STAGES, notes)
    assert "beta: 2 candidates are added to the run's 2" in notes.notes
    with RunDir.open(path) as run:
        after = {row.work_id: row for row in run.store.candidates()}
        assert run.config.metrics == ["entropy"]
        assert {row.score.name for row in run.store.scores()} == {"entropy"}
    assert all(after[work_id].pixels_sha256 == row.pixels_sha256 for work_id, row in before.items())
    assert len(after) == 4


@pytest.fixture(scope="module")
def grown_run(folder):
    run_stages(config_of(folder, {"beta", "tasks", "entropy"}), folder / "grown", STAGES)
    return folder / "grown"


@pytest.mark.parametrize(
    ("added", "seed", "sentence"),
    [
        ({"entropy"}, 0, r"models\.beta\.\w+: .* in the run, null now"),
        ({"beta", "tasks", "entropy"}, 1, "seed: 0 in the run, 1 now"),
        ({"beta", "entropy"}, 0, "suite.limit: null in the run, 1 now"),
        ({"beta", "tasks"}, 0, "metrics.entropy: true in the run, null now"),
    ],
)
def test_removals_and_changes_are_refused_and_run_yaml_is_unchanged(folder, grown_run, added, seed, sentence):
    before = (grown_run / "run.yaml").read_bytes()
    with pytest.raises(ConfigError, match=sentence):
        run_stages(config_of(folder, added, seed=seed), grown_run, STAGES)
    assert (grown_run / "run.yaml").read_bytes() == before


def test_a_changed_task_or_image_is_refused_with_the_first_difference(folder, tmp_path):
    path, own = tmp_path / "run", tmp_path / "own"
    for name in ("alpha", "beta"):
        shutil.copytree(folder / name, own / name)
    shutil.copy(folder / "tasks.jsonl", own)
    run_stages(config_of(own, set()), path, STAGES)
    before = (path / "run.yaml").read_bytes()
    Image.new("RGB", (9, 9), "white").save(own / "alpha/mug/1_1.png")
    with pytest.raises(ConfigError, match=r"image 1 of 'mug' by alpha, attempt 1, would change \(work\.pixels: "):
        run_stages(config_of(own, {"beta"}), path, STAGES)
    (own / "tasks.jsonl").write_text((own / "tasks.jsonl").read_text().replace("Draw it.", "Paint it."))
    with pytest.raises(ConfigError, match="the task 'mug' has changed since this run began"):
        run_stages(config_of(own, {"beta"}), path, STAGES)
    assert (path / "run.yaml").read_bytes() == before


@pytest.mark.parametrize(
    ("change", "column"),
    [("prompt = 'another'", "prompt"), ("seed = seed + 1", "seed"), ("work = '{}'", "work"), ("width = 8", "width")],
)
def test_a_candidate_with_another_prompt_or_seed_than_planned_is_refused(folder, grown_run, tmp_path, change, column):
    """Else a resumed run would generate another image under the same work id."""
    path = shutil.copytree(grown_run, tmp_path / "run")
    config = config_of(folder, {"beta", "tasks", "entropy"})
    with RunDir.begin(path, config) as run:
        run.store.write(f"UPDATE candidates SET {change} WHERE attempt = 1")
    before = (path / "run.yaml").read_bytes()
    with pytest.raises(LedgerError, match=f"alpha, attempt 1, has a {column} that does not follow from its work id"):
        run_stages(config, path, STAGES)
    assert (path / "run.yaml").read_bytes() == before


def test_an_imported_image_that_was_missing_can_be_added(folder, tmp_path):
    path, own = tmp_path / "run", tmp_path / "own"
    (own / "alpha/mug").mkdir(parents=True)
    shutil.copy(folder / "alpha/mug/1_1.png", own / "alpha/mug")
    shutil.copy(folder / "tasks.jsonl", own)
    run_stages(config_of(own, {"entropy"}), path, STAGES)
    shutil.copy(folder / "alpha/mug/2_1.png", own / "alpha/mug")
    run_stages(config_of(own, {"entropy"}), path, STAGES)
    run_stages(config_of(folder, {"entropy"}), tmp_path / "complete", STAGES)
    assert results(path) == results(tmp_path / "complete")


def test_a_setting_that_the_device_refuses_can_be_corrected_in_the_same_folder(tmp_path, capsys):
    """An attention kernel for GPUs left a run that only the refused config could continue. With one image the run is
    bound to its config."""
    config = {"name": "t", "suite": {"name": "studio", "limit": 1}, "models": [{"card": "tiny-flux"}], "judge": None}
    (tmp_path / "t.yaml").write_text(yaml.safe_dump(config | {"engine": {"device": "cpu"}, "metrics": ["entropy"]}))
    command = ["run", str(tmp_path / "t.yaml"), "--run-dir", str(tmp_path / "run")]
    small = ["--set", "models.0.height=64", "--set", "models.0.width=64"]
    assert main([*command, "--set", "engine.attention_backend=flash"]) == 2
    assert "engine.attention_backend: 'flash' does not run on cpu" in capsys.readouterr().err
    assert main([*command, *small]) == 0
    with RunDir.open(tmp_path / "run") as run:
        assert [(row.height, row.state) for row in run.store.candidates()] == [(64, "done")]
        assert len(run.store.sessions()) == 1
    with RunDir.open(tmp_path / "run") as run:
        assert verify(run) == []
    assert main(command) == 2
    assert "is a run with another config (models.tiny-flux.height: 64 in the run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "height"),
    [((), 64), (("--set", "models.0.height=128"), 128), (("--model", "tiny-sd3"), None)],
    ids=["mended", "changed", "removed"],
)
def test_a_model_whose_files_were_faulty_can_be(tmp_path, capsys, settings, height):
    """The run was bound to the faulty files: fetching them again, as it said, was no way to continue."""
    file = "transformer/diffusion_pytorch_model.safetensors"
    weights = shutil.copytree(resolve(card("tiny-flux", "generator")), tmp_path / "weights")
    tensors = load_file(weights / file)
    save_file({name: tensors[name] for name in sorted(tensors)[1:]}, weights / file, {"format": "pt"})
    small = {"height": 64, "width": 64, "num_inference_steps": 1}
    models = [small | {"card": "tiny-flux", "name": "mine", "weights": str(weights)}, small | {"card": "tiny-sd3"}]
    config = {"name": "t", "suite": {"name": "studio", "limit": 1}, "models": models, "metrics": ["entropy"]}
    (tmp_path / "t.yaml").write_text(yaml.safe_dump(config | {"judge": None, "engine": {"device": "cpu"}}))
    run = tmp_path / "run"

    def ran(*settings):
        status = main(["run", str(tmp_path / "t.yaml"), "--run-dir", str(run), *settings])
        with RunDir.open(run) as opened:
            measured = opened.store.scores_by_candidate("metric")
            assert verify(opened) == []
            rows = opened.store.candidates()
        return status, {
            row.model: (row.height if row.state == "done" else None, row.work_id in measured) for row in rows
        }

    generated = {"tiny-sd3": (64, True)}
    assert ran() == (2, {"mine": (None, False)} | generated)
    assert "its files lack weights of transformer" in capsys.readouterr().err
    save_file(tensors, weights / file, {"format": "pt"})
    assert ran(*settings) == (0, ({"mine": (height, True)} if height else {}) | generated)
    capsys.readouterr()
    assert main(["settle", str(run), "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["models"]) == ({"mine", "tiny-sd3"} if height else {"tiny-sd3"})
    assert ran("--set", "models.1.height=128")[0] == 2  # it has images
    assert "is a run with another config (models." in capsys.readouterr().err


def test_a_run_that_ended_before_its_first_image_can_be_settled(tmp_path, capsys, monkeypatch):
    """`settle --json` ended with an unexpected error: the paper's figures take the scores of no images."""
    config = {"name": "t", "suite": {"name": "studio", "limit": 1}, "models": [{"card": "tiny-flux"}], "metrics": []}
    (tmp_path / "t.yaml").write_text(yaml.safe_dump(config | {"judge": {"card": "mini-judge"}}))
    monkeypatch.setattr(stages, "_run_device_stages", lambda *_: pytest.fail("killed"))
    with pytest.raises(pytest.fail.Exception):
        main(["run", str(tmp_path / "t.yaml"), "--run-dir", str(tmp_path / "run")])
    assert main(["settle", str(tmp_path / "run"), "--json"]) == 0
    (settled,) = json.loads(capsys.readouterr().out)["models"].values()
    assert (settled["revenue_usd"], settled["n"], settled["n_unscored"]) == (0, 0, 1)


def test_a_stage_needs_the_files_of_what_it_runs_alone(tmp_path, capsys, monkeypatch):
    """Images are made on one machine, and measured and judged on another, which has neither the lab's own card of the
    model nor its weights."""
    weights, own = tmp_path / "weights", tmp_path / "local-bench/models/mine.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("extends: tiny-flux\nname: mine\n")
    shutil.copytree(resolve(card("tiny-flux", "generator")), weights)
    model = {"card": "mine", "weights": str(weights), "height": 64, "width": 64, "num_inference_steps": 1}
    config = {"name": "t", "suite": {"name": "studio", "limit": 1}, "models": [model], "metrics": ["entropy"]}
    config |= {"judge": {"card": "mini-judge", "transport": "local"}, "engine": {"device": "cpu"}}
    (tmp_path / "t.yaml").write_text(yaml.safe_dump(config))
    monkeypatch.chdir(tmp_path)
    assert main(["generate", "t.yaml", "--run-dir", "run"]) == 0
    shutil.rmtree(weights)
    own.unlink()
    assert main(["measure", "run"]) == 0
    assert main(["judge", "run"]) == 0
    capsys.readouterr()
    assert main(["settle", "run", "--json"]) == 0
    (settled,) = json.loads(capsys.readouterr().out)["models"].values()
    assert settled["n_unscored"] == 0
    assert main(["generate", "t.yaml", "--run-dir", "run"]) == 2
    assert "unknown generator 'mine'" in capsys.readouterr().err
