"""ServImage_Dataset's label files: reading, noise, statistics, training."""

import json

import numpy as np
import pytest

from local_bench.analysis.predictors.images import doubtful, labelled_dataset, statistics, without
from local_bench.cli.main import main
from local_bench.core.errors import UserError
from local_bench.suites.servimage.results import CONCEPTS, read_dataset
from tests.analysis.annotated_runs import annotated_run


def line(**more):
    scores = dict.fromkeys(CONCEPTS, 3.0) | {"veq_text": "N/A", "cns_set_consistency": None}
    given = {"model": "m", "task_id": "portrait-001", "category": "C-Portrait", "subtask_idx": 0, "label": 1}
    return json.dumps(given | scores | more) + "\n"


def published(path, n=400, flipped=0.0):
    """Samples whose decision depends on brf; `flipped` of the decisions are wrong. Returns the wrong ones."""
    rng = np.random.default_rng(0)
    lines, wrong = [], set()
    for i in range(n):
        brf = rng.uniform(0, 5)
        accepted = brf + rng.normal(0, 0.3) > 2.5
        if rng.random() < flipped:
            accepted = not accepted
            wrong.add(f"m/C-Digital/{i}/1")
        lines.append(
            line(task_id=f"task_{i:03}", category="C-Digital", label=int(accepted), brf_overall_score=brf,
                 cns_set_consistency="N/A")
        )  # fmt: skip
    path.write_text("".join(lines))
    return wrong


def test_a_line_is_read(tmp_path):
    file = tmp_path / "train.jsonl"
    file.write_text(line(subtask_idx=1, extra=1))
    (one,) = read_dataset([file]).samples
    assert (one.key, one.task, one.deliverable, one.accepted) == ("m/C-Portrait/1/2", "C-Portrait/1", 2, True)
    by_name = {score.name: score for score in one.scores}
    assert set(by_name) == {"brf", "veq_clarity", "veq_realism", "veq_aesthetic", "veq_text", "cns_edit", "cns_set"}
    assert by_name["brf"].value == 3
    assert not by_name["veq_text"].applies
    assert by_name["cns_set"].unscored


def test_both_names_of_a_task_are_equal_within_a_category(tmp_path):
    file = tmp_path / "train.jsonl"
    file.write_text(line() + line(task_id="task_001", model="n") + line(task_id="task_001", category="C-Product"))
    images = labelled_dataset(read_dataset([file]))
    assert images.tasks[0] == images.tasks[1] != images.tasks[2]
    assert images.splits[0] == images.splits[1]


def test_repeats_contradictions_and_lines_without_a_label(tmp_path):
    file = tmp_path / "train.jsonl"
    file.write_text(line() + line() + line(model="n") + line(model="n", label=0) + line(model="o", label=None))
    found = read_dataset([file])
    assert (found.n_lines, len(found.samples), found.n_duplicates, found.n_unlabelled) == (5, 1, 1, 1)
    assert found.contradictory == ["n/C-Portrait/1/1"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (line(label=2), "label"),
        (line(label="1"), "label"),
        (line(brf_overall_score=6), "number from 0 to 5"),
        (line(veq_clarity="good"), "number from 0 to 5"),
        (line(task_id="../x"), "'../x'"),
        (line(subtask_idx=-1), "subtask_idx"),
        (line(label=None), "no sample with a decision"),
        ("[]\n", "sample"),
        ("", "no sample with a decision"),
    ],
)
def test_invalid_lines_are_an_error(text, message, tmp_path):
    file = tmp_path / "train.jsonl"
    file.write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        read_dataset([file])
    assert "\n" not in str(caught.value)


def test_the_noise_filter_finds_wrong_labels_in_training_alone(tmp_path):
    file = tmp_path / "train.jsonl"
    wrong = published(file, flipped=0.1)
    dataset = read_dataset([file])
    images = labelled_dataset(dataset)
    left_out = doubtful(images, 0.2)
    keys = {key for key, out in zip(images.keys, left_out, strict=True) if out}
    assert not (left_out & ~images.mask("train")).any()
    in_training = {key for key, split in zip(images.keys, images.splits, strict=True) if split == "train"} & wrong
    assert len(keys & in_training) > 0.6 * len(in_training)
    assert len(keys & in_training) > 0.8 * len(keys)
    filtered = without(images, left_out)
    assert len(filtered.tasks) == 400 - len(keys)
    assert filtered.manifest_sha256 != images.manifest_sha256
    found = statistics(dataset, filtered, len(keys))
    assert (found.n_samples, found.n_tasks, found.n_doubtful) == (400 - len(keys), 400 - len(keys), len(keys))
    assert next(e for e in found.explained if e.name == "brf").auc > 0.9


def test_statistics_and_a_predictor_for_a_run(tmp_path, capsys):
    file = tmp_path / "train.jsonl"
    published(file)
    assert main(["predictor", "dataset", str(file)]) == 0
    assert "400 samples of 400 tasks by 1 model" in capsys.readouterr().out
    out = tmp_path / "p"
    arguments = ["--least-confidence", "0.05", "--kind", "logistic", "--out", str(out), "--json"]
    assert main(["predictor", "dataset", str(file), *arguments]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["predictor"]["inputs"]["scores"] == list(CONCEPTS.values())
    assert output["n_doubtful"] >= 0
    run, _ = annotated_run(tmp_path / "run", range(3), models=("tiny-flux",))
    assert main(["predictor", "apply", str(run), "--predictor", str(out), "--other-judge"]) == 2
    assert "has no score 'veq_clarity'" in capsys.readouterr().err
