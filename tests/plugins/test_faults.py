"""A mistake in a package or a file of a lab's own is named by `plan`, before anything is generated."""

import importlib
import json
import re
import sys

import pytest
import yaml

from local_bench.annotation.protocol import load_protocol
from local_bench.core.errors import ConfigError
from local_bench.core.files import CONFIG_DIRS
from local_bench.judges.vlm.adding import unknown_variables
from local_bench.judges.vlm.rubrics import FOLDER, rubric
from local_bench.models.cards import card
from local_bench.runs.config import SettlementConfig
from local_bench.runs.prices import price_of
from local_bench.suites import registry
from tests.plugins.test_extending import ROOT, TITLED, stable_diffusion

SUITE = """
from local_bench import Deliverable, Question, Score, Suite


class Shapes(Suite):
    name, title, licence, source, paper = "lab-shapes", "Shapes", "CC0", "our lab", ""
    scores_of_judge, thresholds, lent = ("shape",), {"shape": 1.0}, {"shape": "drawn_shape"}

    def deliverables(self, task):
        return [Deliverable(task.task_id, 1, task.brief)]

    def questions(self, task, images, order_swap=False):
        for deliverable, image in sorted(images.items()):
            slots = (("brief", task.brief),)
            yield (deliverable, "lab_shape", 0, 0), Question("lab_shape", 0, (image,), slots, ("image",))

    def scores(self, task, verdicts):
        verdict = verdicts.get((1, "lab_shape", 0, 0))
        if verdict is None or verdict.answer is None:
            return {1: [Score("shape", None, "no answer" if verdict is None else verdict.unscored)]}
        return {1: [Score("shape", verdict.value("drawn"))]}
"""
ENTRY_POINTS = {
    "metrics": "entropy = lab_plugin:Sharpness\nfaint = lab_plugin:Faint",
    "suites": "lab-shapes = lab_plugin:Shapes",
    "rubrics": "lab = lab_plugin",
    "families": "flux = lab_plugin:Traits\nodd = lab_plugin:TRAITS\nlost = lab_plugin:LOST",
}


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A function that installs the package `lab_plugin` with a suite of this source."""
    folder = tmp_path / "site"
    (folder / "lab_plugin/rubrics").mkdir(parents=True)
    pages = dict(TITLED.findall((ROOT / "docs/extending.md").read_text()))
    (folder / "lab_plugin/rubrics/lab_shape.yaml").write_text(pages["lab_plugin/rubrics/lab_shape.yaml"])
    (tmp_path / "tasks.jsonl").write_text(pages["lab_plugin/tasks.jsonl"])

    def installed(source=SUITE, second=""):
        (folder / "lab_plugin/__init__.py").write_text(source)
        for i, suites in enumerate(("lab-shapes = lab_plugin:Shapes", second)[: 1 + bool(second)]):
            about = folder / f"lab_plugin{i}-1.0.dist-info"
            about.mkdir()
            (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: lab-plugin{i}\nVersion: 1.0\n")
            groups = ENTRY_POINTS | {"suites": suites} if i == 0 else {"suites": suites}
            texts = (f"[local_bench.{group}]\n{points}\n" for group, points in groups.items())
            (about / "entry_points.txt").write_text("".join(texts))
        monkeypatch.syspath_prepend(str(folder))
        importlib.invalidate_caches()
        forget()

    yield installed
    forget()


def forget():
    registry._loaded.cache_clear()
    rubric.cache_clear()
    load_protocol.cache_clear()
    sys.modules.pop("lab_plugin", None)


CONFIG = {
    "name": "x",
    "suite": {"name": "lab-shapes", "path": "tasks.jsonl", "limit": 3},
    "models": [{"card": "tiny-flux"}],
    "judge": {"card": "tiny-qwen3-vl", "transport": "local"},
    "metrics": [],
}


def planned(cli, folder, **changes):
    (folder / "x.yaml").write_text(json.dumps(CONFIG | changes))
    return cli("plan", "x.yaml")


SCORE = '[Score("shape", verdict.value("drawn"))]'


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("", "", None),
        ('verdicts.get((1, "lab_shape", 0, 0))', 'verdicts[1, "lab_shape", 0, 0]', None),
        (SCORE, '[Score("shapes", 1.0)]', "scores of 's0' returns 'shapes', which is not in scores_of_judge"),
        (SCORE, '[Score("shape", 1.0)] * 2', "scores of 's0' returns two scores of one name (shape, shape)"),
        (SCORE, '[Score("shape", "yes")]', "scores of 's0' returns shape = 'yes', no number up to 1e+15"),
        (SCORE, '[Score("shape", float("nan"))]', "scores of 's0' returns shape = nan, no number"),
        (SCORE, "[1.0]", "scores of 's0' returns float instead of Score"),
        (SCORE, 'Score("shape", 1.0)', "scores of 's0' returns Score instead of several Score"),
        ("return {1: " + SCORE, "return {0: " + SCORE, "scores of 's0' returns the deliverables [0] instead of lists"),
        (
            "return {1: " + SCORE + "}",
            "return []",
            "scores of 's0' returns list instead of lists of Score by deliverable",
        ),
        (
            'return {1: [Score("shape", None',
            'return {2: [Score("shape", None',
            "scores of 's0', without answers, returns",
        ),
        (
            'yield (deliverable, "lab_shape", 0, 0)',
            'yield (deliverable, "shape", 0, 0)',
            "questions of 's0' yields the key (1, 'shape', 0, 0), which is not (deliverable, 'lab_shape', 0, 0)",
        ),
        (
            "yield (deliverable,",
            "yield (deliverable - 1,",
            "questions of 's0' yields the key (0, 'lab_shape', 0, 0), which",
        ),
        (
            "sorted(images.items())",
            "[*images.items()] * 2",
            "questions of 's0' yields the key (1, 'lab_shape', 0, 0) twice",
        ),
        ("(image,), slots", "('a' * 64,), slots", "which is none of the task"),
        (
            'Question("lab_shape", 0, (image,), slots, ("image",))',
            "slots",
            "questions of 's0' yields tuple instead of a key and a Question",
        ),
        (
            '(("brief", task.brief),)',
            "()",
            "questions: the rubric 'lab_shape' has the slot 'brief', which its suite does",
        ),
        ('("image",))', '("picture",))', "questions: the rubric 'lab_shape' has no layout [picture]"),
        ('"lab_shape", 0, 0), Question("lab_shape"', '"lab", 0, 0), Question("lab"', "questions: unknown rubric 'lab'"),
        (
            '"lab_shape", 0, 0), Question("lab_shape"',
            '"rephrase", 0, 0), Question("rephrase"',
            "uses the rubric 'rephrase', which has no `answer`",
        ),
        ("        for deliverable, image", "        return\n        for deliverable, image", None),
        (
            "return [Deliverable(task.task_id, 1, task.brief)]",
            "return None",
            "deliverables of 's0' returns NoneType instead of several",
        ),
        (
            "return [Deliverable(task.task_id, 1, task.brief)]",
            "return [task.brief]",
            "deliverables of 's0' returns str instead of Deliverable",
        ),
        (
            "task.task_id, 1, task.brief",
            "task.task_id, 0, task.brief",
            "deliverables of 's0' returns the indices [0], and the task has 1",
        ),
        ("1, task.brief)", "1, task.brief, ('a' * 64,))", "which `keep` has not stored"),
        (
            '("shape",), {"shape": 1.0}',
            '("shape",), {"sharpness": 1.0}',
            "lab_plugin:Shapes decides by 'sharpness', which is not in scores_of_judge",
        ),
        (
            'name, title, licence, source, paper = "lab-shapes"',
            'name, title, licence, source, paper = "shapes"',
            "has the name 'shapes', and its entry point 'lab-shapes'",
        ),
        (
            "name, title, licence, source, paper",
            "name, title, licence, origin, paper",
            "lab_plugin:Shapes has no 'source'",
        ),
        (
            "    scores_of_judge, thresholds",
            "    def __init__(self):\n        self.scores_of_judge, self.thresholds",
            None,
        ),
        (
            'yield (deliverable, "lab_shape", 0, 0)',
            "yield deliverable",
            "questions of 's0' yields the key 1, which is not (deliverable, 'lab_shape', 0, 0)",
        ),
        ("    def deliverables(", "    def pictures(", "lab_plugin:Shapes is not complete"),
    ],
)
def test_a_suite_that_does_not_keep_its_promises_is_named(lab, cli, tmp_path, old, new, sentence):
    assert old in SUITE
    lab(SUITE.replace(old, new) if old else SUITE)
    ended = planned(cli, tmp_path)
    assert ended.returncode == (2 if sentence else 0), ended.stderr
    assert (sentence or "") in ended.stderr
    assert "lab_plugin" in ended.stderr or not sentence


READ = "\n    def read_tasks(self, path, keep, refuse=None):\n        tasks = super().read_tasks(path, keep, refuse)\n"


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("return tasks", None),
        ("return tuple(tasks)", None),
        ("return tasks + tasks[:1]", "read_tasks returns two tasks 's0'"),
        ("return iter(tasks)", "read_tasks returns list_iterator instead of a list of Task"),
        ("return ['s0']", "read_tasks returns str instead of a list of Task"),
        ("return [replace(t, task_id='../' + t.task_id) for t in tasks]", "read_tasks: '../s0' is no task id"),
        (
            "return [replace(t, price_micro_usd=-5) for t in tasks]",
            "'s0' has price_micro_usd -5, no whole number from 0",
        ),
    ],
)
def test_tasks_of_a_suite_are_checked_before_anything_is_planned(lab, cli, tmp_path, body, sentence):
    lab(f"from dataclasses import replace\n{SUITE}{READ}        {body}\n")
    ended = planned(cli, tmp_path)
    assert ended.returncode == (2 if sentence else 0), ended.stderr
    assert (sentence or "") in ended.stderr
    assert "lab_plugin.Shapes.read_tasks" in ended.stderr or not sentence


def test_a_fault_of_a_suite_is_named_before_a_run_has_images(lab, cli, tmp_path):
    lab(SUITE.replace(SCORE, '[Score("shapes", 1.0)]'))
    planned(cli, tmp_path)
    ended = cli("run", "x.yaml")
    assert ended.returncode == 2
    assert "lab_plugin.Shapes.scores of 's0' returns 'shapes', which is not in scores_of_judge" in ended.stderr
    assert not list(tmp_path.glob("runs/**/*.png"))


def test_entry_points_with_a_built_in_name_or_of_two_packages_are_named(lab, cli, tmp_path):
    lab(second="lab-shapes = lab_other:Shapes")
    ended = planned(cli, tmp_path)
    assert ended.returncode == 2
    assert "lab_other:Shapes and lab_plugin:Shapes are both called 'lab-shapes': remove one package" in ended.stderr
    ended = planned(cli, tmp_path, suite={"name": "studio", "limit": 1}, metrics=["entropy"])
    assert ended.returncode == 0
    assert "lab_plugin:Sharpness is not used: 'entropy' is a built-in name of local_bench.metrics" in ended.stderr
    assert "lab_plugin:Traits is not used: 'flux' is a built-in name of local_bench.families" in ended.stderr


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("suites/studio.yaml", "'studio' is the name of a built-in suite: give yours another name"),
        ("suites/lab-shapes.yaml", "'lab-shapes' is the name of a built-in or installed suite (lab_plugin:Shapes)"),
        ("models/tiny-flux.yaml", "'tiny-flux' is the name of a built-in card: give your card another name"),
        ("models/tiny-qwen3-vl.yaml", "'tiny-qwen3-vl' is the name of a built-in card: give your card another name"),
        ("rubrics/brf.yaml", "'brf' is the name of a built-in rubric: give yours another name"),
        ("protocols/accept.yaml", "'accept' is the name of a built-in protocol: give yours another name"),
    ],
)
def test_a_file_with_a_built_in_name_is_refused(lab, cli, tmp_path, name, sentence):
    """It was ignored silently."""
    lab()
    own = tmp_path / "local-bench" / name
    own.parent.mkdir(parents=True)
    shipped = FOLDER / "brf.yaml"
    own.write_text(shipped.read_text() if shipped.is_file() and "rubrics" in name else "title: ours\n")
    suite = CONFIG["suite"] if "lab-shapes" in name else {"name": "studio", "limit": 1}
    ended = planned(cli, tmp_path, suite=suite)
    if "protocols" in name:
        assert ended.returncode == 0
        with pytest.raises(ConfigError, match=re.escape(f"local-bench/{name}: {sentence}")):
            load_protocol("accept")
        return
    assert (ended.returncode, ended.stdout) == (2, "")
    assert f"local-bench/{name}: {sentence}" in ended.stderr


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("vram_gb: 24000", "vram_gb is 24000 with parameters_b 0.00048: give decimal GB and billions"),
        ("parameters_b: 12000000000", "parameters_b: input should be less than or equal to 100000"),
        ("pflop_per_image: 1000000000000000", "pflop_per_image: input should be less than or equal to 1000000"),
        ("vram_by_phase_gb: {denois: 4}", "vram_by_phase_gb.denois: input should be 'encode', 'denoise', 'decode' or"),
        ("attention: {sm_90: flash}", "attention.sm_90: string should match pattern"),
        ("judge_max_pixels: 5000", "judge_max_pixels: only judges have it, and this is a generator: remove it"),
        ("takes: {pictures: 3}", "our: takes.pictures is 3, and the family flux reads no input image: correct it"),
        ("{family: flux_kontext, takes: {pictures: 2}}", "takes.pictures is 2, and the family flux_kontext reads 1"),
        ("takes: {mask: true}", "our: takes.mask is True, and the family flux reads no mask: correct it"),
        ("active_parameters_b: 0.0001", None),
        ("title: ours", None),
        ("vram_gb: 288", None),
    ],
)
def test_a_key_of_a_card_that_has_no_effect_or_another_unit_is_named(cli, tmp_path, line, sentence):
    own = tmp_path / "local-bench/models/our.yaml"
    own.parent.mkdir(parents=True)
    written = {"name": "our", "extends": "tiny-flux", "title": "ours"} | yaml.safe_load(line)
    own.write_text(yaml.safe_dump(written))
    ended = planned(cli, tmp_path, suite={"name": "studio", "limit": 1}, models=[{"card": "our"}], judge=None)
    assert ended.returncode == (2 if sentence else 0), ended.stderr
    assert (sentence or "") in ended.stderr
    own.rename(own.with_suffix(".yml"))
    renamed = cli("plan", "x.yaml")
    assert renamed.returncode == 2
    assert "local-bench/models/our.yml: the files of a config folder end in .yaml: rename it" in renamed.stderr


def test_settings_of_a_model_that_is_left_out_or_has_another_name_are_named(cli, tmp_path):
    own = {"suite": {"name": "studio", "limit": 1}, "judge": None}
    models = [{"card": "tiny-flux"}, {"card": "tiny-sd3"}]
    settings = {"api_usd_per_image": {"tiny-fluks": 0.04, "tiny-flux": 0.04}}
    ended = planned(cli, tmp_path, models=models, settlement=settings, **own)
    assert ended.returncode == 0
    assert "settlement.api_usd_per_image.tiny-fluks has no effect: no model of the run has this name" in ended.stderr
    for model, at in (("tiny-sd3", 0), ("tiny-flux2", 0), ("tiny-flux", 1)):
        ended = cli("plan", "x.yaml", "--model", model, "--set", f"models.{at}.height=32")
        assert ended.returncode == 2
        assert f"--set models.{at}.height=32 is of a model that --model leaves out: remove one" in ended.stderr
    whole = ("--set", "models=[x, {card: tiny-sd3}]", "--model", "tiny-sd3")
    ended = cli("plan", "x.yaml", "--set", "models.1.height=32", *whole)  # it is replaced
    assert ended.returncode == 2
    assert "--set models.1.height=32 is of a model that --model leaves out" in ended.stderr
    assert cli("plan", "x.yaml", *whole, "--set", "models.1.height=32").returncode == 0
    ended = cli("plan", "x.yaml", "--model", "tiny-sd3", "--set", "models.1.height=32", "--json")
    assert json.loads(ended.stdout)["models"][0]["height"] == 32


def test_the_price_of_a_lab_s_own_device_counts_before_a_shipped_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "local-bench/prices.yaml"
    own.parent.mkdir()
    row = "  lab: {title: t, matches: [H100], mid: {usd_per_hour: 2, CURRENCYsource: us, date: '2026'}}\n"
    own.write_text(f"gpus:\n{row.replace('CURRENCY', '')}")
    found = price_of(SettlementConfig(), "NVIDIA H100 80GB HBM3")
    assert (found.gpu, found.micro_usd_per_hour, found.source) == ("lab", 2_000_000, "us")
    own.write_text(f"gpus:\n{row.replace('CURRENCY', 'currency: EUR, ')}")
    with pytest.raises(ConfigError, match=r"no key 'gpus.lab.mid.currency'; the keys here are date, source, usd_per"):
        price_of(SettlementConfig(), "NVIDIA H100 80GB HBM3")


def test_a_metric_of_a_package_that_cannot_be_made_is_named_by_plan(lab, cli, tmp_path):
    lab()
    ended = planned(cli, tmp_path, metrics=["faint"])
    assert ended.returncode == 2
    assert "metrics: 'faint' cannot be loaded from lab_plugin:Faint" in ended.stderr


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"call": {"etta": 0.5}}, "our: StableDiffusionPipeline has no etta; its arguments are "),
        ({"call": {"guidance_scale": 3}}, "our: call: guidance_scale is set for each image: remove it"),
        ({"takes": {"mask": True}}, "our: StableDiffusionPipeline takes no mask: set takes.mask to false"),
        ({"architecture": {"scheduler": "flow-shifting"}}, "architecture: the family `diffusers` reads its components"),
        ({"family": "odd", "pipeline": None}, "the family 'odd' cannot be loaded from lab_plugin:TRAITS"),
        (
            {"family": "lost", "pipeline": None},
            "the family 'lost' cannot be loaded from lab_plugin:Lost (module 'lab_plugin' has no",
        ),
    ],
)
def test_a_card_that_its_pipeline_cannot_follow_is_refused_before_there_is_a_run(lab, cli, tmp_path, changes, sentence):
    """Each was an error after the images of the models before it."""
    lab(f"{SUITE}\n\nfrom local_bench import Traits\nLOST = Traits('lab_plugin:Lost')\n")
    stable_diffusion(tmp_path / "sd")
    cli("models", "add", str(tmp_path / "sd"), "--name", "our")
    own = tmp_path / "local-bench/models/our.yaml"
    own.write_text(yaml.safe_dump(yaml.safe_load(own.read_text()) | changes))
    planned(cli, tmp_path, suite={"name": "studio", "limit": 1}, models=[{"card": "our"}], judge=None)
    ended = cli("run", "x.yaml")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert sentence in ended.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("name", "old", "new", "sentence"),
    [
        (
            "rubrics",
            "word: [0, 1]",
            "word: {any_of: {a: b}}",
            "the score word of the rubric 'lab_sign' is a list: a score",
        ),
        ("rubrics", "word: [0, 1]", "word: []", "answer.0.word: list should have at least 1 item"),
        (
            "rubrics",
            "word: [0, 1]",
            "word: [0, 1, true]",
            "answer: two labels of word are one number: give each its own",
        ),
        (
            "rubrics",
            "version: 1",
            "version: 1\nmax_tokens: 0",
            "max_tokens: input should be greater than or equal to 1",
        ),
        (
            "rubrics",
            "version: 1",
            "version: 1\ntemperature: -1",
            "temperature: input should be greater than or equal to 0",
        ),
        ("rubrics", "version: 1", "version: 1\nmin_pixels: 9\nmax_pixels: 5", "min_pixels is more than max_pixels"),
        ("suites", "{word: 1,", "{word: 7,", "has the highest label 1, and its threshold is 7: correct one of them"),
        (
            "suites",
            "title: Signs",
            "top_score: 0.5\ntitle: Signs",
            "highest label 1, and its top_score is 0.5: correct",
        ),
        ("suites", "title: Signs", "top_score: 1\ntitle: Signs", None),
    ],
)
def test_answers_that_can_be_no_score_are_named(cli, tmp_path, name, old, new, sentence):
    files = {n: text for n, text in TITLED.findall((ROOT / "docs/extending.md").read_text()) if "sign" in n}
    for file, text in files.items():
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        assert name not in file or not file.endswith("yaml") or old in text
        path.write_text(text.replace(old, new) if name in file and file.endswith("yaml") else text)
    forget()
    ended = planned(cli, tmp_path, suite={"name": "lab-signs"})
    forget()
    assert ended.returncode == (2 if sentence else 0), ended.stderr
    assert (sentence or "") in ended.stderr


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("judge_max_pixels: 100", "judge_max_pixels is 100, and the least (or one patch) is 1024"),
        ("judge_min_pixels: 2000000", "judge_max_pixels is 16384, and the least (or one patch) is 2000000"),
        ("active_parameters_b: 900", "active_parameters_b is 900, more than parameters_b"),
        ("sampler: {height: 64}", "sampler: only generators have it, and this is a judge: remove it"),
        (
            "chat_template_kwargs: {return_dict: false}",
            "'return_dict' is not a variable of a chat template",
        ),
        ("title: ours", None),
    ],
)
def test_a_key_of_a_judge_s_card_that_has_no_effect_is_named(cli, tmp_path, line, sentence):
    own = tmp_path / "local-bench/models/our-judge.yaml"
    own.parent.mkdir(parents=True)
    written = {"name": "our-judge", "extends": "tiny-qwen3-vl", "title": "ours"} | yaml.safe_load(line)
    own.write_text(yaml.safe_dump(written))
    judge = {"card": "our-judge", "transport": "local", "port": 8001, "served_model": "x"}
    ended = planned(cli, tmp_path, suite={"name": "studio", "limit": 1}, judge=judge)
    if sentence is None:
        assert ended.returncode == 0, ended.stderr
        assert "our-judge: served_model, port have no effect with transport local without base_url." in ended.stderr
    if sentence is not None:
        ended = cli("run", "x.yaml")
        assert (ended.returncode, ended.stdout) == (2, "")
        assert sentence in ended.stderr
        assert not (tmp_path / "runs").exists()


def test_a_variable_that_a_chat_template_does_not_have_is_named(judge_weights):
    described = card("tiny-qwen3-vl", "judge").model_copy(update={"chat_template_kwargs": {"enable_thinkng": False}})
    noted = [*unknown_variables(described, str(judge_weights), ["messages", "x1"])]
    of_template = "the chat template of tiny-qwen3-vl has no such variable."
    assert noted == [f"chat_template_kwargs.{name} has no effect: {of_template}" for name in ("enable_thinkng", "x1")]


def test_of_two_cards_of_one_name_the_first_folder_s_is_shown(cli, tmp_path, monkeypatch):
    for folder, title in (("one", "first"), ("local-bench", "second")):
        path = tmp_path / folder / "models/our.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(f"name: our\nextends: tiny-flux\ntitle: {title}\n")
    monkeypatch.setenv(CONFIG_DIRS, "one")
    shown = json.loads(cli("models", "show", "our", "--json").stdout)
    assert (shown["title"], shown["card"]) == ("first", "one/models/our.yaml")
    monkeypatch.setenv(CONFIG_DIRS, "gone")
    refused = cli("models", "show", "our")
    assert refused.returncode == 2
    assert "LOCAL_BENCH_CONFIG_DIRS: the folder gone does not exist: correct it, or unset" in refused.stderr
    monkeypatch.delenv(CONFIG_DIRS)
    assert json.loads(cli("models", "show", "our", "--json").stdout)["card"] == "local-bench/models/our.yaml"
