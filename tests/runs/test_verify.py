"""`verify` reports any single change of a run, and reports nothing for an unchanged run."""

import hashlib
import json
import re
import shutil

import pytest

from local_bench.runs.progress import Quiet
from local_bench.runs.rundir import RunDir, read_run_config
from local_bench.runs.store.contents import merkle_root, root, start_recording
from local_bench.runs.verify import repeat_tasks, verify
from tests.stages import run_stages

from . import mutations
from .test_earlier_release import EARLIER_RUN
from .test_growth import STAGES, config_of, folder  # noqa: F401


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run of an earlier release, settled by this one, which records its contents."""
    path = tmp_path_factory.mktemp("verify") / "run"
    shutil.copytree(EARLIER_RUN, path)
    run_stages(read_run_config(path), path, ("settle",))
    return path


@pytest.fixture
def path(recorded, tmp_path):
    """A copy that may change."""
    return shutil.copytree(recorded, tmp_path / "run")


def findings(path):
    with RunDir.open(path) as run:
        return verify(run)


@pytest.mark.parametrize("name", mutations.MUTATIONS)
def test_a_single_change_is_reported(recorded, tmp_path, name):
    is_reported, all_findings = mutations.reported(name, recorded, tmp_path)
    assert is_reported, all_findings


def test_a_run_without_a_record_is_reported_until_it_is_settled(recorded, path, tmp_path):
    """One of an earlier release, and one whose last command was killed."""
    assert findings(recorded) == []
    assert [finding.check for finding in findings(shutil.copytree(EARLIER_RUN, tmp_path / "earlier"))] == ["record"]
    config = read_run_config(path)
    with RunDir.begin(path, config) as run:
        start_recording(run.store)
    assert [finding.subject for finding in findings(path)] == ["ledger.sqlite"]
    run_stages(config, path, ("settle",))
    assert findings(path) == []


def test_a_judge_without_a_card_on_this_machine_is_named_with_what_to_do(path, monkeypatch):
    monkeypatch.setattr("local_bench.runs.verify.cards", dict)
    (finding,) = findings(path)
    assert re.search(r"cannot be checked: there is no card '.*': give the folder .* as --config-dir", str(finding))


def test_the_root_depends_only_on_results(path):
    with RunDir.begin(path, read_run_config(path)) as run:
        before = root(run.store)
        run.store.write("UPDATE meter SET t1_ns = t1_ns + 1")
        run.store.write("UPDATE verdicts SET raw = raw || ' '")
        assert root(run.store) == before
        run.store.write("UPDATE scores SET value = value + 0.5 WHERE name = 'brf' AND value = 5")
        assert root(run.store) != before


def test_the_tree_is_that_of_rfc_6962():
    leaves = [bytes([i]) * 4 for i in range(7)]

    def tree(of):
        if len(of) == 1:
            return hashlib.sha256(b"\0" + of[0]).digest()
        k = 1 << (len(of) - 1).bit_length() - 1
        return hashlib.sha256(b"\1" + tree(of[:k]) + tree(of[k:])).digest()

    for n in range(1, 8):
        assert merkle_root(leaves[:n]) == tree(leaves[:n])
    assert merkle_root([]) == hashlib.sha256().digest()


def test_the_command_lists_findings_and_exits_with_1(recorded, cli):
    clean = cli("verify", recorded, "--json")
    assert clean.returncode == 0, clean.stderr
    answer = json.loads(clean.stdout)
    assert answer["ok"]
    assert answer["root"] == json.loads(cli("digest", recorded, "--json").stdout)["root"]


@pytest.mark.parametrize("name", ["change a score", "change a verdict", "change a meter row"])
def test_a_manual_change_is_also_reported_after_a_later_command(path, cli, name):
    mutations.MUTATIONS[name][0](path)
    ended = cli("verify", path)
    assert ended.returncode == 1
    assert ("does not follow from the verdicts" in ended.stdout) == (name != "change a meter row")
    assert cli("settle", path, "--save").returncode == 0
    ended = cli("verify", path)
    assert ended.returncode == 1
    assert "was changed since it was recorded" in ended.stdout


def test_deep_generates_again_and_compares(folder, tmp_path):  # noqa: F811
    config = config_of(folder, {"tasks", "entropy"})
    run_stages(config, tmp_path / "run", STAGES)
    with RunDir.open(tmp_path / "run") as run:
        assert repeat_tasks(run, config, 2, Quiet()) == []
        assert repeat_tasks(run, config, 99, Quiet()) == []
    with RunDir.begin(tmp_path / "run", config) as run:
        run.store.write("UPDATE scores SET value = value + 1")
        assert {finding.fault for finding in repeat_tasks(run, config, 99, Quiet())} == {
            "has another value when it is measured again"
        }
