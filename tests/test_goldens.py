"""Results that no refactoring may change, in tests/data/goldens: work ids and seeds of shipped configs and of
all families, and what the commands print for the run of an earlier release in tests/data/earlier_run.

`UPDATE_GOLDENS=1 pytest tests/test_goldens.py` writes them again: only for a change that is meant to change a result.
"""

import json
import os
import shutil
from collections import defaultdict
from pathlib import Path

import pytest

from local_bench.cli.main import main
from local_bench.core.files import configs_dir
from local_bench.core.types import digest
from local_bench.models.cards import cards
from local_bench.runs.config import RunConfig, load_config
from local_bench.runs.plan import make_plan

ROOT = Path(__file__).resolve().parent
GOLDENS = ROOT / "data" / "goldens"
PLANS = {
    "demo": load_config(configs_dir() / "runs" / "demo.yaml"),
    "studio": load_config(configs_dir() / "runs" / "studio.yaml"),
    "families": RunConfig(
        name="families",
        suite={"name": "studio", "limit": 4},
        models=[{"card": c.name} for _, c in sorted(cards().items()) if c.source.random and c.role == "generator"],
        metrics=[],
    ),
}
PRINTED = {
    "digest": ["digest", "RUN", "--json"],
    "settle": ["settle", "RUN", "--json"],
    "settle-loose": ["settle", "RUN", "--json", "--set", "acceptance.brf=3"],
    "compare": ["compare", "RUN", "RUN", "--json"],
    "servimage-table-2": ["reproduce", "servimage", "table-2", "RUN", "--json"],
    "servimage-table-3": ["reproduce", "servimage", "table-3", "RUN", "--json"],
}


def same(name, found):
    path = GOLDENS / f"{name}.json"
    if os.environ.get("UPDATE_GOLDENS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    assert found == json.loads(path.read_text())


@pytest.mark.parametrize("name", PLANS)
def test_work_ids_and_seeds(name):
    rows = defaultdict(list)
    for row in make_plan(PLANS[name], files=False).candidates:
        rows[row.model].append([row.work_id, row.seed])
    same(f"plan-{name}", {model: [len(of), of[0], digest(of)] for model, of in rows.items()})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return shutil.copytree(ROOT / "data" / "earlier_run", tmp_path_factory.mktemp("earlier") / "run")


@pytest.mark.parametrize("name", PRINTED)
def test_what_is_printed_of_an_earlier_run(name, run, capsys):
    assert main([str(run) if part == "RUN" else part for part in PRINTED[name]]) == 0
    same(name, json.loads(capsys.readouterr().out.replace(str(run), "RUN")))


def test_exports_of_an_earlier_run(run):
    assert main(["report", str(run)]) == 0
    folder = run / "exports"
    same("exports", {path.name: path.read_text() for path in sorted(folder.glob("*.csv"))})
