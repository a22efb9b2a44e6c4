"""Code that branches on the device is listed in `docs/gpu-check.md`, with the test that runs it on a CPU."""

import ast
import re
from pathlib import Path

import local_bench

PACKAGE = Path(local_bench.__file__).parent
ROOT = PACKAGE.parent
BRANCH = re.compile(
    r'(type|device|name) (==|!=) "(cuda|cpu)"|startswith\("cuda|\b(if|not|and|or) ([\w.]+\.)?on_gpu\b|'
    r"\bgpu is (not )?None|cuda_index is |cuda\.is_available\(\)|get_device_capability"
)
DECIDES_NOTHING = {
    *("cli.doctor._devices", "cli.doctor._packages", "runs.estimate._basis", "runs.estimate._judge_s"),  # show
    *("report.sections._generation", "cli.run.plan", "runs.roofline.peak_flop_per_s", "runs.estimate.metric_time"),
    *("runs.estimate.budget", "generators.numerics.device_name", "runs.judge_factory.JudgeDevice.of"),  # read
    *("runs.timing._Clock.lap", "runs.executors.ray_cluster._Actor.facts", "runs.executors.ray_cluster.RayWorker.work"),
    *("runs.executors.ray_executor.RayExecutor.start", "runs.judge_factory.JudgeDevice.on_gpu", "runs.prices.price_of"),
}


def functions(file: Path) -> dict[str, list[str]]:
    """The code lines of each function of a module, by its dotted name; those of nested ones are its own."""
    source = file.read_text()
    lines = source.splitlines()
    module = ".".join(file.relative_to(PACKAGE).with_suffix("").parts)
    found = {}

    def walk(node: ast.AST, path: tuple[str, ...], *, inside: bool) -> None:
        for part in ast.iter_child_nodes(node):
            if isinstance(part, ast.ClassDef):
                walk(part, (*path, part.name), inside=inside)
            elif isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) and not inside:
                docstring = ast.get_docstring(part) is not None
                first = part.body[1 if docstring and len(part.body) > 1 else 0].lineno
                found[".".join((module, *path, part.name))] = lines[first - 1 : part.end_lineno]
                walk(part, (*path, part.name), inside=True)

    walk(ast.parse(source), (), inside=False)
    return found


def branching() -> set[str]:
    names = set()
    for file in sorted(PACKAGE.rglob("*.py")):
        if "gpu_check" not in file.parts:
            for name, lines in functions(file).items():
                if any(BRANCH.search(line.split("  #")[0]) for line in lines):
                    names.add(name)
    return names


def rows() -> list[list[str]]:
    text = (ROOT / "docs" / "gpu-check.md").read_text().partition("## What differs on a GPU")[2]
    return [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ") and "`" in line]


def test_every_branch_on_the_device_has_a_row():
    listed = {name for row in rows() for name in re.findall(r"`([\w.]+)`", row[3])}
    assert branching() - listed - DECIDES_NOTHING == set()
    known = {name for file in PACKAGE.rglob("*.py") for name in functions(file)}
    assert listed | DECIDES_NOTHING <= known  # no row of code that is gone


def test_every_row_has_tests_that_exist():
    source = "\n".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    for row in rows():
        tests = re.findall(r"`([\w.]+)`", row[4])
        assert tests
        for test in tests:
            assert f"def {test}(" in source or list((ROOT / "tests").rglob(test)), test


def test_a_new_branch_is_found():
    assert BRANCH.search('    return 4 if device.type == "cuda" else 1')
    assert "generators.numerics.compiles" in branching()
