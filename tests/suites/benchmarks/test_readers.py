"""Each benchmark's own layout becomes tasks: its questions, the inputs of a model, and what the model does not
support."""

import json
from collections import Counter

import pytest
from PIL import Image

from local_bench.core.errors import ConfigError, TaskFileError, UserError
from local_bench.core.images import pixel_digest
from local_bench.core.types import UNSUPPORTED, Task, Verdict
from local_bench.models.cards import Takes, card
from local_bench.report.papers.ice_bench import NUMBERED
from local_bench.suites.hype_edit_1.suite import PARTS
from local_bench.suites.ice_bench.tasks import METRICS_OF
from local_bench.suites.registry import suite
from tests.conftest import SHARED
from tests.suites.benchmarks import layouts

TEXT_ONLY, ONE, THREE = Takes(), Takes(pictures=1, size_from_picture=True), Takes(pictures=3)


def read(name, path, part=None, written=None):
    return {task.task_id: task for task in suite(name).tasks(str(path), pixel_digest, part, written)}


def yes(**answer):
    return Verdict(answer, None, "")


def no(reason="not JSON"):
    return Verdict(None, reason, "")


def test_a_task_without_later_fields_is_unchanged():
    old = Task("t", "C", 1, "T", "B", ("one",), ("p",))
    assert list(old.content) == [*list(old.__dataclass_fields__)[:12]]
    assert Task("t", "C", 1, "T", "B", ("one",), ("p",), caption="").content["caption"] == ""


class TestHypeEdit1:
    def test_tasks(self, tmp_path):
        tasks = read("hype-edit-1", layouts.hype(tmp_path))
        assert {t.category for t in tasks.values()} == {"change", "restructure", "remove+enhance"}
        assert tasks["two-1"].size == (4096, 2048)
        assert len(tasks["two-1"].reference_sha256) == 1
        assert list(read("hype-edit-1", tmp_path / "public.json", "enhance")) == ["list-1"]
        with pytest.raises(ConfigError, match="did you mean 'public'"):
            read("hype-edit-1", tmp_path / "public.json", "pubic")

    def test_an_attempt_passes_when_all_three_parts_do(self, tmp_path):
        benchmark = suite("hype-edit-1")
        task = read("hype-edit-1", layouts.hype(tmp_path))["two-1"]
        [(key, question)] = benchmark.questions(task, {1: "made"})
        assert question.roles == ("source", "source", "result")
        assert dict(question.slots)["changes"] == f"1. {task.brief}"
        for values, passed in (((True, True, True), 1), ((True, True, False), 0)):
            answer = dict(zip(PARTS, values, strict=True))
            assert benchmark.scores(task, {key: yes(**answer)})[1][0].value == passed
        assert benchmark.scores(task, {key: no()})[1][0].unscored == "not JSON"
        assert benchmark.scores(task, {})[1][0].unscored

    def test_a_model_that_takes_too_few_images_is_unsupported(self, tmp_path):
        entry, tasks = suite("hype-edit-1"), read("hype-edit-1", layouts.hype(tmp_path))
        assert entry.fitted(tasks["two-1"], THREE)[0].prompt == tasks["two-1"].brief
        assert "2 pictures, and the model takes 1" in entry.fitted(tasks["two-1"], ONE)
        assert entry.fitted(tasks["mug-1"], TEXT_ONLY).startswith(UNSUPPORTED)
        adapter = card("flux1-dev-ip-adapter", "generator").takes  # of a reference, not of an image to edit
        assert "the model takes no picture to edit" in entry.fitted(tasks["mug-1"], adapter)

    def test_the_public_split(self):
        path = SHARED / "data" / "hype-edit-1" / "public.json"
        if not path.exists():
            pytest.skip(f"{path} is not here")
        tasks = read("hype-edit-1", path)
        assert len(tasks) == 50
        assert all(task.unscored and "001.webp is not at" in task.unscored for task in tasks.values())
        assert {task.category for task in tasks.values()} <= {"change", "remove", "restructure", "enhance"}


class TestIceBench:
    def test_metrics_are_those_of_the_reference(self):
        path = SHARED / "reference" / "ice_bench.json"
        if not path.exists():
            pytest.skip(f"{path} is not here")
        metric_names = {"aesthetic": "aes_v2.5", "imaging": "musiq_koniq"}
        reference = json.loads(path.read_text())["task_metrics"]
        assert {t: {metric_names.get(m, m) for m in ms} for t, ms in reference.items()} == {
            t: set(ms) for t, ms in METRICS_OF.items()
        }

    def test_items(self, tmp_path):
        tasks, benchmark = read("ice-bench", layouts.ice(tmp_path)), suite("ice-bench")
        assert tasks["i1"].source_sha256 is tasks["i1"].mask_sha256 is None
        assert tasks["i3"].mask_sha256 != tasks["i3"].source_sha256
        prompts = {name: benchmark.deliverables(task)[0].prompt for name, task in tasks.items()}
        assert prompts["i1"] == "A red barn."
        assert prompts["i2"] == "Make image 1 green."
        assert prompts["i3"] == "Remove the box. Image 2 is a mask: only what is white in it is to change."
        assert prompts["i4"] == "The thing of image 1 on a beach."

    def test_only_edits_have_questions_for_the_judge(self, tmp_path):
        tasks, benchmark = read("ice-bench", layouts.ice(tmp_path)), suite("ice-bench")
        assert not list(benchmark.questions(tasks["i1"], {1: "made"}))
        assert not benchmark.scores(tasks["i1"], {})[1][0].applies
        [(key, question)] = benchmark.questions(tasks["i3"], {1: "made"})
        assert question.roles == ("source", "mask", "result")
        [(_, plain)] = benchmark.questions(tasks["i2"], {1: "made"})
        assert dict(plain.slots) == {"instruction": "Make SOURCE green."}
        assert benchmark.scores(tasks["i3"], {key: yes(success=1)})[1][0].value == 1
        assert benchmark.scores(tasks["i3"], {key: no()})[1][0].unscored == "not JSON"

    @pytest.mark.parametrize(
        ("name", "numbers"),
        [
            ("flux1-dev-ip-adapter", range(2, 5)),
            ("instruct-pix2pix", range(5, 17)),
            ("magicbrush", range(5, 17)),
            ("flux1-depth-dev", [25]),
            ("omnigen", range(1, 32)),
        ],
    )
    def test_supported_tasks_follow_the_roles_of_their_images(self, tmp_path, name, numbers):
        """As in table 2 of the supplement, where FLUX-Control is four models."""
        entry, takes = suite("ice-bench"), card(name, "generator").takes
        tasks = read("ice-bench", layouts.ice_whole(tmp_path)).values()
        supported = {task.category for task in tasks if not isinstance(entry.fitted(task, takes), str)}
        assert sorted(1 + NUMBERED.index(task) for task in supported) == list(numbers)

    def test_an_empty_string_of_references_is_none(self, tmp_path):
        path = layouts.ice(tmp_path)
        path.write_text(path.read_text().replace('"ReferenceImages": []', '"ReferenceImages": ""'))
        assert read("ice-bench", path)["i1"].reference_sha256 == ()

    def test_a_transparent_mask_is_read_by_its_colours(self, tmp_path):
        path = layouts.ice(tmp_path)
        mask = Image.new("LA", (64, 64), (0, 0))
        mask.paste((255, 255), (0, 0, 32, 64))
        mask.save(tmp_path / "masks" / "i3.png")
        opaque = Image.new("RGB", (64, 64))
        opaque.paste("white", (0, 0, 32, 64))
        assert read("ice-bench", path)["i3"].mask_sha256 == pixel_digest(opaque)

    def test_a_mask_goes_as_a_mask_to_a_model_that_takes_one(self, tmp_path):
        entry = suite("ice-bench")
        tasks = read("ice-bench", layouts.ice(tmp_path))
        masked = tasks["i3"]
        [deliverable] = entry.fitted(masked, Takes(text_alone=False, pictures=1, mask=True))
        shown = (deliverable.prompt, deliverable.input_images, deliverable.mask)
        assert shown == ("Remove the box.", (masked.source_sha256,), masked.mask_sha256)
        assert entry.deliverables(masked)[0].mask is None
        refused = entry.fitted(tasks["i2"], Takes(text_alone=False, pictures=1, mask=True))
        assert refused.startswith("not supported: ")
        assert "Color Editing gives no mask" in refused

    def test_a_missing_image_leaves_the_item_unscored(self, tmp_path):
        path = layouts.ice(tmp_path)
        (tmp_path / "masks" / "i3.png").unlink()
        assert read("ice-bench", path)["i3"].unscored == "Its picture masks/i3.png is not there."


class TestIdeaBench:
    def test_six_questions_three_times_on_collages(self, tmp_path):
        tasks, benchmark = read("idea-bench", layouts.idea(tmp_path / "d")), suite("idea-bench")
        found = dict(benchmark.questions(tasks["relight_0001"], {1: "made"}))
        assert len(found) == 18
        one = found[1, "idea_question", 3, 2]
        assert (one.collage.rows, len(one.images), one.repeat) == ((1, 1), 2, 2)
        pair = dict(benchmark.questions(tasks["pair_0001"], {2: "second"}))
        assert pair[2, "idea_question", 0, 0].collage.count == 1  # the card counts the images that exist
        assert pair[2, "idea_question", 0, 0].images == ()
        assert pair[2, "idea_question", 1, 0].images == ("second",)

    def test_a_question_without_all_its_answers_is_unscored(self, tmp_path):
        task, benchmark = read("idea-bench", layouts.idea(tmp_path / "d"))["pair_0001"], suite("idea-bench")
        heard = {(2, "idea_question", k, r): yes(met=int(k != 5 or r > 0)) for k in range(6) for r in range(3)}
        heard[2, "idea_question", 0, 1] = no()
        scores = benchmark.scores(task, heard)
        assert scores[1] == scores[2]
        assert [s.value for s in scores[1]] == [None, 1, 1, 1, 1, pytest.approx(2 / 3)]
        assert scores[1][0].unscored == "1 of 3 askings have no answer"

    def test_unsupported_cases_are_rephrased_or_reported(self, tmp_path):
        entry = suite("idea-bench")
        plain = read("idea-bench", layouts.idea(tmp_path / "d"))
        dagger = read("idea-bench", tmp_path / "d", written=layouts.rephrased(tmp_path / "written.jsonl"))
        assert "2 images, and the model makes one" in entry.fitted(plain["pair_0001"], TEXT_ONLY)
        assert entry.fitted(plain["relight_0001"], TEXT_ONLY).startswith(UNSUPPORTED)
        assert [d.prompt for d in entry.fitted(dagger["pair_0001"], TEXT_ONLY)] == ["A left shoe.", "A right shoe."]
        assert entry.fitted(dagger["relight_0001"], TEXT_ONLY)[0].input_images == ()
        assert entry.fitted(dagger["relight_0001"], ONE)[0].prompt == "Draw relight."
        assert entry.fitted(dagger["pair_0001"], Takes(text_alone=False, pictures=1)).startswith(UNSUPPORTED)

    def test_without_questions_for_a_judge_those_for_people_are_used(self, tmp_path):
        folder = layouts.idea(tmp_path / "d")
        case = folder / "relight_0001"
        (case / "auto_eval.jsonl").unlink()
        (case / "eval.json").write_text(json.dumps([{"question": f"q{k}"} for k in range(6)]))
        task = read("idea-bench", folder)["relight_0001"]
        assert task.evaluation_points == ("q0", "q1", "q2", "q3", "q4", "q5")
        assert "mini" not in task.own["parts"]
        (case / "eval.json").write_text(json.dumps({"questions": ["one"]}))
        with pytest.raises(TaskFileError, match="has 1 questions instead of 6"):
            read("idea-bench", folder)

    def test_a_question_for_people_carries_its_standards(self, tmp_path):
        folder = layouts.idea(tmp_path / "d")
        case = folder / "plain_0001"
        before = read("idea-bench", folder)["plain_0001"]
        (case / "auto_eval.jsonl").unlink()
        standards = {"0_point_standard": "A mark is there.", "1_point_standard": "There is none."}
        entries = [{"question": f"Is there a watermark, {k}?"} | standards for k in range(6)]
        (case / "eval.json").write_text(json.dumps({"questions": entries}))
        task, benchmark = read("idea-bench", folder)["plain_0001"], suite("idea-bench")
        text = "Is there a watermark, 0?\n0 points: A mark is there.\n1 point: There is none."
        assert task.evaluation_points[0] == text
        assert next(q.slots for _, q in benchmark.questions(task, {1: "a" * 64})) == (("question", text),)
        assert benchmark.deliverables(task) == benchmark.deliverables(before), "what identifies a candidate"
        entries[2].pop("0_point_standard")
        (case / "eval.json").write_text(json.dumps({"questions": entries}))
        with pytest.raises(TaskFileError, match="both 0 points and 1 point"):
            read("idea-bench", folder)


class TestServImage:
    def test_orders_in_the_authors_folders(self, tmp_path):
        tasks, benchmark = read("servimage", layouts.servimage(tmp_path)), suite("servimage")
        digital, portrait = tasks["digital-001"], tasks["portrait-010"]
        assert (digital.category, digital.price_micro_usd) == ("C-Digital", 100_010_000)
        assert portrait.source_sha256
        assert not portrait.reference_sha256
        assert len(digital.reference_sha256) == 1
        assert digital.source_sha256 is None
        assert digital.rules == ({"visual_specs": {"aspect_ratio": "1:1"}},) * 2
        one, two = (d.prompt for d in benchmark.deliverables(digital))
        assert one.startswith("Make image 1 of the 2")
        assert two.startswith("Make image 2 of the 2")
        assert "- It says Nord" in one
        assert "2. A card" in one
        assert benchmark.deliverables(portrait)[0].prompt.startswith("Order portrait-010: A white ground")

    def test_an_order_without_points_is_unscored_by_brf(self, tmp_path):
        folder = layouts.servimage(tmp_path)
        file = folder / "C-Portrait" / "Portrait.json"
        [entry] = json.loads(file.read_text())
        del entry["soft_rules"]
        file.write_text(json.dumps([entry]))
        benchmark = suite("servimage")
        brf = benchmark.scores(read("servimage", file)["portrait-010"], {})[1][0]
        assert "no evaluation points" in brf.unscored

    def test_orders_without_requirements_and_points_with_a_damaged_key_are_read(self, tmp_path):
        """Both are in the authors' own Product.json, three times each."""
        file = layouts.servimage(tmp_path) / "C-Digital" / "Digital.json"
        [entry] = json.loads(file.read_text())
        entry["original_task_data"]["requirements_original"] = ""
        entry["soft_rules"]["points"][1] = {"point_id": "ep_002", "point\u6781requirement": "It says Nord"}
        file.write_text(json.dumps([entry]))
        task = read("servimage", tmp_path)["digital-001"]
        assert (task.brief, task.evaluation_points) == ("", ("It is blue", "It says Nord"))
        prompt = suite("servimage").deliverables(task)[0].prompt
        assert "Order: Order digital-001\n\nIts images" in prompt
        assert "Requirements" not in prompt


class TestWritten:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ('{"task_id": "nobody", "prompts": ["x"]}', "no task 'nobody'"),
            ('{"task_id": "pair_0001", "prompts": ["x"]}', "requests 2 images, but has 1 prompt$"),
            ('{"task_id": "pair_0001", "prompts": [""]}', "line 1: prompts"),
            ('{"task_id": "pair_0001", "prompt": ["x"]}', "did you mean 'prompts'"),
            ('{"task_id": "pair_0001"}\n{"task_id": "pair_0001"}', "line 2: duplicate task 'pair_0001'"),
        ],
    )
    def test_a_line_that_fits_nothing_is_refused(self, tmp_path, text, message):
        (tmp_path / "w.jsonl").write_text(text)
        with pytest.raises(TaskFileError, match=message):
            read("idea-bench", layouts.idea(tmp_path / "d"), written=tmp_path / "w.jsonl")

    def test_written_rules_are_an_orders_rules(self, tmp_path):
        path = layouts.servimage(tmp_path / "d")
        rules = [{"visual_specs": {"aspect_ratio": "16:9"}}, {}]
        line = {"task_id": "digital-001", "rules": rules}
        (tmp_path / "w.jsonl").write_text(json.dumps(line))
        assert read("servimage", path, written=tmp_path / "w.jsonl")["digital-001"].rules == tuple(rules)
        (tmp_path / "w.jsonl").write_text(json.dumps(line | {"rules": [{}, {}]}))  # the judge found none
        stated = read("servimage", path)["digital-001"].rules
        assert read("servimage", path, written=tmp_path / "w.jsonl")["digital-001"].rules == stated
        (tmp_path / "w.jsonl").write_text(json.dumps(line | {"rules": [{}]}))
        with pytest.raises(TaskFileError, match="requests 2 images, but has rules for 1"):
            read("servimage", path, written=tmp_path / "w.jsonl")

    def test_enrichment_replaces_missing_content(self, tmp_path):
        line = {"task_id": "mug-1", "changes": ["Blue mug"], "preservations": ["The table"]}
        (tmp_path / "w.jsonl").write_text(json.dumps(line))
        path, benchmark = layouts.hype(tmp_path / "d"), suite("hype-edit-1")
        task = read("hype-edit-1", path, written=tmp_path / "w.jsonl")["mug-1"]
        [(_, question)] = benchmark.questions(task, {1: "made"})
        assert {"changes": "1. Blue mug", "preservations": "1. The table"}.items() <= dict(question.slots).items()
        assert benchmark.enrichment_question(task) is None
        assert benchmark.enrichment_question(read("hype-edit-1", path)["mug-1"]).rubric == "hype_checklist"


def changed(file, number, change):
    """One entry of a JSON list is changed."""
    entries = json.loads(file.read_text())
    entries[number] |= change
    file.write_text(json.dumps(entries, indent=2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 0}, "width"),
        ({"task_id": "a/b"}, "task id"),
        ({"input_images": []}, "input_images"),
        ({"input_images": ["../../x.png"]}, "leads out"),
        ({"task_id": "mug-1"}, "duplicate task id 'mug-1'"),
        ({"instrucion": "x"}, "instrucion"),
    ],
)
def test_a_bad_entry_of_hype_edit_1_is_refused(tmp_path, change, message):
    changed(layouts.hype(tmp_path), 1, change)
    with pytest.raises(UserError, match=f"public.json, .*{message}"):
        read("hype-edit-1", tmp_path / "public.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task_id": "a b"}, "task id"),
        ({"hard_rules": {"deliverables": []}}, "deliverables"),
        ({"original_task_data": {}}, "task_name_original"),
        ({"soft_rules": {"points": [{"point_id": "ep_001"}]}}, "point_requirement"),
    ],
)
def test_a_bad_order_of_servimage_is_refused(tmp_path, change, message):
    changed(layouts.servimage(tmp_path) / "C-Digital" / "Digital.json", 0, change)
    with pytest.raises(TaskFileError, match=f"Digital.json, line .*{message}"):
        read("servimage", tmp_path)


@pytest.mark.parametrize(
    ("name", "file", "text", "message"),
    [
        ("ice-bench", "data.jsonl", '{"ItemID": "i1", "Task": "Text2Image"}', "line 6: duplicate item 'i1', first on"),
        ("ice-bench", "data.jsonl", '{"ItemID": "x", "Task": "Text2Images"}', "did you mean 'Text2Image'"),
        ("ice-bench", "data.jsonl", '{"ItemID": "x/y", "Task": "Text2Image"}', "task id"),
        ("ice-bench", "data.jsonl", '{"ItemID": "x", "Task": "Text2Image", "ReferenceImages": "a"}', "ReferenceImages"),
        (
            "ice-bench",
            "data.jsonl",
            '{"ItemID": "x", "Task": "Color Editing", "SourceImage": "/etc"}',
            "not a relative",
        ),
        ("idea-bench", "plain_0001/meta.json", "[]", "JSON object"),
        ("idea-bench", "plain_0001/meta.json", '{"uid": "24"}', "meta.json"),
        ("idea-bench", "plain_0001/instruction.txt", " ", "is empty"),
        (
            "idea-bench",
            "plain_0001/auto_eval.jsonl",
            '{"question": "q", "output_images": ["x.jpg"]}',
            "line 1: 'x.jpg'",
        ),
    ],
)
def test_a_bad_line_or_case_is_refused(tmp_path, name, file, text, message):
    path = (layouts.ice if name == "ice-bench" else layouts.idea)(tmp_path / "d")
    before = (tmp_path / "d" / file).read_text() if name == "ice-bench" else ""
    (tmp_path / "d" / file).write_text(f"{before}{text}\n")
    with pytest.raises(UserError, match=message):
        read(name, path)


@pytest.mark.parametrize(
    ("name", "layout", "linked"),
    [
        *(("idea-bench", "idea", f"relight_0001/{file}") for file in ("0001.jpg", "meta.json", "instruction.txt")),
        ("servimage", "servimage", "C-*/*.json"),
        ("servimage", "servimage", "C-*/inputs"),
        ("servimage", "servimage", "C-*/inputs/*/*"),
    ],
)
def test_a_link_out_of_the_data_set_is_refused(tmp_path, name, layout, linked):
    folder = getattr(layouts, layout)(tmp_path / "data")
    assert read(name, folder)
    (file,) = sorted(folder.glob(linked))[:1]
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="leads out of"):
        read(name, folder)


def with_specs(folder, *published):
    """The order of two images with these sizes and ratios."""
    file = layouts.servimage(folder) / "C-Digital" / "Digital.json"
    (entry,) = json.loads(file.read_text())
    for deliverable, specs in zip(entry["hard_rules"]["deliverables"], published, strict=True):
        deliverable["rules"] = {"visual_specs": specs}
    file.write_text(json.dumps([entry]))
    return read("servimage", folder)["digital-001"]


@pytest.mark.parametrize(
    ("published", "specs"),
    [
        ({"aspect_ratio": "1:1.4"}, {"aspect_ratio": "1:1.4"}),
        ({"aspect_ratio": "A4"}, {}),
        ({"aspect_ratio": "竖版"}, {"aspect_ratio": "portrait"}),
        ({"aspect_ratio": "Horizontal"}, {"aspect_ratio": "landscape"}),
        ({"aspect_ratio": "竖排"}, {}),  # of lines of text
        ({"resolution": {"min_dpi": 300}}, {"min_dpi": 300.0}),
        ({"resolution": {"min_dpi": "300"}}, {}),
        ({"dimensions": {"min_width": 2480}}, {"min_width_px": 2480}),
        ({"dimensions": {"min_width": 0, "min_height": 3000}}, {"min_height_px": 3000}),
        ({"dimensions": {"min_width": 20, "unit": "cm"}}, {}),
        ({"dimensions": {"width": 2480, "height": 3508}, "aspect_ratio": "1:1"}, {"aspect_ratio": "1:1"}),
        ({"dimensions": {"width": 2480, "height": 3508}}, {"aspect_ratio": "2480:3508"}),
        ({"dimensions": {"width": 20, "height": 30, "depth": 4}}, {}),
        ({"dimensions": {"width": 800, "height": 600, "unit": "px"}}, {"width_px": 800, "height_px": 600}),
        ({"dimensions": {"width": 21, "height": 29.7, "unit": "cm"}}, {"width_mm": 210.0, "height_mm": 297.0}),
        ({"dimensions": {"width": "wide", "height": 3}}, {}),
        ({"dimensions": [1, 2]}, {}),
    ],
)
def test_only_unambiguous_published_sizes_of_servimage_are_used(tmp_path, published, specs):
    order = with_specs(tmp_path, published, published)
    assert order.rules == (({"visual_specs": specs},) * 2 if specs else ())


@pytest.mark.parametrize(
    ("published", "note"),
    [
        ({"dimensions": {"width": 248, "height": 351}, "aspect_ratio": "1:1"}, "the size has no unit and is not used."),
        ({"dimensions": {"width": 80, "height": 60, "unit": "px"}, "aspect_ratio": "竖版"}, "both are rules."),
        ({"dimensions": {"width": 750, "height": 1334}, "aspect_ratio": "1:1.78"}, None),
        ({"dimensions": {"width": 60, "height": 80}, "aspect_ratio": "竖版"}, None),
        ({"dimensions": {"width": 20, "height": 30, "depth": 4}, "aspect_ratio": "1:1"}, None),
    ],
)
def test_an_aspect_ratio_that_contradicts_the_size_is_named(tmp_path, published, note):
    notes = with_specs(tmp_path, {}, published).notes
    assert len(notes) == (note is not None)
    assert all(found.startswith("Image 2: the aspect ratio ") and found.endswith(note) for found in notes)


def test_hard_rules_of_the_published_orders():
    path = SHARED / "data" / "servimage-bench"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    orders = [order for file in sorted(path.glob("*/*.json")) for order in read("servimage", file).values()]
    assert (len(orders), sum(len(order.deliverables) for order in orders)) == (1070, 2046)
    assert sum(order.price_micro_usd for order in orders) == 295_038_080_000
    specs = [(order.task_id, of["visual_specs"]) for order in orders for of in order.rules if "visual_specs" in of]
    resolutions = [task_id for task_id, of in specs if "min_dpi" in of]
    assert (len(resolutions), len(set(resolutions))) == (357, 131)
    assert sum("min_width_px" in of or "min_height_px" in of for _, of in specs) == 47
    assert Counter(of["aspect_ratio"] for _, of in specs if of.get("aspect_ratio", "").isalpha()) == {
        "portrait": 6,
        "landscape": 5,
    }
    named = [order.notes for order in orders if order.notes]
    assert (sum(map(len, named)), len(named)) == (43, 34)
    [digital] = [order.notes for order in orders if order.task_id == "digital-002"]
    assert digital == (
        "Image 1: the aspect ratio 1:1 contradicts the size 2480 x 3508; the size has no unit and is not used.",
    )
