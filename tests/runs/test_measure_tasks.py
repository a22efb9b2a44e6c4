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
    suite = {"name": "ice-bench", "path": str(path)}
    model = {"card": "imported", "name": "theirs", "imported": {"images": str(tmp_path / "made")}}
    metrics = ["entropy", "l1_raw", "clip_cap:tiny-clip", "colorfulness", "l1_depth:tiny-depth", "clip_ref:tiny-clip"]
    config = RunConfig(name="t", suite=suite, models=[model], metrics=metrics, engine={"device": "cpu"})
    run_stages(config, tmp_path / "run", ("generate",))
    with RunDir.open(tmp_path / "run") as run:
        items = [row["task_id"] for row in run.store.rows("SELECT task_id FROM candidates ORDER BY task_id")]
        selected = dict(zip(items, _every(run), strict=True))
    more = {
        "i1": set(),
        "i2": {"l1_raw"},
        "i3": {"l1_raw"},
        "i4": {"clip_ref:tiny-clip"},
        "i5": {"l1_depth:tiny-depth"},
    }
    of_all = {"entropy", "clip_cap:tiny-clip"}
    assert {item: set(names) - of_all for item, (_, names) in selected.items()} == more
    assert all(of_all <= set(names) for _, names in selected.values())
    subjects = {item: subject for item, (subject, _) in selected.items()}
    assert (subjects["i2"].mask is None, subjects["i3"].mask is None) == (True, False)
    assert subjects["i2"].caption == "A green box."  # the description of the result, not the instruction
    assert (len(subjects["i4"].references), subjects["i4"].source) == (1, None)
