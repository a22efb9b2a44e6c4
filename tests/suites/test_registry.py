"""A package's benchmark that cannot be loaded is named, and stops no command of another benchmark."""

import pytest

from local_bench.core.errors import ConfigError
from local_bench.suites.registry import PLUGINS, all_suites, suite

GOOD = "from local_bench.suites.studio.suite import Studio\nclass Lab(Studio):\n"
GOOD += "    name, title, layout, paper = 'lab', 'our own', None, 'lab_suite:TABLES'\nclass Half:\n    pass\n"


@pytest.fixture(autouse=True)
def packages(tmp_path, monkeypatch):
    about = tmp_path / "site" / "lab_suites-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: lab-suites\nVersion: 1.0\n")
    where = {"lab": "lab_suite:Lab", "gone": "no_such:Suite", "half": "lab_suite:Half", "odd": "lab_suite:Other"}
    points = "".join(f"{name} = {place}\n" for name, place in where.items())
    (about / "entry_points.txt").write_text(f"[{PLUGINS}]\n{points}")
    (about.parent / "lab_suite.py").write_text(GOOD)
    monkeypatch.syspath_prepend(str(about.parent))


def test_the_others_are_loaded_and_the_faults_named():
    faults = []
    assert [entry.name for entry in all_suites(faults.append)][-1] == "lab"
    assert len(faults) == 3
    for name in ("gone", "half", "odd"):
        with pytest.raises(ConfigError, match="correct or remove that package") as refused:
            suite(name)
        assert str(refused.value) in faults


def test_commands_of_other_benchmarks_go_on(cli, tmp_path):
    listed = cli("suites", "list")
    assert listed.returncode == 1
    assert "our own" in listed.stdout
    assert listed.stderr.count("correct or remove that package") == 3
    (tmp_path / "eval_result.txt").write_text("id0#;#Text2Image#;#{}\n")
    assert cli("score", "ice-bench", "eval_result.txt").returncode == 0
    for command, sentence in (
        (("score", "gone", "x"), "suite.name: 'gone' cannot be loaded"),
        (("score", "lab", "x"), "suite 'lab' has no official result files"),
        (("reproduce", "lab"), "the tables of lab cannot be loaded from lab_suite:TABLES"),
        (("reproduce", "odd"), "suite.name: 'odd' cannot be loaded"),
    ):
        refused = cli(*command)
        assert refused.returncode == 2
        assert sentence in refused.stderr
    assert cli("reproduce", "servimage").returncode == 0
