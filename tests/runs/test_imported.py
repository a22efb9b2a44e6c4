"""Imported images are settled in the same table as generated ones."""

import unicodedata

import pytest
from PIL import Image

from local_bench.analysis.digest import digests
from local_bench.analysis.settlement import accounting
from local_bench.core.errors import ConfigError, ImageError, UserError
from local_bench.core.files import unused
from local_bench.generators.imported import find_images
from local_bench.runs.config import RunConfig
from local_bench.runs.plan import make_plan
from local_bench.runs.rundir import RunDir
from tests.orders import order, write_orders
from tests.stages import run_stages

ORDERS = {"mug": 2, "logo": 1}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [order(task, [f"image {i}" for i in range(1, n + 1)], brief="Draw it.") for task, n in ORDERS.items()]
    write_orders(tmp_path / "tasks.jsonl", lines)
    (tmp_path / "made" / "mug").mkdir(parents=True)
    return tmp_path


def run(folder, images="made", *more, attempts=1, **imported):
    models = [{"card": "imported", "name": "some-api", "imported": {"images": images} | imported, "attempts": attempts}]
    suite = {"name": "servimage", "path": "tasks.jsonl"}
    config = RunConfig(name="t", suite=suite, models=[*models, *more], metrics=[], engine={"device": "cpu"})
    run_stages(config, folder / "run", ("generate", "settle"))
    with RunDir.open(folder / "run") as done:
        rows = done.store.rows("SELECT * FROM candidates ORDER BY position")
        return rows, accounting(done.store, done.config.settlement), digests(done)


def image(path, size=(40, 30), colour="red", **how):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path, **how)


def test_imported_images_of_any_size_and_format_are_settled_with_generated_ones(folder):
    image(folder / "made/mug/1.jpg", (301, 207))
    image(folder / "made/mug/0002.webp", (64, 990), "blue")
    Image.new("RGBA", (5, 5), (0, 0, 0, 0)).save(folder / "made/logo.png")
    tiny = {"card": "tiny-flux", "height": 64, "width": 64, "num_inference_steps": 1}
    rows, accounts, _ = run(folder, "made", tiny, cost_usd_per_image="0.137406021")
    assert [(r["model"], r["state"]) for r in rows] == [("some-api", "done")] * 3 + [("tiny-flux", "done")] * 3
    with RunDir.open(folder / "run") as done:
        stored = [done.image_store.load(row["pixels_sha256"]) for row in rows[:3]]
    assert [(x.size, x.mode) for x in stored] == [((301, 207), "RGB"), ((64, 990), "RGB"), ((5, 5), "RGB")]
    costs = {s.model: s.cost_micro_usd for s in accounts.settlements}
    assert costs["some-api"] == 3 * 137_406
    assert costs["tiny-flux"] > 0
    assert {s.model: s.total.n + s.total.n_unscored for s in accounts.settlements} == {"some-api": 3, "tiny-flux": 3}


def test_missing_images_are_unscored_and_a_lost_copy_is_restored(folder):
    image(folder / "made/mug_2.png")
    rows, accounts, digest = run(folder)
    none = "No picture by some-api was imported for this."
    assert [r["unscored"] for r in rows] == [none, None, none]
    assert accounts.settlements[0].cost_micro_usd is None  # no cost was given
    with RunDir.open(folder / "run") as done:
        done.image(rows[1]["pixels_sha256"]).unlink()
    assert run(folder)[2] == digest
    with RunDir.open(folder / "run") as done:
        assert done.image(rows[1]["pixels_sha256"]).exists()


def test_files_that_are_no_image_of_the_run_are_named(folder):
    """Hidden files and a notebook's checkpoints are none."""
    image(folder / "made/mug/1.png")
    for name in ("mug/3.png", ".hidden.png", ".ipynb_checkpoints/mug_2.png"):
        image(folder / "made" / name)
    for name in ("mug/2.bmp", "readme.txt"):
        (folder / "made" / name).write_text("x")
    _, left = find_images(folder / "made", [("mug", 1, 1), ("mug", 2, 1)])
    files = "mug/2.bmp, mug/3.png, readme.txt"
    assert unused(folder / "made", left) == f"3 files in {folder / 'made'} are not used: {files}"


def test_images_numbered_from_0_are_refused(folder):
    for name, also in (("mug/0.png", set()), ("mug_0.jpg", {("mug_0", 1, 1)})):
        image(folder / name[:4] / name)
        with pytest.raises(ConfigError, match="images of a task are numbered from 1"):
            find_images(folder / name[:4], [("mug", 1, 1), ("mug", 2, 1)])
        assert set(find_images(folder / name[:4], [("mug_0", 1, 1)])[0]) == also


@pytest.mark.parametrize("left_out", [0, 1, 2])
def test_a_file_that_could_be_an_image_of_two_tasks_is_refused(folder, left_out):
    """Tasks `logo` and `logo_1`; also if one of them is of another shard."""
    logo, logo_1 = [("logo", 1, attempt) for attempt in (1, 2)], [("logo_1", n, 1) for n in (1, 2)]
    wanted, others = [(logo + logo_1, []), (logo, logo_1), (logo_1, logo)][left_out]
    for name in ("logo_1.png", "logo_1_2.png"):
        image(folder / "flat" / name)
        with pytest.raises(
            ConfigError, match=r"logo_1\.png could be image 1, attempt 1 of 'logo(_1)?' or image 1, att"
        ):
            find_images(folder / "flat", wanted, others)
    for name in ("logo/1_1", "logo/1_2", "logo_1/1", "logo_1/2"):
        image(folder / f"nested/{name}.png")
    assert set(find_images(folder / "nested", wanted, others)[0]) == set(wanted)


def test_names_are_equal_in_all_of_unicode_s_forms(folder):
    for written, wanted in (("NFC", "NFD"), ("NFD", "NFC")):
        image(folder / written / unicodedata.normalize(written, "café/1.png"))
        assert find_images(folder / written, [(unicodedata.normalize(wanted, "café"), 1, 1)])[1] == []


def test_several_attempts_are_imported_and_changed_images_are_refused(folder):
    image(folder / "made/logo/1_1.png")
    image(folder / "made/logo/1_2.png", colour="blue")
    rows, _, _ = run(folder, attempts=2)
    assert [(r["task_id"], r["attempt"]) for r in rows if r["state"] == "done"] == [("logo", 1), ("logo", 2)]
    image(folder / "made/logo/1_2.png", colour="green")
    with pytest.raises(ConfigError, match="imported images"):
        run(folder, attempts=2)


def test_a_manifest_lists_files_and_costs(folder):
    image(folder / "made/a.png")
    image(folder / "made/b.png", colour="blue")
    lines = ('{"task_id": "mug", "file": "a.png", "cost_usd": 0.04}', "")
    second = '{"task_id": "mug", "deliverable": 2, "file": "b.png", "cost_usd": 0.02754237}'
    (folder / "made/list.jsonl").write_text("\n".join((*lines, second)))
    _, accounts, _ = run(folder, "made/list.jsonl")
    assert accounts.settlements[0].cost_micro_usd == 40_000 + 27_542


def test_a_manifest_may_have_the_tasks_that_a_limit_or_a_shard_leaves_out(folder):
    image(folder / "made/a.png")
    lines = [f'{{"task_id": "{task}", "file": "a.png"}}\n' for task in ORDERS]
    (folder / "made/list.jsonl").write_text("".join(lines))
    model = {"card": "imported", "name": "some-api", "imported": {"images": "made/list.jsonl"}}
    seen = []
    for part in ({"limit": 1}, {"shard": "1/2"}, {"shard": "2/2"}):
        suite = {"name": "servimage", "path": "tasks.jsonl"} | part
        plan = make_plan(RunConfig(name="t", suite=suite, models=[model], metrics=[]))
        seen.append([candidate.task_id for candidate in plan.scheduled("some-api")])
    assert seen[0] == ["mug"]
    assert sorted(seen[1] + seen[2]) == sorted(ORDERS)
    (folder / "made/list.jsonl").write_text("".join(lines) + '{"task_id": "cup", "file": "a.png"}\n')
    with pytest.raises(UserError, match="the run has no image 1 of 'cup'"):
        make_plan(RunConfig(name="t", suite=suite | {"limit": 1}, models=[model], metrics=[]))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"task_id": "mug", "file": "gone.png"}', "line 1: gone.png does not exist"),
        ('{"task_id": "cup", "file": "a.png"}', "line 1: the run has no image 1 of 'cup'"),
        ('{"task_id": "mug", "file": "../../etc/passwd"}', "leads out of"),
        ('{"task_id": "mug", "file": "a.png", "cost_usd": -1}', "cost is a number of US dollars"),
        ("[1]", "line 1"),
        ("nonsense", "line 1: this is not a JSON object"),
    ],
)
def test_an_invalid_line_is_an_error(folder, line, message):
    image(folder / "made/a.png")
    (folder / "made/list.jsonl").write_text(line)
    with pytest.raises(UserError, match=message) as caught:
        run(folder, "made/list.jsonl")
    assert "\n" not in str(caught.value)


def test_two_files_for_one_image_and_unreadable_files_are_refused(folder):
    image(folder / "made/mug/1.png")
    image(folder / "made/mug/1.jpg")
    with pytest.raises(ConfigError, match="match the same image"):
        run(folder)
    (folder / "made/mug/1.jpg").unlink()
    (folder / "made/mug/1.png").write_bytes(b"GIF89a nothing")
    with pytest.raises(ImageError, match=r"1\.png is not a readable"):
        run(folder)
    with pytest.raises(ConfigError, match="does not exist"):
        run(folder, "nowhere")
