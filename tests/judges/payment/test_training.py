import json
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from local_bench.core.errors import ConfigError, LocalBenchError, RunImageError, UserError
from local_bench.judges.payment import artefact, training
from local_bench.judges.payment.artefact import Card, base_of
from local_bench.judges.payment.data import TrainingSet, load_payment_config, without_labels
from local_bench.judges.payment.network import PaymentNetwork, concept_loss
from local_bench.judges.payment.training import Progress, train
from local_bench.models.cards import card
from local_bench.models.weights import resolve
from local_bench.runs.executors import processes
from tests.judges.payment import tiny
from tests.judges.payment.test_adapters import backbone


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Card]:
    """Both stages, without interruption."""
    folder = tmp_path_factory.mktemp("payment") / "model"
    return folder, fit(folder)


class Stopped(Exception):
    pass


def stop_at(stage: int, step: int) -> Callable[[Progress], None]:
    def after(progress: Progress) -> None:
        if (progress.stage, progress.step) == (stage, step):
            raise Stopped

    return after


def test_both_stages_train_and_the_card_has_all_digests(trained: tuple[Path, Card]) -> None:
    folder, finished = trained
    assert sorted(path.name for path in folder.iterdir()) == ["adapters.safetensors", "card.json", "heads.safetensors"]
    assert finished == artefact.load_card(folder)
    assert {entry["stage"] for entry in finished.metrics["history"]} == {1, 2}
    assert finished.trained_on.n_labelled == {"train": 12, "validation": 4, "test": 4}
    assert set(finished.metrics["test"]) == {"n", "accuracy", "majority", "auc", "brier", "log_loss", "concepts"}
    assert not set(finished.trained_on.tasks["train"]) & set(finished.trained_on.tasks["test"])
    assert "/" not in json.dumps(
        [finished.base.model_dump(), finished.config.model_dump(exclude={"prompt"})]
    )  # no paths


def fit(folder: Path, **settings: Any) -> Card:
    changes = settings.pop("config", {})
    return train(tiny.data(), tiny.load, tiny.config(**changes), folder, device="cpu", **settings)


def stopped(folder: Path, stage: int, step: int) -> None:
    with pytest.raises(Stopped):
        fit(folder, after_step=stop_at(stage, step))


def _killed(folder: Path) -> None:
    def kill(progress: Progress) -> None:
        if (progress.stage, progress.step) == (2, 4):
            os.kill(os.getpid(), signal.SIGKILL)

    fit(folder, after_step=kill)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Interrupted in both stages, then killed in the second."""
    folder = tmp_path_factory.mktemp("killed") / "model"
    stopped(folder, 1, 2)
    assert not (folder / "card.json").exists()
    stopped(folder, 2, 1)
    child = processes.CONTEXT.Process(target=_killed, args=(folder,))
    child.start()
    child.join(300)
    assert child.exitcode == -signal.SIGKILL
    return folder


def test_an_interrupted_and_killed_training_ends_with_the_same_bytes(
    trained: tuple[Path, Card], killed: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(killed, tmp_path / "model")
    (folder / "checkpoints" / ".checkpoint.safetensors.x.writing").touch()
    notes: list[str] = []
    fit(folder, report=notes.append)
    assert notes[0] == "continuing stage 2 after step 4"
    assert tiny.files(folder) == tiny.files(trained[0])


def test_another_generator_state_after_an_interruption_is_noticed(
    trained: tuple[Path, Card], killed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: a resumed training whose dropout differs does not end with the same bytes."""
    folder = shutil.copytree(killed, tmp_path / "model")
    right = training.seed_at
    monkeypatch.setattr(training, "seed_at", lambda *what: right("other", *what))
    fit(folder)
    assert tiny.files(folder)["adapters.safetensors"] != tiny.files(trained[0])["adapters.safetensors"]


def test_an_unfinished_training_of_other_settings_is_not_continued(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    stopped(folder, 1, 1)
    with pytest.raises(UserError, match="unfinished training with other settings"):
        fit(folder, config={"seed": 1})
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"other files \(notes.txt\)"):
        fit(folder)


def test_a_finished_training_is_not_repeated(trained: tuple[Path, Card]) -> None:
    folder, finished = trained
    before = tiny.files(folder)
    assert fit(folder) == finished
    assert tiny.files(folder) == before
    with pytest.raises(UserError, match="other settings, data or weights"):
        fit(folder, config={"seed": 1})


def test_a_reloaded_model_predicts_the_same_without_labels_and_a_missing_image_is_unscored(
    trained: tuple[Path, Card],
) -> None:
    folder, finished = trained
    examples = tiny.data().of("test")
    first = list(artefact.load(folder, device="cpu").predict(without_labels(examples), tiny.load))
    model = artefact.load(folder, device="cpu")
    assert list(model.predict(reversed(examples), tiny.load)) == first[::-1]
    assert all(item.unscored is None and item.log_odds is not None for item in first)
    assert all(0 <= value <= 5 for item in first for value in item.concepts.values())
    right = [(item.log_odds or 0) >= 0 for item in first] == [example.accepted == 1 for example in examples]
    assert right == (finished.metrics["test"]["accuracy"] == 1)

    def missing(sha: str) -> Image.Image:
        raise RunImageError("x.png does not exist: restore it", "missing")

    (item,) = model.predict(examples[:1], missing)
    assert (item.log_odds, item.unscored) == (None, "x.png does not exist: restore it")


def test_a_prediction_is_computed_in_one_thread_as_the_training(trained: tuple[Path, Card]) -> None:
    """With several, sums depend on their number, and small models wait for busy cores."""
    before, threads = torch.get_num_threads(), list[int]()

    def load(sha: str) -> Image.Image:
        threads.append(torch.get_num_threads())
        return tiny.load(sha)

    torch.set_num_threads(3)
    try:
        assert len(list(artefact.load(trained[0], device="cpu").predict(tiny.data().of("test")[:2], load))) == 2
    finally:
        torch.set_num_threads(before)
    assert set(threads) == {1}


@pytest.mark.parametrize("name", ["adapters.safetensors", "heads.safetensors", "card.json"])
def test_a_changed_byte_is_refused(trained: tuple[Path, Card], tmp_path: Path, name: str) -> None:
    shutil.copytree(trained[0], tmp_path, dirs_exist_ok=True)
    file = tmp_path / name
    data = bytearray(file.read_bytes())
    at = data.index(b'"seed": 0') + 8 if name == "card.json" else len(data) - 3
    data[at] = ord("7") if name == "card.json" else data[at] ^ 1
    file.write_bytes(data)
    with pytest.raises(UserError, match="was altered after training"):
        artefact.load(tmp_path, device="cpu")
    file.unlink()
    with pytest.raises(UserError, match=r"is missing|has no card"):
        artefact.load(tmp_path, device="cpu")


def test_other_weights_prompts_and_libraries_are_refused(
    trained: tuple[Path, Card], monkeypatch: pytest.MonkeyPatch
) -> None:
    base = base_of("tiny-qwen3-vl", resolve(card("tiny-qwen3-vl", "judge")))
    for name in ("weights", "processor"):
        with pytest.raises(UserError, match=f"the {name} of tiny-qwen3-vl differs"):
            artefact.check(trained[1], base.model_copy(update={name: "0" * 64}))
    for attribute, other, message in (
        ("version", lambda name: "0.1", "was trained with torch"),
        ("CAPTIONS", {"candidate": "Another caption:"}, "the prompt of this release differs"),
    ):
        artefact.check(trained[1], base)
        with monkeypatch.context() as patched:
            patched.setattr(artefact, attribute, other)
            with pytest.raises(UserError, match=message):
                artefact.check(trained[1], base)


def test_training_a_real_model_without_a_gpu_is_refused_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    config = load_payment_config("qwen3-vl-4b-4xa6000")
    with pytest.raises(ConfigError, match=r"^qwen3-vl-4b has 4.4 billion parameters, and this machine has no CUDA GPU"):
        train(tiny.data(), tiny.load, config, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_diverged_training_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "concept_loss", lambda outputs, *_: outputs.sum(dim=1) * float("inf"))
    with pytest.raises(LocalBenchError, match="loss of step 1 in stage 1 is not finite: lower the learning rate"):
        fit(tmp_path / "model")


def test_too_few_labels_and_missing_scores_are_refused(tmp_path: Path) -> None:
    data_set = tiny.data()
    paid = TrainingSet(
        tuple(example for example in data_set.examples if example.accepted == 1), data_set.measured_names
    )
    bare = TrainingSet(tuple(replace(example, measured=()) for example in data_set.examples))
    unscored = TrainingSet(tuple(replace(example, concepts=(tiny.NAN,) * 7) for example in bare.examples))
    for data, config, message in (
        (paid, tiny.config(), "all with the same decision: annotate more"),
        (bare, tiny.config(measured=True), "no measured scores"),
        (unscored, tiny.config(), "no training image has a concept score"),
    ):
        with pytest.raises(UserError, match=message):
            train(data, tiny.load, config, tmp_path / "model", device="cpu")


@pytest.mark.parametrize("kind", ["regression", "ordinal"])
def test_a_score_that_does_not_apply_is_not_zero(kind: str) -> None:
    network = PaymentNetwork(
        backbone("tiny-qwen3-vl"), tiny.config(concepts=kind, lora=tiny.config().row("concepts").lora)
    )
    network.concept_mean.fill_(2.0)
    network.concept_spread.fill_(1.5)
    shape = (1, 7) if kind == "regression" else (1, 7, 5)
    outputs = torch.zeros(shape, requires_grad=True)
    partial = torch.tensor([[4.0, tiny.NAN, tiny.NAN, tiny.NAN, tiny.NAN, tiny.NAN, 1.0]])
    concept_loss(outputs, partial, network).sum().backward()
    assert outputs.grad is not None
    moved = outputs.grad.reshape(7, -1).abs().sum(dim=1) > 0
    assert moved.tolist() == [True, False, False, False, False, False, True]
    zeros = torch.where(partial.isnan(), torch.zeros_like(partial), partial)
    assert not torch.equal(concept_loss(outputs, zeros, network), concept_loss(outputs, partial, network))
    nothing = torch.full((1, 7), tiny.NAN)
    assert concept_loss(outputs, nothing, network).item() == 0


def accuracy(data: TrainingSet, folder: Path) -> float:
    """On the test tasks, of a head on the frozen backbone."""
    stage = tiny.Stage(epochs=15, effective_batch=8, learning_rate=3e-3)
    config = tiny.config(stage2=stage, width=16, evaluate_every=30, save_every=1000).row("frozen")
    finished = train(data, tiny.load, config, folder, device="cpu")
    return float(finished.metrics["test"]["accuracy"])


def test_shuffled_labels_give_chance_accuracy(tmp_path: Path) -> None:
    """The negative control: no label reaches the features."""
    data_set = tiny.data(train=64, validation=16, test=48)
    assert accuracy(data_set, tmp_path / "right") >= 0.9
    assert 0.25 <= accuracy(tiny.shuffled(data_set), tmp_path / "shuffled") <= 0.75
