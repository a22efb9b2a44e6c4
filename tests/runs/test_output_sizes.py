"""The sizes of the images that a run makes for edits: each in its target's aspect ratio."""

import json

from PIL import Image

from local_bench.models.cards import cards
from local_bench.runs.config import RunConfig
from local_bench.runs.plan import make_plan

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
        (sampler,) = (c.work["sampler"] for c in plan.candidates if c.deliverable.task_id == name)
        assert abs(sampler["width"] - sampler["height"] * width / height) <= step, (name, sampler)
        assert sampler["width"] != sampler["height"]
