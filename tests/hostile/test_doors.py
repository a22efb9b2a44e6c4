"""Every file, answer and database that may come from someone else is read by one reader of its kind (a door); an AST
shows that no other call exists."""

import ast
from pathlib import Path

from tests.conftest import ROOT

PACKAGE = ROOT / "local_bench"
METHODS = {"read_text", "read_bytes"}
CALLS = {
    *(
        "open",
        "os.open",
        "io.open",
        "json.load",
        "json.loads",
        "sqlite3.connect",
        "Image.open",
        "safe_open",
        "load_file",
    ),
    *("csv.reader", "csv.DictReader", "np.load", "numpy.load", "torch.load", "torch.jit.load", "tomllib.load"),
    *("tarfile.open", "zipfile.ZipFile", "pickle.load", "pickle.loads", "urlopen"),
}
PREFIXES = ("yaml.", "httpx2.", "urllib.request.")
TYPES = ("httpx2.AsyncBaseTransport", "httpx2.Limits")

DOORS = {
    "core/files.py": "bytes and text of files",
    "core/storage.py": "writes",
    "core/scratch.py": "temporary folders, and files of the kernel",
    "core/strictjson.py": "JSON",
    "core/yamlfile.py": "YAML",
    "core/images.py": "images",
    "core/tensors.py": "safetensors",
    "runs/store/database.py": "ledgers",
    "judges/people/database.py": "annotations",
    "judges/vlm/http.py": "answers of servers",
    "models/pull.py": "downloads over https, capped and verified",
    "models/archives.py": "archives: members, sizes and ratios are limited",
}
ALLOWED = {
    ("cli/edge.py", "open"): "the null device in the place of a closed stream",
    ("cli/edge.py", "os.open"): "the null device",
    ("runs/store/schema.py", "sqlite3.connect"): "an empty database in memory",
    ("judges/metrics/feature_cache.py", "sqlite3.connect"): "the user's own cache; a damaged one is discarded",
    ("judges/metrics/feature_cache.py", "json.loads"): "the shape of an entry of the user's own cache",
    ("runs/worker.py", "open"): "a lock among the workers of this run",
    ("runs/rundir.py", "os.open"): "the lock, without following links",
    ("judges/people/serve.py", "os.open"): "the lock, without following links",
    ("runs/executors/ray_cluster.py", "open"): "creates the cluster's token for its owner only",
    ("runs/executors/ray_cluster.py", "os.open"): "creates the cluster's token for its owner only",
    ("runs/executors/ray_actors.py", "read_text"): "a file that this run has just written",
    ("runs/executors/ray_actors.py", "Image.open"): "PNG bytes that the driver encoded",
    ("judges/vlm/engine.py", "Image.open"): "PNG bytes that the parent process encoded",
    ("judges/vlm/engine.py", "json.loads"): "messages of the parent process",
    ("judges/vlm/embedded.py", "json.loads"): "messages of our child process",
    ("judges/vlm/attention.py", "json.loads"): "the output of our child process",
    ("judges/vlm/local.py", "Image.open"): "PNG bytes that this process encoded",
    ("judges/vlm/plugin.py", "Image.open"): "PNG bytes that this process encoded",
    ("judges/vlm/child.py", "open"): "appends to the log of our child process",
    ("judges/vlm/child.py", "read_text"): "the log of our child process",
    ("judges/vlm/client.py", "httpx2.AsyncClient"): "the client whose answers judges/vlm/http.py reads",
    (
        "judges/vlm/server.py",
        "httpx2.get",
    ): "the health of our own server on the loopback interface",
    ("judges/rules.py", "Image.open"): "the header only: hard rules are about the file as it is stored",
    ("judges/people/app.py", "read_bytes"): "files of this package",
    ("judges/people/texts.py", "yaml.safe_load"): "a file of this package",
    ("judges/people/texts.py", "read_text"): "a file of this package",
    ("judges/people/merging.py", "json.loads"): "entries of annotations that were read already",
    ("report/site/build.py", "read_bytes"): "files of this package",
    ("suites/printshop/shop.py", "read_text"): "a file of this package",
    ("models/shipped.py", "read_bytes"): "files of this package, verified by digest",
    ("models/shipped.py", "read_text"): "a file of this package",
    ("generators/arithmetic.py", "json.loads"): "a file of this package and the user's own cache",
    ("generators/arithmetic.py", "read_text"): "a file of this package and the user's own cache",
    ("generators/capacity.py", "read_text"): "files of the kernel",
    ("runs/gpu_check/environment.py", "read_text"): "files of the kernel",
    ("runs/gpu_check/processes.py", "json.loads"): "the output of our child process",
    ("judges/metrics/pyiqa_scope.py", "read_text"): "the source code of an installed library",
    ("models/convert_child.py", "zipfile.ZipFile"): "in a process without network, sizes limited",
    ("models/convert_child.py", "torch.load"): "in a process without network, weights_only=True",
    ("runs/contents.py", "read_bytes"): "digests of configs of this package",
    ("runs/folder.py", "json.loads"): "a value that this process has just written",
    ("runs/measure.py", "json.loads"): "entries of the ledger that are compared as text before",
    ("runs/merge.py", "json.loads"): "entries of ledgers that `verify` has read",
    ("suites/idea_bench/results.py", "csv.reader"): "text that core/files.py has read",
    ("settle/predictors/models.py", "json.loads"): "text that core/files.py has read",
}
"""(module, call) -> why it reads nothing that someone else wrote, or reads it within the same limits."""


def name_of(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return f"{name_of(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ""


def calls(source: str) -> set[str]:
    """The calls of readers in a module, also those through a method of a path."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = name_of(node.func)
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if method in METHODS:
            found.add(method)
        elif name in CALLS or (name.startswith(PREFIXES) and name not in TYPES):
            found.add(name)
        elif method == "open" and (
            any(isinstance(a, ast.Constant) and isinstance(a.value, str) for a in node.args)
            or any(k.arg in ("encoding", "newline") for k in node.keywords)
        ):
            found.add("open")
    return found


def outside(package: Path) -> set[tuple[str, str]]:
    modules = {path.relative_to(package).as_posix(): path for path in package.rglob("*.py")}
    return {
        (module, call)
        for module, path in modules.items()
        if module not in DOORS and not module.startswith("testing/")
        for call in calls(path.read_text())
    }


def test_files_are_read_by_the_readers_only():
    found = outside(PACKAGE)
    assert not sorted(found - ALLOWED.keys())
    assert not sorted(ALLOWED.keys() - found), "no longer needed"


def test_a_planted_call_is_detected(tmp_path):
    for text in (
        "def f(p): return p.read_text()",
        "import json\nx = json.loads('1')",
        "def f(p):\n    with p.open('rb') as file: pass",
        "def f(p): return open(p)",
        "import yaml\nyaml.safe_load('')",
        "import sqlite3\nsqlite3.connect('x')",
        "import httpx2\nhttpx2.get('x')",
        "from PIL import Image\nImage.open('x')",
    ):
        (tmp_path / "module.py").write_text(text)
        assert outside(tmp_path), text
