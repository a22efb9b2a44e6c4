"""The sizes of the images that a run makes for edits: each in its target's aspect ratio."""

import json

from PIL import Image

from local_bench.models.cards import cards
from local_bench.runs.config import RunConfig
from local_bench.runs.rundir import RunDir
from local_bench.runs.stages import run_stages

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
    model = {"card": "tiny-omnigen", "num_inference_steps": 1, "height": 128, "width": 128}
    suite = {"name": "hype-edit-1", "path": str(tmp_path / "public.json")}
    config = {"name": "t", "suite": suite, "models": [model], "metrics": [], "engine": {"device": "cpu"}}
    run_stages(RunConfig.model_validate(config), tmp_path / "run", ("generate",))
    with RunDir.open(tmp_path / "run") as run:
        made = {row.candidate.task_id: run.image(row.candidate.image) for row in run.store.outcomes(1)}
    step = cards()["tiny-omnigen"].takes.size_multiple
    for name, (width, height) in TARGETS.items():
        with Image.open(made[name]) as image:
            assert abs(image.width - image.height * width / height) <= step, (name, image.size)
            assert image.width != image.height
