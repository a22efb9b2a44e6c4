"""The metrics, mask and caption of each task follow from the items of ICE-Bench."""

from local_bench.runs.config import RunConfig
from local_bench.runs.measure import _every
from local_bench.runs.rundir import RunDir
from local_bench.runs.stages import run_stages
from tests.suites.benchmarks import layouts


def test_each_item_has_its_own_metrics_mask_and_caption(tmp_path):
    path = layouts.ice(tmp_path / "data")
    for n in range(1, 6):
        layouts.write_image(tmp_path / "made" / f"i{n}.png", 10 + n)
    names = ["entropy", "l1_raw", "clip_cap:tiny-clip", "colorfulness", "l1_depth:tiny-depth", "clip_ref:tiny-clip"]
    config = RunConfig(
        name="t",
        suite={"name": "ice-bench", "path": str(path)},
        models=[{"card": "imported", "name": "theirs", "imported": {"images": str(tmp_path / "made")}}],
        metrics=names,
        engine={"device": "cpu"},
    )
    run_stages(config, tmp_path / "run", ("generate",))
    with RunDir.open(tmp_path / "run") as run:
        items = [row["task_id"] for row in run.store.rows("SELECT task_id FROM candidates ORDER BY task_id")]
        selected = dict(zip(items, _every(run), strict=True))
    metrics = {item: set(own) for item, (_, own) in selected.items()}
    clip = "clip_cap:tiny-clip"
    assert metrics == {
        "i1": {"entropy", clip},
        "i2": {"entropy", clip, "l1_raw"},
        "i3": {"entropy", clip, "l1_raw"},
        "i4": {"entropy", clip, "clip_ref:tiny-clip"},
        "i5": {"entropy", clip, "l1_depth:tiny-depth"},
    }
    subjects = {item: subject for item, (subject, _) in selected.items()}
    assert subjects["i3"].mask is not None
    assert subjects["i2"].mask is None
    assert subjects["i2"].caption == "A green box."  # the description of the result, not the instruction
    assert len(subjects["i4"].references) == 1
    assert subjects["i4"].source is None
