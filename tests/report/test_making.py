"""The report of generation: values with their units, and a text where there is no value."""

import pytest

from local_bench.core.money import MICRO, usd
from local_bench.core.table import DASH
from local_bench.report.render import with_unit
from local_bench.report.text import operations, significant
from local_bench.runs.rundir import RunDir
from local_bench.suites.published import dollars

from .written import change, report

EACH = "Time, cost and energy per image"
CUTS = "Prompts longer than an encoder's limit"


def test_each_system_has_its_figures(make_run):
    written = report(make_run(on_gpus=True))
    alpha, beta, elsewhere = written.tables[EACH]
    assert alpha == [
        *("alpha", "3 320x240", "4", "4.40 s", "2.66 s 2.10 PFLOP", "60.4 % 1.66", DASH, "168"),
        *("$0.010700 $0.002200", "2.97 Wh 0.611 Wh"),
    ]
    assert beta[3:8] == ["2.00 s", DASH, DASH, "no floor: its cache skips work", "415"]
    assert elsewhere == ["some-api", "1", "imported", *[DASH] * 5, "$0.137406", DASH]
    assert "a peak of 790 TFLOP/s of NVIDIA H100 80 GB" in written.text
    assert not [word for word in ("were planned", "input: ") if word in written.text]
    cuts = written.tables[CUTS]  # counted once for each encoder
    assert cuts[:2] == [["alpha", "clip", "2", "2", "6"], ["alpha", "t5", "2", "0", "0"]]
    assert {row[0] for row in cuts} == {"alpha", "beta"}


def test_the_cpu_has_no_floor_and_no_counter(make_run):
    path = change(make_run(), "UPDATE meter SET phase = 'decode', energy_mj = NULL WHERE phase = 'denoise'")
    kind = '{"flop": 121000000, "least_flop": 121000000, "planned_batch_size": 4}'
    with RunDir.open(path) as run:
        run.store.set_meta("operations:alpha", f'{{"kinds": {{"240x320": {kind}}}}}')
    written = report(path)
    columns = ("time each", "floor each", "no floor", "images per CPU-hour", "cost each")
    alpha, beta = written.rows(EACH, *columns)
    assert alpha == ["3.33 s", f"{DASH} 121 MFLOP", "no floor for this device", "900", "$0.002000 $0.001667"]
    assert beta[1:3] == [DASH, "not counted"]
    assert not {"MFU", "energy each"} & set(written.headings[EACH])
    assert "TFLOP/s" not in written.text


def test_an_impossible_timing_is_a_warning(make_run):
    path = change(make_run(on_gpus=True), "UPDATE meter SET t1_ns = t0_ns + 1 WHERE phase = 'denoise'")
    beginning = "alpha: its 3 images were denoised and decoded in"
    assert [warning for warning in report(path).warnings if warning.startswith(beginning)]


def test_smaller_batches_extra_images_and_each_models_inputs_are_reported(make_run):
    path = change(
        make_run(on_gpus=True),
        "UPDATE candidates SET batch_size = 2 WHERE model = 'alpha' AND deliverable = 1",
        "UPDATE candidates SET batch_size = 1 WHERE model = 'beta'",
        "UPDATE meter SET phase = 'retry' WHERE model = 'alpha' AND phase = 'encode'",
        "UPDATE meter SET n_items = n_items + 1 WHERE model = 'alpha' AND phase = 'decode' AND session = 1",
        "UPDATE candidates SET truncated = '{}'",
    )
    with RunDir.open(path) as run:
        (task,) = [task for task in run.store.tasks() if task.task_id == "t2"]
        source, other = task.source_sha256, task.reference_sha256[0]
        given = {("alpha", 1): f'["{source}"]', ("alpha", 2): f'["{source}", "{other}"]', ("beta", 1): "[]"}
        for (model, deliverable), pictures in given.items():
            update = "UPDATE candidates SET work = json_set(work, '$.pictures', json(?)) WHERE model = ?"
            run.store.write(f"{update} AND deliverable = ?", pictures, model, deliverable)
    written = report(path)
    assert CUTS not in written.tables
    for what in ("source image only", "all images of the task", "no image of the task"):  # the first order has none
        assert written.text.count(f"input: {what}") == 1
    for sentence in (
        "alpha: batches of 4 were planned, and 2 images were made in batches of 2, as memory ran out.",
        "beta: batches of 4 were planned, and 3 images were made one by one, as larger batches changed bytes",
        "alpha: 1 batch did not fit in memory and was generated again in smaller batches.",
        "alpha: 1 image was generated again, because of lost or interrupted work.",
    ):
        assert sentence in written.text
    assert written.rows(EACH, "at once", "time each")[0] == ["4, 2", "3.30 s"]  # 13.2 s for four that were made


@pytest.mark.parametrize(
    ("form", "value", "expected"),
    [
        *((significant, value, text) for value, text in ((0.01583, "0.0158"), (2.0, "2.00"), (44.16, "44.2"))),
        *((significant, value, text) for value, text in ((100.4, "100"), (28462.9, "28,463"))),
        *((operations, flop, text) for flop, text in ((2.1e15, "2.10 PFLOP"), (9.4e14, "940 TFLOP"))),
        (operations, 5e5, "0.500 MFLOP"),
    ],
)
def test_figures_have_three_digits_and_operations_their_largest_unit(form, value, expected):
    assert form(value) == expected


@pytest.mark.parametrize("micro", [132_415_000, 132_425_000, -1_005_000, 8_165_000, 1_079_700_000, 243_243_286])
def test_tables_and_sentences_round_half_a_cent_alike(micro):
    """A float of half a cent is a little more or less than that."""
    assert with_unit(micro / MICRO, dollars("usd", "revenue")) == usd(micro)
