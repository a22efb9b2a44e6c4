"""docs/extending.md in practice: its files are taken from the page as they are, installed as a package, and used."""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
import yaml
from diffusers import AutoencoderKL, DDIMScheduler, FluxPipeline, StableDiffusionPipeline, UNet2DConditionModel
from safetensors.torch import load_file, save_file
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

import local_bench
from local_bench.cli.main import main
from local_bench.core.errors import ConfigError, WeightsError
from local_bench.core.files import CONFIG_DIRS
from local_bench.core.types import Task, Verdict
from local_bench.generators.lora import fuse_adapters
from local_bench.judges.vlm.rubrics import rubric
from local_bench.models.cards import card
from local_bench.models.weights import resolve, resolve_parts, weights_digest
from local_bench.suites.registry import suite
from tests.docs_site import CodeBlocks, build

ROOT = Path(__file__).resolve().parents[2]
TITLED = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```$', re.M | re.S)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A working folder with every file of the page as it is on the documentation site, which has those of the Markdown,
    and its package installed: the wheel's files, in `site/`."""
    folder = tmp_path_factory.mktemp("lab")
    build(folder / "docs")
    blocks = CodeBlocks((folder / "docs/extending.html").read_text()).found
    files = [(title, text) for title, text in blocks if title]
    assert files == TITLED.findall((ROOT / "docs/extending.md").read_text())
    for name, text in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    wheel_of = "import hatchling.build as b; print(b.build_wheel('dist'))"
    subprocess.run([sys.executable, "-c", wheel_of], cwd=folder, check=True, capture_output=True)
    (wheel,) = (folder / "dist").glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    stable_diffusion(folder / "local-bench/weights/my-sd")
    adapter(folder / "local-bench/adapters/style")
    return folder


def stable_diffusion(folder):
    """A small Stable Diffusion with seeded random weights, saved by diffusers."""
    torch.manual_seed(0)
    width = 32
    down, up = ("CrossAttnDownBlock2D", "DownBlock2D"), ("UpBlock2D", "CrossAttnUpBlock2D")
    unet = UNet2DConditionModel(
        sample_size=8, block_out_channels=(32, 32), layers_per_block=1, down_block_types=down, up_block_types=up,
        cross_attention_dim=width, attention_head_dim=8, norm_num_groups=8,
    )  # fmt: skip
    vae = AutoencoderKL(
        block_out_channels=(8, 8, 8, 8), down_block_types=("DownEncoderBlock2D",) * 4, latent_channels=4,
        up_block_types=("UpDecoderBlock2D",) * 4, norm_num_groups=4,
    )  # fmt: skip
    tokenizer = CLIPTokenizer.from_pretrained(resolve(card("tiny-flux", "generator")) / "tokenizer")
    text = CLIPTextConfig(
        vocab_size=len(tokenizer), hidden_size=width, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2
    )
    parts = {"unet": unet, "vae": vae, "tokenizer": tokenizer, "text_encoder": CLIPTextModel(text)}
    parts |= {"scheduler": DDIMScheduler(steps_offset=1, clip_sample=False)}
    none = {"safety_checker": None, "feature_extractor": None, "requires_safety_checker": False}
    StableDiffusionPipeline(**parts, **none).save_pretrained(folder)


def adapter(folder):
    """A LoRA for the small FLUX, made by PEFT and saved by diffusers."""
    from diffusers.training_utils import cast_training_params
    from peft import LoraConfig
    from peft.utils import get_peft_model_state_dict

    pipe = FluxPipeline.from_pretrained(resolve(card("tiny-flux", "generator")), text_encoder=None, text_encoder_2=None)
    pipe.transformer.add_adapter(LoraConfig(r=2, lora_alpha=2, target_modules=["to_q", "to_v"]))
    cast_training_params(pipe.transformer)
    generator = torch.Generator().manual_seed(1)
    layers = {
        name: torch.randn(weight.shape, generator=generator) * 0.3
        for name, weight in get_peft_model_state_dict(pipe.transformer).items()
    }
    FluxPipeline.save_lora_weights(folder, transformer_lora_layers=layers)


def run(lab, *arguments, program=("-m", "local_bench")):
    """`local-bench` as a user's shell would run it in the lab's folder, the package installed."""
    done = subprocess.run(
        [sys.executable, *program, *arguments],
        cwd=lab, env=os.environ | {"PYTHONPATH": os.pathsep.join((str(lab / "site"), str(ROOT)))},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


CARDS = ["my-flux", "my-flux-style", "my-sd"]
RUN_ALL = "import sys; from local_bench.cli.main import main; sys.exit(any([main(['run', c]) for c in sys.argv[1:]]))"


@pytest.fixture(scope="module")
def finished(lab):
    """The lab after the runs of both benchmarks, in one process."""
    judged = {"judge": {"card": "tiny-qwen3-vl", "transport": "brightness"}, "engine": {"device": "cpu"}}
    models = [{"card": name, "height": 64, "width": 64, "num_inference_steps": 2} for name in CARDS]
    shapes = {"name": "shapes", "suite": {"name": "lab-shapes"}, "models": models, "metrics": ["sharpness"]}
    (lab / "shapes.yaml").write_text(yaml.safe_dump(shapes | judged))
    assert run(lab, "init", "lab-signs").stdout.startswith("lab-signs.yaml: ")
    signs = yaml.safe_load((lab / "lab-signs.yaml").read_text())
    signs |= {"models": [{"card": "tiny-flux"}], "metrics": []} | judged
    signs["suite"]["questions_from"] = ["lab-shapes"]
    (lab / "lab-signs.yaml").write_text(yaml.safe_dump(signs))
    run(lab, "shapes.yaml", "lab-signs.yaml", program=("-c", RUN_ALL))
    return lab


def test_one_plugin_of_each_kind_runs_from_generation_to_settlement(finished, cli, monkeypatch, capsys):
    lab = finished
    monkeypatch.syspath_prepend(str(lab / "site"))

    def shown(*arguments):
        ended = cli(*arguments)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    monkeypatch.chdir(lab)
    assert main(["suites", "list"]) == 0
    listed = capsys.readouterr().out
    assert "lab-shapes" in listed
    assert "lab-signs" in listed
    (lab / "results.csv").write_text("a,s0,1\na,s1,0\nb,s0,1\n")
    scored = json.loads(shown("score", "lab-shapes", lab / "results.csv", "--json"))
    assert scored == {"suite": "lab-shapes", "models": {"a": 0.5, "b": 1.0}}
    refused = cli("score", "lab-shapes", lab / "results.csv", "--raters")
    assert refused.returncode == 2
    assert "--raters applies only to hype-edit-1: omit it for lab-shapes" in refused.stderr
    assert "table-1" in shown("reproduce", "lab-shapes")
    table = json.loads(shown("reproduce", "lab-shapes", "table-1", lab / "runs/shapes", "--json"))
    settled = json.loads(shown("settle", lab / "runs/shapes", "--json"))["models"]
    stars = {name: model["by_category"]["star"]["deliverable_acceptance"] for name, model in settled.items()}
    assert {row["model"]: row["star"] for row in table["rows"]} == stars
    with local_bench.load_run(lab / "runs/shapes") as loaded:
        candidates, scores, verdicts = loaded.candidates(), loaded.scores(), loaded.verdicts()
        decisions, settlement = loaded.decisions(), loaded.settlement()
    assert (len(candidates), set(candidates["state"])) == (30, {"done"})
    assert candidates["unscored"].isna().all()
    assert set(candidates["category"]) == {"circle", "square", "star"}
    assert all(Path(image).is_file() for image in candidates["image"])
    assert candidates["cost_usd"].gt(0).all()
    digests = candidates.pivot(index="task_id", columns="model", values="pixels_sha256")
    assert digests.nunique(axis=1).eq(3).all()  # the adapter and the family make images of their own
    assert set(scores["name"]) == {"shape", "sharpness"}
    assert scores[scores["name"] == "sharpness"]["value"].gt(0).all()
    assert set(verdicts["rubric"]) == {"lab_shape"}
    assert len(verdicts) == len(decisions) == 30
    assert set(settlement["model"]) == set(CARDS)
    expected = candidates["accepted"].astype(bool) * candidates["price_usd"]
    earned = settlement.set_index("model")["revenue_usd"]
    assert earned.sum() == pytest.approx(expected.sum())
    done = subprocess.run(
        [sys.executable, "notebook.py"], cwd=lab, env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "sharpness" in done.stdout


def test_a_benchmark_of_files_alone_runs_and_borrows_a_package_s_questions(finished, monkeypatch):
    monkeypatch.syspath_prepend(str(finished / "site"))
    monkeypatch.chdir(finished)
    with local_bench.load_run(finished / "runs/lab-signs") as loaded:
        scores, decisions = loaded.scores(), loaded.decisions()
    assert len(decisions) == 2
    assert sorted(scores["name"]) == ["colour", "colour", "drawn_shape", "drawn_shape", "word", "word"]
    assert scores["value"].isin([0, 1]).all()
    both = scores[scores["name"] != "drawn_shape"].groupby("work_id")["value"].min()
    assert {row.work_id: row.accepted for row in decisions.itertuples()} == {w: v == 1 for w, v in both.items()}


def test_an_error_in_a_package_is_reported_as_that_packages(finished, cli, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(finished / "site"))
    monkeypatch.setenv("LOCAL_BENCH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "results.csv").write_text("a,s0\n")
    ended = cli("score", "lab-shapes", "results.csv")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "error in lab_plugin.suite (ValueError: not enough values to unpack (expected 3, got 2)); " in ended.stderr
    (log,) = (tmp_path / "cache/crashes").iterdir()
    assert ended.stderr.endswith(f"its traceback is in {log}: correct or remove that package\n")


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("[word, colour]", "[word, color]", "'colour' is not under rubrics"),
        ("thresholds: {word: 1, colour: 1} ", "# ", "the key 'thresholds' is missing: add it"),
        ("lab_sign: [word, colour]", "lab_sign: [word, colour, size]", "the rubric 'lab_sign' has no field 'size'"),
        ("lab_sign: [", "lab_signs: [", "unknown rubric 'lab_signs'"),
        ("title:", "titel:", "there is no key 'titel'; did you mean 'title'?"),
        ("lab-signs.jsonl", "lab-sign.jsonl", "lab-sign.jsonl does not exist: correct suite.path, or `tasks` in"),
        (
            "title:",
            "# by expectations\ntitle:",
            "the score word is an expectation, which never reaches its threshold 1",
        ),
        ("thresholds: {word: 1, colour: 1} ", "thresholds: {word: 0.9, colour: 0.9} ", None),
    ],
)
def test_a_mistake_in_the_file_of_a_benchmark_is_an_error_before_the_run(lab, cli, tmp_path, old, new, sentence):
    folder = tmp_path / "local-bench"
    for kind in ("suites", "rubrics"):
        shutil.copytree(lab / "local-bench" / kind, folder / kind)
    described = folder / "suites/lab-signs.yaml"
    text = described.read_text()
    assert old in text
    described.write_text(text.replace(old, new))
    by_logit = "{card: tiny-qwen3-vl, transport: local, protocol: logit}"
    judge = by_logit if sentence is None or "expectation" in sentence else "null"
    config = f"name: x\nsuite: {{name: lab-signs}}\nmodels: [{{card: tiny-flux}}]\njudge: {judge}\n"
    (tmp_path / "x.yaml").write_text(config)
    planned = cli("plan", "x.yaml")
    assert planned.returncode == (2 if sentence else 0), planned.stderr
    assert (sentence or "") in planned.stderr


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"slots: [brief]": "slots: [brif]", "{brief}": "{brif}"},
            "'lab_sign' has the slot 'brif': use those of title, brief, ",
        ),
        (
            {"{image: the sign to be checked}": "{image: a, source: b}", "[[image]]": "[[image, source]]"},
            "'lab_sign' has no layout [image], the images of a question of its suite",
        ),
    ],
)
def test_a_rubric_that_does_not_fit_its_benchmark_is_an_error(lab, cli, tmp_path, changes, sentence):
    for kind in ("suites", "rubrics"):
        shutil.copytree(lab / "local-bench" / kind, tmp_path / "local-bench" / kind)
    file = tmp_path / "local-bench/rubrics/lab_sign.yaml"
    text = file.read_text()
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    file.write_text(text)
    judge = "{card: tiny-qwen3-vl, transport: local}"
    config = f"name: x\nsuite: {{name: lab-signs}}\nmodels: [{{card: tiny-flux}}]\njudge: {judge}\n"
    (tmp_path / "x.yaml").write_text(config)
    rubric.cache_clear()
    planned = cli("plan", "x.yaml")
    rubric.cache_clear()
    assert (planned.returncode, planned.stdout) == (2, "")
    assert sentence in planned.stderr


def test_points_and_inputs_of_a_benchmark_of_files(tmp_path, monkeypatch):
    """One question for each point with the task's source, and the mean of the answers as score."""
    folder = tmp_path / "local-bench/suites"
    folder.mkdir(parents=True)
    text = "{title: t, licence: l, source: s, tasks: t.jsonl, rubrics: {one: [a], each: [met]}, per_point: [each], "
    text += "thresholds: {a: 1}}"
    (folder / "lab-points.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    entry = suite("lab-points")
    task = Task("t", "c", 0, "title", "brief", ("x", "y"), ("p", "q"), source_sha256="s", reference_sha256=("r",))
    assert [d.prompt for d in entry.deliverables(task)] == ["x. brief", "y. brief"]
    found = dict(entry.questions(task, {1: "i", 2: "j"}))
    assert list(found) == [(i, *key, 0) for i in (1, 2) for key in (("one", 0), ("each", 0), ("each", 1))]
    question = found[2, "each", 1, 0]
    assert (question.images, question.roles) == (("j", "s", "r"), ("image", "source", "reference"))
    assert dict(question.slots)["point"] == "q"
    verdicts = {key: Verdict({"a": 1} if key[1] == "one" else {"met": key[2]}, None, "") for key in found}
    del verdicts[2, "each", 1, 0]
    scores = entry.scores(task, verdicts)
    assert [(s.name, s.value) for s in scores[1]] == [("a", 1), ("met", 0.5)]
    assert [(s.value, s.unscored) for s in scores[2]] == [(1, None), (None, "the judge was not reached")]


def test_an_adapter_is_fused_as_by_the_library(lab, monkeypatch):
    monkeypatch.chdir(lab)
    described = card("my-flux-style", "generator")
    ours, library = (
        FluxPipeline.from_pretrained(resolve(described), text_encoder=None, text_encoder_2=None) for _ in range(2)
    )
    before = {name: weight.clone() for name, weight in ours.transformer.state_dict().items()}
    fuse_adapters(ours, "transformer", described.lora, resolve_parts(described), described.name)
    assert ours.transformer.state_dict().keys() == before.keys()  # no layers of PEFT are left
    changed = {n for n, weight in ours.transformer.state_dict().items() if not torch.equal(weight, before[n])}
    assert changed
    assert all(".to_q." in name or ".to_v." in name for name in changed)
    library.load_lora_weights(resolve_parts(described)["style"], adapter_name="style")
    library.set_adapters(["style"], [0.8])
    sizes = ours.transformer.config
    inputs = {
        "hidden_states": torch.ones(1, 4, sizes.in_channels), "timestep": torch.ones(1), "guidance": torch.ones(1),
        "img_ids": torch.zeros(4, 3), "txt_ids": torch.zeros(2, 3),
        "pooled_projections": torch.ones(1, sizes.pooled_projection_dim),
        "encoder_hidden_states": torch.ones(1, 2, sizes.joint_attention_dim),
    }  # fmt: skip
    with torch.inference_mode():
        fused, apart = (pipe.transformer(**inputs).sample for pipe in (ours, library))
    assert torch.allclose(fused, apart, atol=1e-5)


CARD = "name: {name}\nextends: {extends}\ntitle: t\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (CARD.format(name="x", extends="no-such") + "lora: {}\n", "extends: unknown card 'no-such'"),
        (CARD.format(name="x", extends="x"), "extends: 'x' is extended by this card and extends it"),
        (CARD.format(name="x", extends="tiny-flux") + "lora: {style: 1.0}\n", "lora: 'style' is not in parts"),
        (CARD.format(name="x", extends="tiny-flux") + "source: {build: 'os:system'}\n", "only built-in cards can have"),
        (CARD.format(name="x", extends="tiny-flux") + "sampler: {heigth: 64}\n", "line 4: there is no key"),
    ],
)
def test_an_invalid_card_is_an_error(tmp_path, monkeypatch, text, sentence):
    (tmp_path / "local-bench/models").mkdir(parents=True)
    (tmp_path / "local-bench/models/x.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        card("x", "generator")


def test_a_card_has_the_weights_and_the_other_settings_of_the_model_that_it_extends(tmp_path, monkeypatch):
    (tmp_path / "local-bench/models").mkdir(parents=True)
    for name, base in (("x", "mini-flux"), ("y", "x")):
        (tmp_path / f"local-bench/models/{name}.yaml").write_text(CARD.format(name=name, extends=base))
    monkeypatch.chdir(tmp_path)
    digests = [weights_digest(resolve(card(name, "generator"))) for name in ("mini-flux", "x", "y")]
    assert len(set(digests)) == 1
    changed = "sampler: {num_inference_steps: 20, max_sequence_length: null}\ntakes: {pictures: 1}\n"
    (tmp_path / "local-bench/models/z.yaml").write_text(CARD.format(name="z", extends="flux1-dev") + changed)
    mine, base = card("z", "generator"), card("flux1-dev", "generator")
    new = {"num_inference_steps": 20, "max_sequence_length": None}
    assert mine.sampler == base.sampler.model_copy(update=new)
    assert mine.takes == base.takes.model_copy(update={"pictures": 1})
    assert base.sampler.guidance_scale == 3.5


def test_incompatible_adapters_are_an_error(lab, tmp_path):
    weights = resolve(card("tiny-flux", "generator"))
    (file,) = (lab / "local-bench/adapters/style").glob("*.safetensors")
    good = load_file(file)
    short = {name: weight[:1].clone() if "lora_B" in name else weight for name, weight in good.items()}
    wide = {n: torch.nn.functional.pad(w, (0, 64)) if "lora_A" in n else w for n, w in good.items()}
    (tmp_path / "empty").mkdir()
    for state, sentence in (
        (short, "is not a LoRA adapter of this model"),
        (wide, "LoRA|a different number of input channels"),
        (None, r"has 0 \.safetensors files"),
    ):
        if state:
            save_file(state, tmp_path / "lora.safetensors")
        folder = tmp_path if state else tmp_path / "empty"
        pipe = FluxPipeline.from_pretrained(weights, text_encoder=None, text_encoder_2=None)
        with pytest.raises(WeightsError, match=sentence):
            fuse_adapters(pipe, "transformer", {"style": 1.0}, {"style": folder}, "my-flux")
    with pytest.raises(ConfigError, match="does not support LoRA adapters"):
        fuse_adapters(object(), "transformer", {"style": 1.0}, {"style": tmp_path}, "my-flux")


def test_folders_given_by_option_come_first_and_shipped_names_stay(lab, tmp_path, monkeypatch, capsys):
    def models(*arguments, code=0):
        monkeypatch.setenv(CONFIG_DIRS, "")  # to which the option adds
        assert main(["--config-dir", str(tmp_path), "models", *arguments]) == code
        return capsys.readouterr()

    monkeypatch.chdir(lab)
    (tmp_path / "models").mkdir()
    (tmp_path / "models/my-flux.yaml").write_text(CARD.format(name="my-flux", extends="tiny-sd3"))
    assert json.loads(models("show", "my-flux", "--json").out)["family"] == "sd3"
    (tmp_path / "models/tiny-flux.yaml").write_text(CARD.format(name="tiny-flux", extends="tiny-sd3"))
    (tmp_path / "models/other.yaml").write_text(CARD.format(name="other", extends="my-flux"))
    (tmp_path / "models/bad.yaml").write_text("title: [\n")
    listed = models("list", code=1)
    assert "'tiny-flux' is the name of a built-in card" in listed.err
    assert "bad.yaml" in listed.err
    assert {"other", "my-flux", "tiny-flux"} <= {line.split(" ")[0] for line in listed.out.splitlines()}
    assert "bad.yaml" in models("show", "bad", code=2).err
    assert json.loads(models("show", "other", "--json").out)["family"] == "sd3"


def test_the_public_names_exist_and_import_nothing_heavy():
    assert sorted(local_bench.__all__) == local_bench.__all__ == dir(local_bench)
    for name in local_bench.__all__:
        assert getattr(local_bench, name) is not None
    heavy = "import local_bench, sys; sys.exit(any(m in sys.modules for m in ('torch', 'pandas', 'numpy', 'pydantic')))"
    assert subprocess.run([sys.executable, "-c", heavy], check=False, cwd=ROOT).returncode == 0
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        local_bench.Nothing  # noqa: B018
    assert (Path(importlib.import_module("local_bench").__file__).parent / "py.typed").is_file()
