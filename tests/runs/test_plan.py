"""The content of a plan: models, tasks, order and sizes; identities; images that are left out and the reasons."""

import json

import pytest
from PIL import Image

from local_bench.core.errors import ConfigError, UserError
from local_bench.core.identity import seed_of
from local_bench.models.cards import card
from local_bench.runs.config import RunConfig
from local_bench.runs.plan import make_plan


@pytest.fixture
def folder(tmp_path):
    """Three tasks: an edit of a wide image with two deliverables, one of text alone, one whose source is missing."""
    Image.new("RGB", (320, 160), "white").save(tmp_path / "wide.png")
    common = {"category": "c", "price_usd": 8, "title": "t", "brief": "b", "evaluation_points": ["p"]}
    tasks = [
        {"task_id": "edit", "deliverables": ["one", "two"], "source_image": "wide.png"},
        {"task_id": "text", "deliverables": ["three"]},
        {"task_id": "missing", "deliverables": ["four"], "source_image": "missing.png"},
    ]
    (tmp_path / "tasks.jsonl").write_text("\n".join(json.dumps(common | task) for task in tasks))
    return tmp_path


def plan(folder, *models, limit=None, **settings):
    suite = {"name": "servimage", "path": str(folder / "tasks.jsonl"), "limit": limit}
    config = {"name": "x", "suite": suite, "models": list(models), "metrics": []} | settings
    return make_plan(RunConfig.model_validate(config), files=False)


FLUX = {"card": "tiny-flux", "attempts": 2}
KONTEXT = {"card": "tiny-flux-kontext"}


def test_candidates_are_ordered_by_model_task_deliverable_and_attempt(folder):
    keys = [
        (c.model, c.deliverable.task_id, c.deliverable.index, c.attempt) for c in plan(folder, FLUX, KONTEXT).candidates
    ]
    each = [("edit", 1), ("edit", 2), ("text", 1), ("missing", 1)]
    expected = [("tiny-flux", *one, attempt) for one in each for attempt in (1, 2)]
    assert keys == expected + [("tiny-flux-kontext", *one, 1) for one in each]


def test_work_ids_are_unique_and_seeds_follow_from_them(folder):
    candidates = plan(folder, FLUX, KONTEXT).candidates
    assert len({c.work_id for c in candidates}) == len(candidates)
    assert len({c.seed for c in candidates}) == len(candidates)
    assert all(c.seed == seed_of(c.work_id) for c in candidates)
    assert [c.work_id for c in plan(folder, FLUX, KONTEXT).candidates] == [c.work_id for c in candidates]


@pytest.mark.parametrize(
    "changed",
    [
        {"seed": 1},
        {"models": [FLUX | {"num_inference_steps": 3}]},
        {"models": [FLUX | {"height": 64}]},
        {"models": [FLUX | {"guidance_scale": 2.0}]},
    ],
)
def test_settings_that_change_bytes_change_the_identity(folder, changed):
    before = {c.work_id for c in plan(folder, FLUX).candidates}
    after = {c.work_id for c in plan(folder, *changed.pop("models", [FLUX]), **changed).candidates}
    assert not before & after


@pytest.mark.parametrize(
    "changed", [{"name": "other"}, {"judge": {"card": "tiny-qwen2-vl"}}, {"engine": {"batch_size": 1, "workers": 2}}]
)
def test_settings_that_do_not_change_bytes_do_not_change_the_identity(folder, changed):
    assert [c.work_id for c in plan(folder, FLUX, **changed).candidates] == [
        c.work_id for c in plan(folder, FLUX).candidates
    ]


def test_a_name_or_more_attempts_change_no_planned_identity(folder):
    before = [c.work_id for c in plan(folder, FLUX).candidates]
    renamed = plan(folder, FLUX | {"name": "mine"}).candidates
    assert [c.work_id for c in renamed] == before
    assert {c.model for c in renamed} == {"mine"}
    assert set(before) < {c.work_id for c in plan(folder, FLUX | {"attempts": 3}).candidates}
    assert {c.work_id for c in plan(folder, FLUX, limit=1).candidates} < set(before)


def test_an_edit_takes_its_sources_aspect_and_text_the_cards_size(folder):
    sizes = {
        (c.model, c.deliverable.task_id): (c.work["sampler"]["width"], c.work["sampler"]["height"])
        for c in plan(folder, FLUX, KONTEXT).candidates
    }
    assert sizes["tiny-flux", "edit"] == sizes["tiny-flux", "text"] == (128, 128)
    width, height = sizes["tiny-flux-kontext", "edit"]
    assert width / height == pytest.approx(2, rel=0.15)
    own = card("tiny-flux-kontext", "generator").sampler
    assert width * height == pytest.approx(own.width * own.height, rel=0.15)


def test_unsupported_images_are_planned_as_unscored_with_the_reason(folder):
    planned = plan(folder, {"card": "tiny-pix2pix"}, FLUX)
    reasons = {(p.candidate.model, p.candidate.deliverable.task_id): p.unscored for p in planned.planned}
    assert reasons["tiny-pix2pix", "edit"] is None
    assert reasons["tiny-pix2pix", "text"].startswith("tiny-pix2pix works on a picture")
    assert "missing.png" in reasons["tiny-flux", "missing"] == reasons["tiny-pix2pix", "missing"]
    assert any("tiny-flux takes no input images; 2 of 3 deliverables" in note for note in planned.notes)


def test_an_imported_model_has_no_work_to_do(folder):
    (folder / "api/edit").mkdir(parents=True)
    Image.new("RGB", (32, 32), "red").save(folder / "api/edit/2.png")
    imported = {"images": str(folder / "api"), "cost_usd_per_image": "0.04"}
    planned = plan(folder, {"card": "imported", "name": "api", "imported": imported}).planned
    found = {(p.candidate.deliverable.task_id, p.candidate.deliverable.index): p for p in planned}
    assert [key for key, p in found.items() if p.pixels_sha256] == [("edit", 2)]
    assert found["edit", 2].cost_micro_usd == 40_000
    assert found["edit", 1].unscored == "No picture by api was imported for this."


def test_invalid_input_is_an_error(folder):
    with pytest.raises(ConfigError, match="'tiny-flux' and 'twin' are the same in everything that determines an image"):
        plan(folder, FLUX, {"card": "tiny-flux", "name": "twin"})
    with pytest.raises(ConfigError, match=r"tiny-flux has no true_cfg_scale"):
        plan(folder, FLUX | {"true_cfg_scale": 2.0})
    with pytest.raises(ConfigError, match="unknown generator 'tiny-flx': did you mean 'tiny-flux'"):
        plan(folder, {"card": "tiny-flx"})
    with pytest.raises(ConfigError, match="unknown metric 'nothing'"):
        plan(folder, FLUX, metrics=["nothing"])
    (folder / "tasks.jsonl").write_text("")
    with pytest.raises(UserError, match="contains no orders"):
        plan(folder, FLUX)


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        (None, None),
        ("text_only", None),
        ("unscored", "the task has 1 input image, and the model takes none"),
        ("skip", "not supported: the task has 1 input image, and the model takes none"),
    ],
)
def test_a_task_with_more_input_images_than_the_model_takes_is_as_the_config_says(folder, mode, reason):
    suite = {"name": "servimage", "path": str(folder / "tasks.jsonl"), "unsupported": mode}
    found = plan(folder, FLUX, KONTEXT, suite=suite)
    of = {(p.candidate.model, p.candidate.deliverable.task_id): p.unscored for p in found.planned}
    assert (of["tiny-flux", "edit"], of["tiny-flux", "text"]) == (reason, None)
    assert of["tiny-flux-kontext", "edit"] is None
    assert [p.candidate.work_id for p in found.planned] == [c.work_id for c in plan(folder, FLUX, KONTEXT).candidates]
    (note,) = [note for note in found.notes if note.startswith("tiny-flux ")]
    expected = {
        "skip": "tiny-flux does not support 1 of 3 tasks, which it skips.",
        "unscored": "tiny-flux does not support 1 of 3 tasks, which stay unscored.",
    }
    assert note == expected.get(
        mode,
        "tiny-flux takes no input images; 2 of 3 deliverables have more and are generated without them "
        "(suite.unsupported).",
    )
