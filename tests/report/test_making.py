"""The page's figures of generation: values with their units, and a text where there is no value."""

from collections.abc import Callable
from pathlib import Path

import pytest

from local_bench.report.making import figure, operations
from local_bench.runs.rundir import RunDir

from .test_report import Page, report

MakeRun = Callable[..., Path]


def cells(page: Page, table: str) -> list[list[str]]:
    return [[" ".join(cell.split()) for cell in row] for row in page.tables[table]]


def change(path: Path, *statements: str) -> None:
    with RunDir.open(path) as run:
        for statement in statements:
            run.store.write(statement)


def test_each_system_has_its_figures(make_run: MakeRun) -> None:
    page = report(make_run(on_gpus=True))
    head, alpha, beta, elsewhere = cells(page, "t-making")
    assert head[0] == "Model"
    assert alpha == [
        *("alpha", "3 320x240", "4", "4.40 s", "2.66 s 2.10 PFLOP", "60.4 % 1.66", "168"),
        *("$0.010700 $0.002200", "2.97 Wh 0.611 Wh"),
    ]
    assert beta[3:6] == ["2.00 s", "no floor: its cache skips work", "415"]
    assert elsewhere == ["some-api", "1", "imported", "$0.137406", "n/a"]
    assert "a peak of 790 TFLOP/s of NVIDIA H100 80 GB" in page.text
    assert page.faults() == []


def test_the_cpu_has_no_floor_and_no_counter(make_run: MakeRun) -> None:
    path = make_run()
    with RunDir.open(path) as run:
        run.store.write("UPDATE meter SET phase = 'decode', energy_mj = NULL WHERE phase = 'denoise'")
        one = '{"flop": 121000000, "least_flop": 121000000, "planned_batch_size": 4}'
        run.store.set_meta("operations:alpha", f'{{"kinds": {{"240x320": {one}}}}}')
    page = report(path)
    assert cells(page, "t-making")[1] == [
        *("alpha", "3 320x240", "4", "3.33 s", "no floor for this device 121 MFLOP", "900"),
        *("$0.002000 $0.001667", "no counter"),
    ]
    assert cells(page, "t-making")[2][4] == "not counted"
    assert "CPU-hour" in page.text
    assert "GPU-hour" not in page.text
    assert "TFLOP/s" not in page.text


def test_an_impossible_timing_is_a_warning(make_run: MakeRun) -> None:
    path = make_run(on_gpus=True)
    change(path, "UPDATE meter SET t1_ns = t0_ns + 1 WHERE phase = 'denoise'")
    assert "alpha: its 3 images were denoised and decoded in" in report(path).text


def test_smaller_batches_and_extra_images_are_reported(make_run: MakeRun) -> None:
    path = make_run(on_gpus=True)
    assert "were planned" not in report(path).text
    change(
        path,
        "UPDATE candidates SET batch_size = 2 WHERE model = 'alpha' AND deliverable = 1",
        "UPDATE candidates SET batch_size = 1 WHERE model = 'beta'",
        "UPDATE meter SET phase = 'retry' WHERE model = 'alpha' AND phase = 'encode'",
        "UPDATE meter SET n_items = n_items + 1 WHERE model = 'alpha' AND phase = 'decode' AND session = 1",
    )
    page = report(path)
    assert "alpha: batches of 4 were planned, and 2 images were made in batches of 2, as memory ran out." in page.text
    assert (
        "beta: batches of 4 were planned, and 3 images were made one by one, as larger batches changed bytes"
        in page.text
    )
    assert "alpha: 1 batch did not fit in memory and was generated again in smaller batches." in page.text
    assert "alpha: 1 image was generated again, because of lost or interrupted work." in page.text
    assert cells(page, "t-making")[1][2:4] == ["4, 2", "3.30 s"]  # 13.2 s for four that were made


def test_cut_prompts_are_counted_once_for_each_encoder(make_run: MakeRun) -> None:
    path = make_run(on_gpus=True)
    rows = cells(report(path), "t-cuts")[1:]
    assert rows[:2] == [["alpha", "clip", "2", "2", "6"], ["alpha", "t5", "2", "0", "0"]]
    assert {row[0] for row in rows} == {"alpha", "beta"}
    change(path, "UPDATE candidates SET truncated = '{}'")
    assert "t-cuts" not in report(path).tables


def test_each_image_lists_the_inputs_of_its_model(make_run: MakeRun) -> None:
    path = make_run(on_gpus=True)
    assert "saw" not in report(path).text.split()
    with RunDir.open(path) as run:
        source, other = run.store.rows(
            """SELECT json_extract(content, '$.source_sha256') AS a, json_extract(content, '$.reference_sha256[0]') AS b
               FROM tasks WHERE task_id = 't2'"""
        )[0]
        update = (
            "UPDATE candidates SET work = json_set(work, '$.pictures', json(?)) WHERE model = ? AND deliverable = ?"
        )
        run.store.write(update, f'["{source}"]', "alpha", 1)
        run.store.write(update, f'["{source}", "{other}"]', "alpha", 2)
        run.store.write(update, "[]", "beta", 1)
    text = report(path).text
    assert text.count("input: source image only") == 1  # the first order has no images
    assert text.count("input: all images of the task") == 1
    assert text.count("input: no image of the task") == 1


@pytest.mark.parametrize(
    ("value", "expected"), [(0.01583, "0.0158"), (2.0, "2.00"), (44.16, "44.2"), (100.4, "100"), (28462.9, "28,463")]
)
def test_figures_have_three_digits(value: float, expected: str) -> None:
    assert figure(value) == expected


@pytest.mark.parametrize(("flop", "expected"), [(2.1e15, "2.10 PFLOP"), (9.4e14, "940 TFLOP"), (5e5, "0.500 MFLOP")])
def test_operations_are_in_their_largest_unit(flop: float, expected: str) -> None:
    assert operations(flop) == expected
