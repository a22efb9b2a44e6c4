import json
from collections import Counter

import pytest
from PIL import Image

from local_bench.core.errors import ImageError, TaskFileError, UserError
from local_bench.core.images import pixel_digest
from local_bench.suites.registry import suite
from local_bench.suites.task_files import read_task_file

TASK = {"task_id": "digital-1", "category": "Digital", "price_usd": 69.44, "title": "Icon", "brief": "An icon."}
TASK |= {"deliverables": ["An icon"], "evaluation_points": ["It is an icon"]}


def write(path, *lines):
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({**TASK, "price_usd": "69"}, "price_usd"),
        ({**TASK, "price_usd": -1}, "0 or more"),
        ({**TASK, "price_usd": True}, "price_usd"),
        ({**TASK, "prize_usd": 1}, "there is no key 'prize_usd'; did you mean 'price_usd'?"),
        ({**TASK, "task_id": "../etc"}, "task id"),
        ({**TASK, "task_id": "a/b"}, "task id"),
        ({**TASK, "task_id": "a" * 129}, "at most 128"),
        ({**TASK, "deliverables": []}, "deliverables"),
        ({**TASK, "deliverables": "one"}, "deliverables"),
        ({**TASK, "title": None}, "title"),
        ({k: v for k, v in TASK.items() if k != "brief"}, "'brief' is missing"),
        (TASK, "first on line 1"),
        ("[1]", "a task is a JSON object"),
        ("{", "not one JSON object"),
        ('{"price_usd": NaN}', "NaN is not a JSON number"),
        ('{"title": "a", "title": "b"}', "is duplicated"),
        ({**TASK, "task_id": "x", "source_image": "../../etc/passwd"}, "leads out"),
        ({**TASK, "task_id": "x", "reference_images": ["/etc/passwd"]}, "not a relative path"),
    ],
)
def test_a_bad_line_names_file_line_and_reason(tmp_path, line, message):
    path = write(tmp_path / "tasks.jsonl", TASK, line)
    with pytest.raises(UserError) as caught:
        read_task_file(path, pixel_digest)
    assert f"{path}, line 2: " in str(caught.value)
    assert message in str(caught.value)


def test_an_empty_or_missing_file_is_an_error(tmp_path):
    with pytest.raises(TaskFileError, match="contains no tasks"):
        read_task_file(write(tmp_path / "empty.jsonl"), pixel_digest)
    with pytest.raises(TaskFileError, match="does not exist"):
        read_task_file(tmp_path / "nowhere.jsonl", pixel_digest)
    (tmp_path / "wide.jsonl").write_bytes((tmp_path / "empty.jsonl").read_bytes() + json.dumps(TASK).encode("utf-16"))
    with pytest.raises(TaskFileError, match=r"line 1: this is not UTF-8 text: save the file as UTF-8$"):
        read_task_file(tmp_path / "wide.jsonl", pixel_digest)


def test_images_are_named_by_their_pixels_and_missing_ones_noted(tmp_path):
    Image.new("RGB", (8, 8), "red").save(tmp_path / "red.png")
    line = {**TASK, "source_image": "red.png", "reference_images": ["gone.png"]}
    (task,) = read_task_file(write(tmp_path / "t.jsonl", line), pixel_digest)
    assert task.source_sha256 == pixel_digest(Image.new("RGB", (8, 8), "red"))
    assert task.notes == ("The reference image gone.png is not there; the order goes on without it.",)
    assert task.unscored is None


def test_a_missing_source_makes_the_task_unscored_and_a_damaged_one_is_refused(tmp_path):
    line = {**TASK, "source_image": "photo.png"}
    (task,) = read_task_file(write(tmp_path / "t.jsonl", line), pixel_digest)
    assert "photo.png" in str(task.unscored)
    (tmp_path / "photo.png").write_bytes(b"\x89PNG\r\n\x1a\nrubbish")
    with pytest.raises(ImageError, match=r"line 1: .*photo.png"):
        read_task_file(tmp_path / "t.jsonl", pixel_digest)


def test_a_mask_is_read_and_needs_its_source(tmp_path):
    for name, colour in (("photo", "red"), ("mask", "white")):
        Image.new("RGB", (8, 8), colour).save(tmp_path / f"{name}.png")
    line = {**TASK, "source_image": "photo.png", "mask_image": "mask.png"}
    [task] = read_task_file(write(tmp_path / "t.jsonl", line), pixel_digest)
    assert task.mask_sha256 == pixel_digest(Image.new("RGB", (8, 8), "white"))
    [without_mask] = read_task_file(write(tmp_path / "t.jsonl", {**line, "mask_image": "gone.png"}), pixel_digest)
    assert without_mask.unscored == "The mask gone.png, which marks what the order asks to edit, is not there."
    with pytest.raises(TaskFileError, match="mask_image marks a part of source_image, which is missing"):
        read_task_file(write(tmp_path / "t.jsonl", {**TASK, "mask_image": "mask.png"}), pixel_digest)


def test_the_three_published_tasks(shared):
    tasks = suite("servimage").tasks(str(shared / "data/servimage-cases/tasks.jsonl"), pixel_digest)
    assert [t.task_id for t in tasks] == ["digital-009", "portrait-001", "product-015"]
    assert sum(t.price_micro_usd for t in tasks) == 347_220_000
    assert [len(t.deliverables) for t in tasks] == [4, 1, 1]
    assert [bool(t.unscored) for t in tasks] == [False, True, False]
    assert [len(t.notes) for t in tasks] == [0, 0, 1]


def test_our_own_suite_agrees_with_the_readme():
    tasks = suite("studio").tasks(None, pixel_digest)
    assert len(tasks) == 12
    assert Counter(task.category for task in tasks) == {"Portrait": 4, "Product": 4, "Digital": 4}
    assert {len(t.deliverables) for t in tasks} == {1, 2, 3, 4}
