"""`score` itself: which suite, which options, which exit status."""

import pytest

from local_bench.cli.main import main


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ice", "f"], "suite 'ice' has no official result files: did you mean 'ice-bench'?"),
        (["studio", "f"], "use servimage, hype-edit-1, idea-bench, ice-bench"),
        (
            ["ice-bench", "f", "--costs", "c"],
            "--costs applies only to servimage and hype-edit-1: omit it for ice-bench",
        ),
        (["servimage", "f", "--retry-cap", "3"], "--retry-cap applies only to hype-edit-1"),
        (["servimage", "f"], "give the orders with --tasks"),
        (["ice-bench", "f", "g"], "ice-bench results are in one file, but 2 are given"),
        (
            ["hype-edit-1", "f", "--review-seconds", "x"],
            "--review-seconds must be a number that is not negative, not 'x'",
        ),
        (["hype-edit-1", "f", "--review-seconds", "inf"], "--review-seconds must be a number that is not negative"),
        (["ice-bench", "absent.txt"], "absent.txt does not exist"),
        (["idea-bench", "absent.csv"], "absent.csv does not exist"),
        (["hype-edit-1", "absent.json"], "absent.json does not exist"),
        (["servimage", "absent.jsonl", "--tasks", "absent.jsonl"], "absent.jsonl does not exist"),
        (["servimage"], "Missing argument"),
    ],
)
def test_wrong_input_exits_with_2_and_one_sentence(capsys, arguments, message):
    assert main(["score", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("suite", ["ice-bench", "idea-bench", "hype-edit-1", "servimage"])
@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"\x00", b"null", b"[[[[", b"{}"])
def test_no_file_makes_a_traceback(capsys, tmp_path, suite, content):
    path = tmp_path / "file"
    path.write_bytes(content)
    options = ["--tasks", str(path)] if suite == "servimage" else []
    assert main(["score", suite, str(path), *options]) == 2
    stderr = capsys.readouterr().err
    assert str(path) in stderr
    assert stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "status"), [(r"\ud800", 2), (r"\udc00\ud800", 2), (r"\ud83d\ude00", 0), (r"\\ud800", 0)]
)
def test_an_unpaired_surrogate_is_refused_and_a_pair_is_not(capsys, tmp_path, name, status):
    (tmp_path / "a.jsonl").write_text(f'{{"model": "{name}", "task_id": "t", "annotations": {{"subtask_1": true}}}}\n')
    (tmp_path / "t.jsonl").write_text('{"task_id": "t", "category": "c", "price_usd": 5, "deliverables": 1}\n')
    ended = main(["score", "servimage", str(tmp_path / "a.jsonl"), "--tasks", str(tmp_path / "t.jsonl"), "--json"])
    assert ended == status
    if status:
        assert "a.jsonl, line 1" in (stderr := capsys.readouterr().err)
        assert "an unpaired surrogate" in stderr


def test_a_huge_exponent_is_refused(capsys, tmp_path):
    order = '{"task_id": "t", "category": "c", "price_usd": 1e99999999999999999999, "deliverables": 1}'
    (tmp_path / "t.jsonl").write_text(order + "\n")
    assert main(["score", "servimage", str(tmp_path / "t.jsonl"), "--tasks", str(tmp_path / "t.jsonl")]) == 2
    assert "t.jsonl, line 1: this is not one JSON object (a number's exponent" in capsys.readouterr().err
