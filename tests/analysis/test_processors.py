"""The numbers of one ledger are the same bytes on every processor, although BLAS adds in another order with each
instruction set, and NumPy's exponentials and logarithms have other last digits."""

import subprocess
import sys

import pytest

from local_bench.runs.rundir import RunDir
from scripts.instruction_sets import SETS, environment
from tests.analysis.annotated_runs import annotated_run

CODE = """
import sys, numpy
from local_bench.cli.main import main
from local_bench.suites.printshop.checker import _forms
table = numpy.random.default_rng(0).normal(size=(300, 300))
print((table @ table).sum(), numpy.exp(table).sum(), file=sys.stderr)
run, people = sys.argv[1:]
labels = ["--annotations", people]
for command in (
    ["settle", run, "--people", people, "--plan-labels", "0.1", "--explain"],
    ["compare", run, run, "--all-pairs"],
    ["agreement", run, "--people", people],
    ["predictor", "train", run, *labels, "--out", "trained"],
    ["predictor", "evaluate", "trained", run, *labels],
    ["predictor", "apply", run, "--predictor", "trained"],
):
    assert main([*command, "--json"]) == 0, command
print(_forms().tolist())
"""


def test_the_numbers_of_a_run_do_not_depend_on_the_instruction_set(tmp_path):
    run, people = annotated_run(tmp_path / "run", range(120))
    with RunDir.open(run) as opened, opened.store.transaction():
        opened.store.write(
            "UPDATE scores SET value = NULL, unscored = 'cut off' WHERE name = 'veq' AND work_id LIKE 'a%'"
        )
    least = {name: value for name, value in SETS["default"].items() if name != "GLIBC_TUNABLES"}
    printed, controls = [], []
    for settings in ({}, environment(least)):
        folder = tmp_path / str(len(printed))
        folder.mkdir()
        command = [sys.executable, "-c", CODE, str(run), str(people)]
        done = subprocess.run(command, cwd=folder, env=settings or None, check=True, capture_output=True, text=True)
        printed.append(done.stdout)
        controls.append(done.stderr.splitlines()[0])
    if controls[0] == controls[1]:
        pytest.skip("this CPU has one instruction set")
    assert printed[0] == printed[1]
