"""`score` itself: which suite, which options, which exit status."""

import pytest

from local_bench.cli.main import main

ORDER = '{"task_id": "t", "category": "c", "price_usd": %s, "deliverables": 1}\n'


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("ice f", "suite 'ice' has no official result files: did you mean 'ice-bench'?"),
        ("studio f", "use servimage, hype-edit-1, idea-bench, ice-bench"),
        ("ice-bench f --costs c", "--costs applies only to servimage and hype-edit-1: omit it for ice-bench"),
        ("servimage f --retry-cap 3", "--retry-cap applies only to hype-edit-1"),
        ("servimage f", "give the tasks with --tasks"),
        ("ice-bench f g", "ice-bench results are in one file, but 2 are given"),
        (
            "hype-edit-1 f --review-seconds x",
            "--review-seconds must be 0 or a number from 1e-30 to 1,000,000,000, not 'x'",
        ),
        *((f"hype-edit-1 f --review-seconds {n}", "to 1,000,000,000, not") for n in ("inf", "-1", "1e40", "1e-40")),
        ("ice-bench absent.txt", "absent.txt does not exist"),
        ("idea-bench absent.csv", "absent.csv does not exist"),
        ("hype-edit-1 absent.json", "absent.json does not exist"),
        ("servimage absent.jsonl --tasks absent.jsonl", "absent.jsonl does not exist"),
        ("servimage", "Missing argument"),
    ],
)
def test_wrong_input_exits_with_2_and_one_sentence(capsys, command, message):
    assert main(["score", *command.split()]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("suite", ["ice-bench", "idea-bench", "hype-edit-1", "servimage"])
def test_no_file_makes_a_traceback(capsys, tmp_path, suite):
    path = tmp_path / "file"
    options = ["--tasks", str(path)] if suite == "servimage" else []
    for content in (b"", b"\xff\xfe", b"\x00", b"null", b"[[[[", b"{}"):
        path.write_bytes(content)
        assert main(["score", suite, str(path), *options]) == 2
        stderr = capsys.readouterr().err
        assert (str(path) in stderr, stderr.count("\n")) == (True, 1), content


@pytest.mark.parametrize(
    ("model", "price", "message"),
    [
        (r"\ud800", "5", "a.jsonl, line 1"),
        (r"\udc00\ud800", "5", "an unpaired surrogate"),
        (r"\ud83d\ude00", "5", ""),
        (r"\\ud800", "5", ""),
        ("a", "1e99999999999999999999", "t.jsonl, line 1: this is not one JSON object (a number's exponent"),
    ],
)
def test_unpaired_surrogates_and_huge_exponents_are_refused(capsys, tmp_path, model, price, message):
    (tmp_path / "a.jsonl").write_text(f'{{"model": "{model}", "task_id": "t", "annotations": {{"subtask_1": true}}}}\n')
    (tmp_path / "t.jsonl").write_text(ORDER % price)
    status = main(["score", "servimage", str(tmp_path / "a.jsonl"), "--tasks", str(tmp_path / "t.jsonl"), "--json"])
    assert (status, message in capsys.readouterr().err) == (2 if message else 0, True)
