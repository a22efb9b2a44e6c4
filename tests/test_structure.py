"""Structure of the package: file lengths, banned constructs, import rules and cycles."""

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from graphlib import TopologicalSorter

import grimp
import pytest

from .conftest import ROOT

SOURCES = sorted((ROOT / "local_bench").rglob("*.py"))


def test_no_file_is_longer_than_800_lines():
    assert not [str(p) for p in SOURCES if len(p.read_text().splitlines()) > 800]


def test_no_package_is_larger_than_its_budget():
    """A feature that needs more lines takes them from another one (CONTRIBUTING.md)."""
    budgets = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["local-bench"]["lines"]
    package, lines = ROOT / "local_bench", Counter()
    for path in package.rglob("*"):
        if path.suffix in (".py", ".js", ".css", ".j2", ".html"):
            inside = path.relative_to(package).parts
            lines[inside[0] if len(inside) > 1 else "root"] += len(path.read_text().splitlines())
    assert set(lines) == set(budgets)
    assert {name: n for name, n in lines.items() if n > budgets[name]} == {}


def test_a_module_with_one_importer_in_its_package_is_large():
    """Below 80 lines it is part of what imports it."""
    graph = grimp.build_graph("local_bench", cache_dir=None)
    small = set()
    for path in SOURCES:
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if path.name == "__init__.py" or len(path.read_text().splitlines()) >= 80:
            continue
        importers = graph.find_modules_that_directly_import(name)
        if len(importers) == 1 and importers.copy().pop().split(".")[1] == name.split(".")[1]:
            small.add(name)
    assert small == set()


def test_no_two_columns_of_a_table_have_one_heading():
    """The ends of intervals excepted, which belong to the column before."""
    twice = set()
    for path in (path for path in SOURCES if {"report", "suites"} & set(path.parts)):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Tuple | ast.List):
                heads = Counter(filter(None, map(_heading, ast.walk(node))))
                twice |= {(path.name, *head) for head, n in heads.items() if n > 1}
    # of the counts and the fractions a table has either (`settlement_table`, `paper_table`)
    assert twice == {("settlement.py", "", f"'{what} accepted'") for what in ("tasks", "images")}


def _heading(node):
    """(group, name) of a column's declaration."""
    if not isinstance(node, ast.Call) or ast.unparse(node.func) not in ("Column", "dollars", "_usd"):
        return None
    more = {one.arg: ast.unparse(one.value) for one in node.keywords}
    _, name, *rest = map(ast.unparse, node.args) if len(node.args) > 1 else ("", more.get("name", ""))
    return None if "below" in more else (more.get("group", rest[1] if len(rest) > 1 else ""), name)


def test_no_benchmark_is_named_outside_its_package():
    """In code: neither imported, nor a string. Sentences and options of commands cite the papers; their tables are made
    from runs, in a package of their own."""
    suites = ROOT / "local_bench" / "suites"
    packages = {path.parent.name for path in suites.glob("*/__init__.py")}
    names = packages | {package.replace("_", "-") for package in packages}
    by_path = re.compile(rf"local_bench\.suites\.({'|'.join(packages)})\b")
    apart = {*(suites / package for package in packages), ROOT / "local_bench" / "report" / "papers"}
    places = set()
    for path in (path for path in SOURCES if not apart & {*path.parents}):
        texts = [text for text in strings(path) if text in names or by_path.match(text)]
        nodes = ast.walk(ast.parse(path.read_text()))
        texts += [
            node.module for node in nodes if isinstance(node, ast.ImportFrom) and by_path.match(node.module or "")
        ]
        places |= {str(path.relative_to(ROOT / "local_bench"))} if texts else set()
    assert places == {
        "suites/registry.py",
        "suites/published.py",  # the API prices that a settlement is compared with
        "runs/config.py",  # the default of `suite.name`
        # the kind of predictor that is ServImageModel, and the training data ServImage_Dataset
        *("cli/predictor.py", "judges/payment/artefact.py", "runs/payment.py"),
        *(f"analysis/predictors/{name}.py" for name in ("card", "images", "predictions")),
    }


def test_the_store_is_no_chain_of_classes():
    classes = [
        node
        for path in (ROOT / "local_bench" / "runs" / "store").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    ]
    names = {node.name for node in classes}
    assert not [node.name for node in classes for base in node.bases if ast.unparse(base) in names]


@pytest.mark.parametrize(
    "banned",
    [
        *(r"pickle\.load", r"weights_only=False", r"trust_remote_code=True", r"shell=True", r"(?<![.\w])eval\("),
        *(r"0\.0\.0\.0", r"\| *safe\b"),
    ],
)
def test_banned_constructs_do_not_occur(banned):
    texts = [*SOURCES, *(ROOT / "local_bench").rglob("*.j2")]
    assert not [str(p) for p in texts if re.search(banned, p.read_text())]


READING = {
    "all",
    "any",
    "bool",
    "isinstance",
    "isnan",
    "flatnonzero",
    "len",
    "max",
    "min",
    "numel",
    "set",
    "sum",
    "tuple",
}
READING |= {"candidates", "is_relative_to", "is_scene", "lower", "tolist", "values"}


def test_an_assertion_only_reads():
    """`python -O` does not execute them: call first, then assert the result."""
    asserted = [n for p in SOURCES for n in ast.walk(ast.parse(p.read_text())) if isinstance(n, ast.Assert)]
    calls = [n.func for assertion in asserted for n in ast.walk(assertion.test) if isinstance(n, ast.Call)]
    assert {call.id if isinstance(call, ast.Name) else call.attr for call in calls} <= READING


def test_import_rules():
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout
    assert "0 broken" in ended.stdout


def test_no_import_cycle():
    """Imports inside functions and for types alone included."""
    graph = grimp.build_graph("local_bench", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    # A package whose __init__ is empty (or imports lazily) runs no code of the modules in it.
    silent = {module for module in graph.modules if graph.find_children(module)}
    assert len(imports) > 200
    TopologicalSorter({m: of - silent for m, of in imports.items() if m not in silent}).prepare()  # else a CycleError


SQL = re.compile(r"\b(SELECT .+ FROM|INSERT (OR \w+ )?INTO|UPDATE \w+ SET|DELETE FROM|CREATE TABLE)\b", re.S)


def test_sql_is_in_the_store_alone():
    """The cache of features and the annotations are databases of their own."""
    places = [p.relative_to(ROOT / "local_bench") for p in SOURCES if any(map(SQL.search, strings(p)))]
    assert {str(p) for p in places if p.parts[:2] != ("runs", "store")} == {
        "judges/metrics/evaluator.py",
        "annotation/database.py",
    }


def test_sql_has_no_numbered_placeholders():
    """Python 3.12.0 to 3.12.3 warn of them."""
    assert not [str(p) for p in SOURCES if any(SQL.search(s) and re.search(r"\?[0-9]", s) for s in strings(p))]


def strings(path):
    tree = ast.parse(path.read_text())
    return [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def test_the_locks_name_no_host_and_hash_everything():
    for kind in ("cpu", "cuda"):
        text = (ROOT / "requirements" / f"{kind}.lock").read_text()
        assert "://" not in text
        pins = re.findall(r"^[a-z0-9._-]+(?:\[[a-z,]+\])?==", text, re.M)
        assert len(pins) > 100
        assert text.count("--hash=sha256:") >= len(pins)


@pytest.mark.xdist_group("together")
def test_groups_reach_the_scheduler(request):
    """Else every worker starts the judge's servers and makes every module's fixtures, and nothing says so."""
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("tests do not run side by side here")
    assert request.node.nodeid.endswith("@together")
