"""`local-bench measure FOLDER`: numbers for people who want only these."""

import json
import unicodedata

import pytest
import torch
from PIL import Image

from local_bench.cli.main import main
from local_bench.judges.metrics.base import NO_MEMORY
from local_bench.judges.metrics.embeddings import DinoNetwork

from ..judges.metrics.helpers import blurred, drawing, noise


@pytest.fixture
def lab(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("made/deep", "sources/deep", "masks", "references"):
        (tmp_path / folder).mkdir(parents=True)
    drawing().save(tmp_path / "made/a.png")
    drawing().save(tmp_path / "sources/a.jpg", quality=60)
    Image.new("L", (160, 128), 0).save(tmp_path / "masks/a.webp", lossless=True)
    blurred(drawing()).save(tmp_path / "made/deep/b.webp", lossless=True)
    drawing().save(tmp_path / "sources/deep/b.png")
    noise(1).save(tmp_path / "references/a.png")
    noise(2).save(tmp_path / "references/a_1.png")
    noise(3).save(tmp_path / "made/c.PNG")
    (tmp_path / "captions.jsonl").write_text(
        '{"image": "a.png", "caption": "a house"}\n{"image": "deep/b.webp", "caption": "a blurred house"}\n'
    )
    return tmp_path


METRICS = "l1_raw,ssim,colorfulness,clip_cap:tiny-clip,clip_ref:tiny-clip"
COMPANIONS = ["--sources", "sources", "--masks", "masks", "--references", "references", "--captions", "captions.jsonl"]


def test_companion_files_are_found_by_name(lab, capsys):

    def measured():
        assert main(["measure", "made", "--metrics", METRICS, *COMPANIONS, "--out", "scores.jsonl", "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    found = measured()
    a, b, c = (found["images"][name] for name in ("a.png", "deep/b.webp", "c.PNG"))
    assert 0 < a["l1_raw"]["value"] < b["l1_raw"]["value"]
    assert b["ssim"]["value"] < a["ssim"]["value"] < 1
    assert None not in [
        score["value"] for score in (a["clip_ref:tiny-clip"], b["clip_cap:tiny-clip"], c["colorfulness"])
    ]
    lacks = {"l1_raw": "source picture", "clip_cap:tiny-clip": "caption", "clip_ref:tiny-clip": "reference"}
    assert all(c[name]["value"] is None and what in c[name]["unscored"] for name, what in lacks.items())
    spec = found["metrics"]["clip_cap:tiny-clip"]
    assert (spec["higher_is_better"], len(spec["weights_sha256"]), "bicubic" in spec["preprocessing"]) == (
        True,
        64,
        True,
    )

    lines = (lab / "scores.jsonl").read_text().splitlines()
    complete_lines = set(lines[:-1])
    (lab / "scores.jsonl").write_text("\n".join([*lines[:-1], lines[-1][:20]]))  # cut off in its last line
    assert measured() == found
    assert complete_lines < set((lab / "scores.jsonl").read_text().splitlines())
    drawing().save(lab / "made/c.PNG")  # another image now
    third = measured()
    assert third["images"]["c.PNG"]["colorfulness"] == a["colorfulness"]
    assert third["images"]["a.png"] == a


def test_a_mask_is_read_as_in_a_run(lab, capsys):
    """Its transparent pixels are of their stored colour: black is kept, not laid on white."""
    noise(4).save(lab / "sources/a.jpg")
    grey = Image.linear_gradient("L").resize((160, 128)).point(lambda v: 255 * (v > 128))
    found = []
    for mask in (grey, Image.merge("LA", (grey, Image.new("L", grey.size, 0)))):
        (lab / "masks/a.webp").unlink(missing_ok=True)
        mask.save(lab / "masks/a.png")
        command = ["measure", "made", "--metrics", "l1_raw", "--sources", "sources", "--masks", "masks", "--json"]
        assert main(command) == 0
        found.append(json.loads(capsys.readouterr().out)["images"]["a.png"]["l1_raw"]["value"])
    assert found[0] == found[1] > 0


def test_files_that_belong_to_no_image_are_named(lab, capsys):
    for name in (
        "made/d.bmp",
        "made/notes.txt",
        "sources/other.png",
        "masks/deep.png",
        "made/.thumb.png",
        "made/e.jpg",
    ):
        noise(5).save(name) if name.endswith(("bmp", "png")) else (lab / name).write_text("x")
    command = ["measure", "made", "--metrics", "l1_raw,piqe", "--sources", "sources", "--masks", "masks", "--json"]
    assert main(command) == 0
    captured = capsys.readouterr()
    measured = json.loads(captured.out)
    assert measured["images"]["e.jpg"]["piqe"]["value"] is None
    assert "not a readable" in measured["images"]["e.jpg"]["piqe"]["unscored"]
    assert measured["metrics"]["piqe"]["higher_is_better"] is False
    assert "2 files in made are not used: d.bmp, notes.txt" in captured.err
    assert "1 file in sources is not used: other.png" in captured.err
    assert "1 file in masks is not used: deep.png" in captured.err
    assert ".thumb" not in captured.out + captured.err


def test_a_reference_or_caption_of_another_image_is_not_used(lab, capsys):
    noise(7).save(lab / "made/a_1.png")
    noise(8).save(lab / "made/deep/a.png")
    (lab / "references/a.png").unlink()
    captions = {"a.png": "a house", "b.webp": "a blurred house", "zebra.png": "a zebra"}
    (lab / "captions.json").write_text(json.dumps(captions))
    command = ["measure", "made", "--metrics", "clip_ref:tiny-clip,clip_cap:tiny-clip", "--json"]
    assert main([*command, "--references", "references", "--captions", "captions.json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)["images"]
    scored = {
        name.partition(":")[0]: {key for key, scores in found.items() if scores[name]["value"] is not None}
        for name in command[3].split(",")
    }
    assert scored == {"clip_ref": {"a_1.png"}, "clip_cap": {"a.png", "deep/b.webp"}}
    assert "captions.json has captions without an image in made (1): 'zebra.png'" in captured.err


def test_paired_folders_within_the_folder_are_not_measured(lab, capsys):
    for command in (["measure", "."], ["measure", str(lab)]):
        paired = ["--sources", "sources", "--masks", "masks", "--references", "references"]
        assert main([*command, "--metrics", "l1_raw", *paired, "--json"]) == 0
        assert {*json.loads(capsys.readouterr().out)["images"]} == {"made/a.png", "made/deep/b.webp", "made/c.PNG"}
    assert main(["measure", "sources", "--metrics", "l1_raw", "--sources", "sources", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["images"].values()
    assert [scores["l1_raw"]["value"] for scores in found] == [0, 0]


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_companion_files_are_found_in_any_form_of_unicode(lab, capsys, form):
    drawing().save("made/" + unicodedata.normalize(form, "é.png"))
    drawing().save("sources/" + unicodedata.normalize("NFD" if form == "NFC" else "NFC", "é.png"))
    assert main(["measure", "made", "--metrics", "l1_raw", "--sources", "sources", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["images"]
    assert found[unicodedata.normalize(form, "é.png")]["l1_raw"]["value"] == 0


def test_scores_for_which_memory_ran_out_are_computed_again(lab, monkeypatch, capsys):

    def full(self, prepared):
        raise torch.OutOfMemoryError("CUDA out of memory")

    command = ["measure", "made", "--metrics", "dino_ref:tiny-dinov2", "--references", "references", "--out", "s.jsonl"]
    command += ["--json", "--set", "engine.metric_batch_size=1"]
    found = []
    for runs_out in (True, False):
        with monkeypatch.context() as crowded:
            if runs_out:
                crowded.setattr(DinoNetwork, "run", full)
            assert main(command) == 0
        found.append(json.loads(capsys.readouterr().out)["images"]["a.png"]["dino_ref:tiny-dinov2"])
    assert found[0]["unscored"] == NO_MEMORY
    assert found[1]["value"] is not None


def test_scores_are_computed_again_where_what_belongs_to_the_image_is_another(lab, capsys):
    def measured(metrics, *paired):
        assert main(["measure", "made", "--metrics", metrics, *paired, "--out", f"{metrics}.jsonl", "--json"]) == 0
        return json.loads(capsys.readouterr().out)["images"]["a.png"][metrics]["value"]

    drawing().save("made/a.png")
    drawing().save("sources/a.jpg")
    paired = "--sources", "sources", "--masks", "masks"
    same, of_source = measured("ssim", *paired), measured("l1_raw", "--sources", "sources")
    noise(6).save("sources/a.png")
    other = measured("l1_raw", "--sources", "sources")
    assert other != of_source
    assert measured("ssim", *paired) != same
    Image.linear_gradient("L").resize((160, 128)).save("masks/a.webp")
    assert measured("l1_raw", "--sources", "sources", "--masks", "masks") not in (of_source, other)
    (lab / "one.json").write_text('{"a.png": "a fox"}')
    (lab / "two.json").write_text('{"a.png": "a wall of bricks and a blue door"}')
    first, second = (measured("clip_cap:tiny-clip", "--captions", f"{name}.json") for name in ("one", "two"))
    assert first != second


def test_the_text_table_and_a_metric_without_weights(lab, capsys):
    assert main(["measure", "made", "--metrics", "colorfulness,dino_ref"]) == 0
    captured = capsys.readouterr()
    assert captured.out.count("unscored: the weights of this metric are not on this machine") == 3
    assert "models fetch dinov2-giant" in captured.err
    assert main(["measure", "made", "--metrics", "dino_ref", "--require-metrics"]) == 2
    captured = capsys.readouterr()
    assert "models fetch dinov2-giant" in captured.err
    assert not captured.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(
            (f"made --metrics {name}", f"did you mean '{meant}'?")
            for name, meant in {"l1_rw": "l1_raw", "clipscore": "clip_cap", "CLIP-I": "clip_ref"}.items()
        ),
        ("made --metrics ArcFace", "did you mean 'face_ref'?"),
        ("made --metrics pyiqa:musik", "did you mean 'pyiqa:musiq'?"),
        ("made --metrics pyiqa:fid", "fid"),
        ("made --metrics ssim --sources nowhere", "nowhere is not a folder"),
        ("made --metrics ssim --captions bad.jsonl", "bad.jsonl, line 1"),
        ("made --metrics ssim --captions twice.jsonl", "twice.jsonl, line 2: 'a.png' already has a caption"),
        ("made --metrics ssim --run-dir x", "--run-dir applies to a config"),
        ("made --sources sources", "name the metrics with --metrics"),
        ("made --metrics ssim --set seed=1", "only engine.KEY=VALUE"),
        ("made --metrics ssim --set engine.devise=cpu", "did you mean 'device'?"),
        ("made --metrics ssim --out other.jsonl", "other.jsonl"),
    ],
)
def test_wrong_input_is_an_error(lab, capsys, arguments, message):
    (lab / "bad.jsonl").write_text('{"image": "a.png", "words": "x"}\n{}\n')
    (lab / "twice.jsonl").write_text('{"image": "a.png", "caption": "x"}\n' * 2)
    (lab / "other.jsonl").write_text('{"metrics": {}}\n')
    assert main(["measure", *arguments.split()]) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines()), message in err) == ("", 1, True), err


def test_captions_that_clip_cuts_are_counted_in_a_note_and_in_the_result(lab, capsys):
    long = "a red fox beside a green owl " * 20
    captions = {"a.png": long + "and no owl", "b.webp": long, "c.PNG": "a fox"}
    (lab / "captions.json").write_text(json.dumps(captions))
    command = ["measure", "made", "--metrics", "clip_cap:tiny-clip,colorfulness", "--captions", "captions.json"]
    for _ in range(2):  # the second time from the scores that were kept
        assert main([*command, "--out", "s.jsonl", "--json"]) == 0
        captured = capsys.readouterr()
        assert "clip_cap:tiny-clip: 2 of 3 captions have more than 77 tokens and were cut" in captured.err
        found = json.loads(captured.out)
        assert found["captions_cut"] == {"clip_cap:tiny-clip": {"n": 3, "n_cut": 2, "max_tokens": 77}}
    (lab / "captions.json").write_text(json.dumps({"a.png": "a fox"}))
    assert main([*command, "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["captions_cut"] == {}
    assert "tokens" not in captured.err
