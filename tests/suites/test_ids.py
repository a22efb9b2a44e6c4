"""Ids are text as they were written: 7, 007 and 0012 are three of them, wherever they are read."""

import json

import pytest
import yaml
from PIL import Image

import local_bench
from local_bench.cli.main import main
from local_bench.core.errors import ConfigError
from local_bench.core.yamlfile import yaml_text, yaml_value
from local_bench.runs.config import load_config
from local_bench.suites.hype_edit_1.results import read_judgements
from local_bench.suites.ice_bench.results import read_eval_result
from local_bench.suites.idea_bench.results import read_results
from local_bench.suites.servimage.results import read_annotations, read_paid_tasks, read_scores

IDS = ("7", "007", "0012", "10", "1e3", "0x1F", "12_34")


@pytest.mark.parametrize(
    "text", ["007", "0012", "08", "00", "-007", "007.5", "12:30", "2024_01", "0x1F", "0b11", "1e3"]
)
def test_what_only_yaml_1_1_reads_as_a_number_is_text(text):
    assert yaml_value(text) == text
    assert yaml_value(f"{{a: {text}}}") == {"a": text}
    assert yaml.safe_load(yaml_text({"a": text})) == {"a": text}  # what is written is text for every reader


@pytest.mark.parametrize(
    ("text", "value"),
    [("7", 7), ("-7", -7), ("0", 0), ("1_000", 1000), ("0.5", 0.5), (".5", 0.5), ("-1.5e-3", -1.5e-3), ("5.", 5)],
)
def test_numbers_stay_numbers(text, value):
    assert yaml_value(text) == value
    assert type(yaml_value(text)) is type(yaml.safe_load(text))


@pytest.mark.parametrize("name", ["007", "0012", "2024", "7"])
def test_names_in_a_config_and_its_settings_may_be_numbers(tmp_path, name):
    file = tmp_path / "c.yaml"
    file.write_text(f"name: {name}\nsuite: {{part: {name!r}}}\nmodels: [{{card: tiny-flux, name: {name}}}]\n")
    config = load_config(file)
    assert (config.name, config.models[0].name, config.suite.part) == (name, name, name)
    assert load_config(file, (f"--model={name}",)).models == config.models
    file.write_text("name: x\nmodels: [{card: tiny-flux}, {card: tiny-flux, name: b}]\n")
    config = load_config(file, (f"name={name}", f"models.0.name={name}", f"judge.name={name}"))
    assert (config.name, config.models[0].name, config.judge.name) == (name, name, name)


NO_NAME = r"name: input should be a valid string, not .* \(put it in quotes\)"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        *((f"name: {text}", NO_NAME) for text in ("1.10", "2024-01-05", "no")),
        ("name: x\nseed: 0012", "line 2: seed: input should be a valid integer, not '0012'"),  # no number: its zeros
    ],
)
def test_other_values_are_refused_with_what_to_do(tmp_path, line, message):
    (tmp_path / "c.yaml").write_text(f"{line}\nmodels: [{{card: tiny-flux}}]\n")
    with pytest.raises(ConfigError, match=message):
        load_config(tmp_path / "c.yaml")


def lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_tasks_models_and_annotators_of_a_run(tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch")  # it generates
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made").mkdir()
    order = {"category": "0012", "price_usd": 10, "title": "t", "brief": "A red mug.", "deliverables": ["one image"]}
    order["evaluation_points"] = ["The mug is red."]
    lines(tmp_path / "orders.jsonl", [{"task_id": name} | order for name in IDS])
    for i, name in enumerate(IDS):
        Image.new("RGB", (64, 64), (i, 0, 0)).save(tmp_path / f"made/{name}.png")
    (tmp_path / "c.yaml").write_text(
        "name: 007\nsuite: {name: servimage, path: orders.jsonl, part: 0012}\nmetrics: [entropy]\n"
        "models: [{card: imported, name: 0012, imported: {images: made}}]\n"
    )
    rows = [
        {"model": "0012", "task_id": name, "deliverable": 1, "rater": rater, "overall": name != "7"}
        for name in IDS
        for rater in ("007", "7")
    ]
    lines(tmp_path / "people.jsonl", rows)
    for command in ("generate c.yaml", "measure runs/007", "settle runs/007 --people people.jsonl"):
        assert main([*command.split(), "--json"]) == 0, capsys.readouterr().err
    with local_bench.load_run("runs/007") as run:
        candidates = run.candidates()
    assert sorted(candidates["task_id"]) == sorted(IDS)
    assert set(candidates["model"]) == set(candidates["category"]) == {"0012"}


def test_result_files_of_the_benchmarks(tmp_path):
    paid = lines(
        tmp_path / "t.jsonl", [{"task_id": i, "category": "007", "price_usd": 1, "deliverables": 1} for i in IDS]
    )
    assert [task.task_id for task in read_paid_tasks(paid)] == list(IDS)
    people = [{"model": "007", "task_id": i, "annotations": {"subtask_1": True}} for i in IDS]
    assert [one.task_id for one in read_annotations([lines(tmp_path / "a.jsonl", people)])[0]] == list(IDS)
    scores = [{"model": "007", "task_id": i, "deliverable": 1, "brf": 1, "veq": 1, "cns": None} for i in IDS]
    rated = read_scores(lines(tmp_path / "s.jsonl", scores))
    assert [(image.model, image.task_id) for image in rated] == [("007", i) for i in IDS]
    verdicts = {i: {"M1": {"001.webp": {"verdict": "PASS"}}} for i in IDS}
    data = {"schema_version": 2, "dataset": "d", "models": {"M1": "0012"}, "judgements": verdicts}
    (tmp_path / "j.json").write_text(json.dumps(data))
    judged = read_judgements([tmp_path / "j.json"])
    assert {(row.model, row.task_id, row.attempt) for row in judged.rows} == {("0012", i, 1) for i in IDS}
    (tmp_path / "e.txt").write_text("".join(f'{i}#;#Color Editing#;#{{"x": 0.5}}\n' for i in IDS))
    assert [item.item_id for item in read_eval_result(tmp_path / "e.txt")] == list(IDS)


@pytest.mark.parametrize(("task", "case"), [("0007", "0012"), ("7", "12"), ("007", "012")])
def test_idea_bench_ids_have_four_digits_however_a_spreadsheet_left_them(tmp_path, task, case):
    header = "task_name,task_id,case_id,question_id,score_1,score_2,score_3,score_4,score_5\n"
    (tmp_path / "r.csv").write_text(f"{header}name,{task},{case},1,1,1,1,1,1\n")
    (row,) = read_results(tmp_path / "r.csv")
    assert (row.task_id, row.case_id) == ("0007", "0012")
