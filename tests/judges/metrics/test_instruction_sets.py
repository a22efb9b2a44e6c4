"""The tests marked `every_cpu` again, in processes that may not use some of this CPU's instructions.

The variables are read when a library is loaded, so each set is a fresh process. What they are:
scripts/instruction_sets.py.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.instruction_sets import SETS, environment, sets_here

ROOT = Path(__file__).parents[3]
FILES = [
    f"tests/{name}"
    for name in (
        *("judges/metrics/test_pixels.py", "judges/metrics/test_pyiqa.py", "core/test_identity.py"),
        "judges/test_mini_judge.py",
    )
]


@pytest.mark.parametrize("name", SETS)
def test_golden_values_hold_under_other_instruction_sets(name):
    if name not in sets_here():
        pytest.skip(f"this CPU has no more than {name}")
    code = "import sys, pytest, torch; print(torch.backends.cpu.get_cpu_capability(), flush=True)\n"
    code += "sys.exit(pytest.main(sys.argv[1:]))"
    tests = [sys.executable, "-c", code, "-p", "no:cacheprovider", "-m", "every_cpu", *FILES]
    variables = environment(SETS[name]) | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        tests, check=False, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
    assert done.stdout.splitlines()[0] == name.upper()  # the control: it is another set
