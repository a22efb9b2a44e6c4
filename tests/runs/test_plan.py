"""The content of a plan: models, tasks, order and sizes; identities; images that are left out and the reasons."""

import json
import sqlite3
from contextlib import nullcontext

import pytest
from PIL import Image

from local_bench.analysis.official import run_results
from local_bench.core.errors import ConfigError, UserError
from local_bench.core.files import configs_dir
from local_bench.core.types import seed_of
from local_bench.models.cards import card, cards
from local_bench.models.weights import resolve
from local_bench.runs.config import RunConfig, load_config
from local_bench.runs.estimate import estimate
from local_bench.runs.plan import check_config, make_plan
from local_bench.runs.rundir import RunDir
from tests.orders import order, write_orders
from tests.stages import run_stages
from tests.suites.benchmarks import layouts


@pytest.fixture
def folder(tmp_path):
    """Three tasks: an edit of a wide image with two deliverables, one of text alone, one whose source is missing."""
    Image.new("RGB", (320, 160), "white").save(tmp_path / "wide.png")
    tasks = [order("edit", ["one", "two"], source_image="wide.png"), order("text")]
    write_orders(tmp_path / "tasks.jsonl", [*tasks, order("missing", source_image="missing.png")])
    return tmp_path


FLUX = {"card": "tiny-flux", "attempts": 2}
KONTEXT = {"card": "tiny-flux-kontext"}


def plan(folder, *models, limit=None, unsupported=None, **settings):
    suite = {"name": "servimage", "path": str(folder / "tasks.jsonl"), "limit": limit, "unsupported": unsupported}
    config = {"name": "x", "suite": suite, "models": list(models or [FLUX]), "metrics": []} | settings
    return make_plan(RunConfig.model_validate(config), files=False)


def ids(*arguments, **settings):
    return [candidate.work_id for candidate in plan(*arguments, **settings).candidates]


def test_candidates_are_ordered_by_model_task_deliverable_and_attempt(folder):
    candidates = plan(folder, FLUX, KONTEXT).candidates
    tasks = [("edit", 1), ("edit", 2), ("text", 1), ("missing", 1)]
    expected = [("tiny-flux", *task, attempt) for task in tasks for attempt in (1, 2)]
    expected += [("tiny-flux-kontext", *task, 1) for task in tasks]
    assert [(c.model, c.task_id, c.deliverable, c.attempt) for c in candidates] == expected


def test_work_ids_are_unique_and_seeds_follow_from_them(folder):
    candidates = plan(folder, FLUX, KONTEXT).candidates
    assert len({c.work_id for c in candidates}) == len({c.seed for c in candidates}) == len(candidates)
    assert all(c.seed == seed_of(c.work_id) for c in candidates)
    assert ids(folder, FLUX, KONTEXT) == [c.work_id for c in candidates]


@pytest.mark.parametrize(
    ("model", "settings", "changes"),
    [
        ({}, {"seed": 1}, True),
        ({"num_inference_steps": 3}, {}, True),
        ({"height": 64}, {}, True),
        ({"guidance_scale": 2.0}, {}, True),
        ({"name": "mine"}, {}, False),
        ({}, {"name": "other"}, False),
        ({}, {"judge": {"card": "tiny-qwen2-vl"}}, False),
        ({}, {"engine": {"batch_size": 1, "workers": 2}}, False),
    ],
)
def test_the_identity_changes_with_the_settings_that_change_bytes(folder, model, settings, changes):
    before, after = ids(folder), ids(folder, FLUX | model, **settings)
    assert (not set(before) & set(after)) if changes else (before == after)


def test_more_attempts_or_tasks_change_no_planned_identity(folder):
    assert set(ids(folder, limit=1)) < set(ids(folder)) < set(ids(folder, FLUX | {"attempts": 3}))
    assert {c.model for c in plan(folder, FLUX | {"name": "mine"}).candidates} == {"mine"}


def test_an_edit_takes_its_sources_aspect_and_text_the_cards_size(folder):
    candidates = plan(folder, FLUX, KONTEXT).candidates
    samplers = {(c.model, c.task_id): c.work["sampler"] for c in candidates}
    sizes = {key: (sampler["width"], sampler["height"]) for key, sampler in samplers.items()}
    assert sizes["tiny-flux", "edit"] == sizes["tiny-flux", "text"] == (128, 128)
    width, height = sizes["tiny-flux-kontext", "edit"]
    assert width / height == pytest.approx(2, rel=0.15)
    usual = card("tiny-flux-kontext", "generator").sampler
    assert width * height == pytest.approx(usual.width * usual.height, rel=0.15)


def test_unsupported_images_are_planned_as_unscored_with_the_reason(folder):
    made = plan(folder, {"card": "tiny-pix2pix"}, FLUX)
    reasons = {(row.model, row.task_id): row.unscored for row in made.candidates}
    (note,) = [note for note in made.notes if "cannot be run" in note]
    assert note.startswith("1 task cannot be run; the first: missing: ")
    assert "missing.png" in note
    assert reasons["tiny-pix2pix", "edit"] is None
    assert (
        reasons["tiny-pix2pix", "text"] == "not supported: tiny-pix2pix works on a picture, and this order gives none."
    )
    assert "missing.png" in reasons["tiny-flux", "missing"] == reasons["tiny-pix2pix", "missing"]


@pytest.mark.parametrize(
    ("models", "settings", "message"),
    [
        ([FLUX, {"card": "tiny-flux", "name": "twin"}], {}, "'tiny-flux' and 'twin' are the same in everything that"),
        ([FLUX | {"true_cfg_scale": 2.0}], {}, "tiny-flux has no true_cfg_scale"),
        ([{"card": "tiny-flx"}], {}, "unknown generator 'tiny-flx': did you mean 'tiny-flux'"),
        ([FLUX], {"metrics": ["nothing"]}, "unknown metric 'nothing'"),
    ],
)
def test_invalid_input_is_an_error(folder, models, settings, message):
    with pytest.raises(ConfigError, match=message):
        plan(folder, *models, **settings)
    (folder / "tasks.jsonl").write_text("")
    with pytest.raises(UserError, match="contains no tasks"):
        plan(folder)


TEXT_ONLY = "tiny-flux takes no input images; 2 of 3 deliverables have more and are generated without them "
TEXT_ONLY += "(suite.unsupported)."
MORE_IMAGES = "the task has 1 input image, and the model takes none"


@pytest.mark.parametrize(
    ("mode", "reason", "note"),
    [
        (None, None, TEXT_ONLY),
        ("text_only", None, TEXT_ONLY),
        (
            "unscored",
            f"not supported, but counted: {MORE_IMAGES}",
            "tiny-flux does not support 1 of 3 tasks, which stay unscored.",
        ),
        ("skip", f"not supported: {MORE_IMAGES}", "tiny-flux does not support 1 of 3 tasks, which it skips."),
    ],
)
def test_a_task_with_more_input_images_than_the_model_takes_is_as_the_config_says(folder, mode, reason, note):
    planned = plan(folder, FLUX, KONTEXT, unsupported=mode)
    reasons = {(row.model, row.task_id): row.unscored for row in planned.candidates}
    assert (reasons["tiny-flux", "edit"], reasons["tiny-flux", "text"]) == (reason, None)
    assert reasons["tiny-flux-kontext", "edit"] is None
    assert [row.work_id for row in planned.candidates] == ids(folder, FLUX, KONTEXT)
    assert [sentence for sentence in planned.notes if sentence.startswith("tiny-flux ")] == [note]


@pytest.mark.parametrize("mode", ["text_only", "skip", "unscored"])
def test_the_tasks_that_a_model_does_not_support_are_known_from_the_run(folder, mode):
    """It lacks an image, takes fewer, or none of this shape. The benchmark's own numbers count them if `unscored`."""
    Image.new("RGB", (1010, 10)).save(folder / "thin.png")
    tasks = [order("edit", source_image="wide.png"), order("text"), order("thin", source_image="thin.png")]
    write_orders(folder / "tasks.jsonl", tasks)
    suite = {"name": "servimage", "path": str(folder / "tasks.jsonl"), "unsupported": mode}
    models = [{"card": "tiny-flux"}, {"card": "tiny-pix2pix"}]
    run_stages(RunConfig(name="x", suite=suite, models=models, metrics=[]), folder / "run", ("settle",))
    expected = {("tiny-pix2pix", "text"), ("tiny-pix2pix", "thin")}
    expected |= set() if mode == "text_only" else {("tiny-flux", "edit"), ("tiny-flux", "thin")}
    with RunDir.open(folder / "run") as run:
        assert run.store.unsupported() == expected
        counted = {image.supported for image in run_results(run).images if image.unscored}
    assert counted == {mode == "unscored"}
    with sqlite3.connect(folder / "run/ledger.sqlite") as db:  # earlier releases left the prefix out
        db.execute(
            "UPDATE candidates SET unscored = replace(replace(unscored, ', but counted', ''), 'not supported: ', '')"
        )
    with RunDir.open(folder / "run") as run:
        assert run.store.unsupported() == expected


TARGETS = {"tall": (3584, 4800), "wide": (5504, 3072)}  # of two tasks of HYPE-EDIT-1's public split


def test_every_editor_follows_its_source():
    """An IP-Adapter's input is an image prompt, not a source to edit; OmniGen chooses its size freely."""
    generators = [card for card in cards().values() if card.role == "generator" and card.takes.pictures]
    assert {card.family for card in generators if not card.takes.size_from_picture} == {"flux_ip_adapter"}


def test_hype_edits_have_their_targets_aspect(tmp_path):
    tasks = []
    for name, (width, height) in TARGETS.items():
        (tmp_path / name).mkdir()
        Image.radial_gradient("L").convert("RGB").save(tmp_path / name / "001.png")  # the target's size decides
        task = {"task_id": name, "input_images": ["001.png"], "task_type": "change", "instruction": "Make it red."}
        tasks.append(task | {"width": width, "height": height})
    (tmp_path / "public.json").write_text(json.dumps(tasks))
    suite = {"name": "hype-edit-1", "path": str(tmp_path / "public.json")}
    model = {"card": "tiny-omnigen", "height": 128, "width": 128}
    plan = make_plan(RunConfig(name="t", suite=suite, models=[model], metrics=[]), files=False)
    step = cards()["tiny-omnigen"].takes.size_multiple
    for name, (width, height) in TARGETS.items():
        (sampler,) = (c.work["sampler"] for c in plan.candidates if c.task_id == name)
        assert abs(sampler["width"] - sampler["height"] * width / height) <= step, (name, sampler)
        assert sampler["width"] != sampler["height"]


LAYOUTS = {"hype-edit-1": "hype", "idea-bench": "idea", "ice-bench": "ice", "servimage": "servimage"}


@pytest.mark.parametrize("path", sorted((configs_dir() / "runs").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_shipped_config_plans(path, tmp_path):
    config = load_config(path)
    assert config.name == path.stem
    if config.suite.name in LAYOUTS:
        data = getattr(layouts, LAYOUTS[config.suite.name])(tmp_path / "data")
        config = load_config(path, (f"suite.path={data}",))
    plan = estimate(config, make_plan(config, files=False), "h100")
    assert plan["n_tasks"] > 0
    assert plan["judge"]["n_questions"] > 0
    if config.suite.name == "idea-bench":  # for table 8
        assert [metric.partition(":")[0] for metric in config.metrics] == ["clip_cap"]
    if path.stem == "hype-edit-1":
        assert [model.attempts for model in config.models] == [10] * 4
        assert len({judge.card for judge in config.judges}) == 5


def test_identical_repeats_are_reported(tmp_path):
    """IDEA-Bench repeats each question three times; label probabilities are not sampled."""
    config = configs_dir() / "runs/idea-bench.yaml"
    path = f"suite.path={layouts.idea(tmp_path / 'data')}"
    notes = {
        protocol: make_plan(load_config(config, (path, f"judge.protocol={protocol}")), files=False).notes
        for protocol in ("json", "logit")
    }
    (note,) = set(notes["logit"]) - set(notes["json"])
    assert "the 3 repeats of each question are identical under protocol logit and count as one" in note


@pytest.mark.parametrize(
    ("model", "note"),
    [
        ({"card": "flux1-schnell"}, None),
        ({"card": "flux1-schnell", "guidance_scale": 3.5}, "guidance_scale 3.5 has no effect: the model has no guid"),
        ({"card": "flux2-klein-4b", "guidance_scale": 4}, "guidance_scale 4 has no effect: the model has no guidance"),
        ({"card": "flux2-klein-base-4b", "guidance_scale": 5}, None),
        ({"card": "flux1-dev", "guidance_scale": 2}, None),
        ({"card": "flux2-dev", "guidance_scale": 2}, None),
        ({"card": "sd35-large", "guidance_scale": 1, "negative_prompt": "blurred"}, "negative_prompt has no effect"),
        ({"card": "sd35-large", "negative_prompt": "blurred"}, None),
        ({"card": "qwen-image", "true_cfg_scale": 1, "negative_prompt": "blurred"}, "negative_prompt has no effect"),
        ({"card": "instruct-pix2pix", "negative_prompt": "blurred"}, None),
    ],
)
def test_a_setting_that_changes_no_image_is_named(model, note):
    config = RunConfig.model_validate({"name": "x", "suite": {"name": "studio", "limit": 1}, "models": [model]})
    found = [sentence for sentence in make_plan(config, files=False).notes if "no effect" in sentence]
    assert len(found) == (note is not None)
    assert all(sentence.startswith(f"{model['card']}: {note}") for sentence in found)


def test_a_folder_of_another_pipeline_is_refused_before_anything_is_loaded(tmp_path):
    """By the class of the pipeline or of its denoiser; SD3's own folder is also that of its inpainting."""
    flux, sd3, flux2, judge = (
        resolve(card(name, role))
        for name, role in (
            ("tiny-flux", "generator"),
            ("tiny-sd3", "generator"),
            ("tiny-flux2", "generator"),
            ("mini-judge", "judge"),
        )
    )
    for name, folder, sentence in (
        ("tiny-flux", flux, None),
        ("tiny-sd3-inpaint", sd3, None),
        (
            "tiny-flux",
            sd3,
            "a StableDiffusion3Pipeline, and tiny-flux needs a FluxTransformer2DModel as its transformer",
        ),
        ("tiny-pix2pix", flux, "a FluxPipeline, and tiny-pix2pix needs a UNet2DConditionModel as its unet"),
        ("tiny-flux2", flux2, None),
        ("tiny-flux2-klein", flux2, "a Flux2Pipeline, and tiny-flux2-klein needs a Qwen3ForCausalLM as its text_enc"),
        ("sdxl-base", flux, "a FluxPipeline, and sdxl-base needs a StableDiffusionXLPipeline as its pipeline"),
        (
            "tiny-flux",
            judge,
            r"no pipeline \(it has no model_index.json\), and tiny-flux needs a FluxTransformer2DModel",
        ),
    ):
        config = RunConfig(name="x", suite={"name": "studio"}, models=[{"card": name, "weights": str(folder)}])
        if sentence is None:
            check_config(config)
        else:
            with pytest.raises(UserError, match=f"^{folder} is {sentence}"):
                check_config(config)


@pytest.mark.parametrize(
    ("name", "steps", "refused"), [("tiny-qwen-image", 1, True), ("tiny-qwen-image", 2, False), ("tiny-flux", 1, False)]
)
def test_a_number_of_steps_with_which_no_image_is_finite_is_refused(name, steps, refused):
    """Without it every image was generated and unscored: values that are not finite."""
    model = {"card": name, "num_inference_steps": steps}
    config = RunConfig.model_validate({"name": "x", "suite": {"name": "studio"}, "models": [model]})
    with pytest.raises(ConfigError, match=f"{name}: its scheduler divides by zero") if refused else nullcontext():
        check_config(config, files=False)


def test_two_checkpoints_of_one_card_can_be_planned_without_their_files():
    """`local-bench plan` refused them as one model; the same checkpoint under two names is refused all the same."""
    both = [{"card": "tiny-flux", "weights": name, "name": name} for name in ("step-1000", "step-2000")]
    suite = {"name": "studio", "limit": 1}
    config = RunConfig.model_validate({"name": "x", "suite": suite, "models": both})
    assert len({candidate.work_id for candidate in make_plan(config, files=False).candidates}) == 2
    both[1]["weights"] = "step-1000"
    with pytest.raises(ConfigError, match="'step-1000' and 'step-2000' are the same in everything"):
        make_plan(RunConfig.model_validate({"name": "x", "suite": suite, "models": both}), files=False)
