"""Shards of a run, and runs of other models, merge into a run equal to that of one machine."""

import itertools
import json
import os
import shutil
from functools import partial
from pathlib import Path

import pytest

from local_bench.annotation.database import merge_annotations
from local_bench.annotation.serve import lock_annotations
from local_bench.cli.main import main
from local_bench.cli.options import run_dirs
from local_bench.core.errors import ConfigError, LedgerError, UserError
from local_bench.runs import merge as merging
from local_bench.runs import rundir
from local_bench.runs.config import parse_shard
from local_bench.runs.plan import in_shard
from local_bench.runs.rundir import RunDir, read_run_config, take_lock
from local_bench.runs.store.contents import contents, record, recorded, root, start_recording
from local_bench.runs.verify import verify
from tests.stages import run_stages

from .test_growth import STAGES, config_of, folder, results  # noqa: F401

merge = partial(merging.merge, merge_annotations=merge_annotations)
ALL = {"beta", "tasks", "entropy", "attempts alpha"}


def run_shard(folder, path, shard, **changes):  # noqa: F811
    config = config_of(folder, ALL)
    suite = config.suite.model_copy(update={"shard": shard})
    run_stages(config.model_copy(update={"suite": suite} | changes), path, STAGES)
    return path


@pytest.fixture(scope="module")
def parts(folder, tmp_path_factory):  # noqa: F811
    path = tmp_path_factory.mktemp("shards")
    shards = [run_shard(folder, path / f"part-{i}", f"{i}/3") for i in (1, 2, 3)]
    return run_shard(folder, path / "complete", None), shards


def test_shards_merge_into_the_complete_run_in_any_order_and_it_continues(parts, folder, tmp_path):  # noqa: F811
    complete, shards = parts
    expected = results(complete)
    for i, order in enumerate((shards, shards[::-1], [shards[1], shards[2], shards[0]])):
        merge(tmp_path / f"merged-{i}", order)
        assert results(tmp_path / f"merged-{i}") == expected
    with RunDir.open(tmp_path / "merged-0") as run, RunDir.open(complete) as other:
        assert verify(run) == []
        assert root(run.store) == root(other.store)
        assert run.config == other.config
    assert held_ns(tmp_path / "merged-0") == sum(map(held_ns, shards))
    run_stages(config_of(folder, ALL), tmp_path / "merged-0", STAGES)
    assert results(tmp_path / "merged-0") == expected


def held_ns(path):
    with RunDir.open(path) as run:
        return sum(session.held_ns for session in run.store.sessions())


def test_merging_again_changes_nothing_and_parts_are_unchanged(parts, tmp_path):
    _, shards = parts
    before = [(path / "ledger.sqlite").read_bytes() for path in shards]
    out = tmp_path / "merged"
    merge(out, shards)
    with RunDir.open(out) as run:
        first = contents(run.store)
    for again in (shards, shards[:1]):
        merge(out, again)
        with RunDir.open(out) as run:
            assert contents(run.store) == first
            assert verify(run) == []
    for parts_and_out in ([*shards], [shards[0], *shards]):  # the result's folder was forgotten
        with pytest.raises(UserError, match="part-1 is one of the parts, which are not changed: give a new folder"):
            merge(shards[0], parts_and_out[1:])
    inside = shutil.copytree(shards[0], out / "inside")  # it would be removed with the run that is replaced
    for result, of_runs in ((out, [inside]), (shards[0] / "merged", shards), (shards[0] / "a" / "b", shards)):
        with pytest.raises(UserError, match=r"is inside the other: give a folder outside of the parts"):
            merge(result, of_runs)
    assert (inside / "ledger.sqlite").exists()
    assert [(path / "ledger.sqlite").read_bytes() for path in shards] == before
    assert not list(tmp_path.glob(".*"))


def test_no_run_is_replaced_or_read_while_another_process_writes_it(parts, tmp_path, capsys):
    _, shards = parts
    out = tmp_path / "merged"
    merge(out, shards)
    with RunDir.begin(out, read_run_config(out)), pytest.raises(LedgerError, match="another local-bench process"):
        merge(out, shards)
    with lock_annotations(out):  # a server whose answers would be stored in the run that is replaced
        assert main(["merge", str(out), str(shards[0])]) == 1
    assert "an annotation server is running for" in capsys.readouterr().err

    for written in (tmp_path / "second", out):
        part = shutil.copytree(shards[2], tmp_path / f"part-of-{written.name}")

        def meanwhile(*_, part=part):
            with RunDir.begin(part, read_run_config(part)) as run:
                run.store.set_meta("judged", "meanwhile")

        with pytest.raises(LedgerError, match=f"{part} was written during the merge: wait for its command"):
            merging.merge(written, [*shards[:2], part], merge_annotations=meanwhile)
    assert not (tmp_path / "second").exists()
    assert not list(tmp_path.glob(".*"))
    with RunDir.open(out) as run:
        assert verify(run) == []


def test_a_merge_keeps_what_the_replaced_run_has_besides_its_results(parts, tmp_path, monkeypatch):
    _, shards = parts
    out = tmp_path / "merged"
    merge(out, shards)
    theirs = {out / name: name.encode() for name in ("note.md", "report/theirs.html", "logs/a/b.log", "run.yaml.bak")}
    for path, content in theirs.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    side = out / "ledger.sqlite-wal"  # it would be applied to the new ledger
    backup = out / "ledger.backup.sqlite"  # of the replaced ledger: `recover` would lose the added part
    backup.touch()
    with monkeypatch.context() as patched:
        patched.setattr(merging, "verify", lambda run: side.touch() or [])
        merge(out, shards[:1])
    assert {path: path.read_bytes() for path in theirs} == theirs
    assert not side.exists()
    assert not backup.exists()
    rename = Path.rename

    def killed(path, target):
        if path.name == "theirs.html":
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            merge(out, shards[:1])
    merge(out, shards[:1])
    assert {path: path.read_bytes() for path in theirs} == theirs
    assert not list(tmp_path.glob(".*"))
    with RunDir.open(out) as run:
        assert verify(run) == []


def test_of_two_merges_into_one_folder_the_second_is_refused(parts, tmp_path, capsys, monkeypatch):
    complete, shards = parts
    out = tmp_path / "merged"
    arguments = ["merge", str(out), str(complete)]

    def during(*_):  # the first merge
        assert main(arguments) == expected
        said.append(capsys.readouterr().err)

    said, expected = [], 0
    with pytest.raises(UserError, match=f"another process has written {out} meanwhile: merge again, or give a new"):
        merging.merge(out, shards, merge_annotations=during)
    assert results(out) == results(complete)
    expected = 1  # now there is a run, which is locked
    merging.merge(out, shards, merge_annotations=during)
    assert f"another local-bench process is writing {out}: wait for it" in said[-1]

    flock = rundir.fcntl.flock

    def replaced(handle, flags):  # between the opening of the lock and the lock
        monkeypatch.setattr(rundir.fcntl, "flock", flock)
        merge(out, [complete])
        flock(handle, flags)

    with monkeypatch.context() as patched:
        patched.setattr(rundir.fcntl, "flock", replaced)
        with pytest.raises(LedgerError, match="another local-bench process is writing"):
            take_lock(out)

    with lock_annotations(out):
        assert main(arguments) == 1
    assert "or a merge into it" in capsys.readouterr().err
    former = tmp_path / ".merged.former"
    out.rename(former)  # another process is between its two steps
    lock = take_lock(former)
    with pytest.raises(LedgerError, match=f"another process replaces {out}: wait for it, then merge again"):
        merge(out, shards)
    os.close(lock)
    assert not out.exists()
    merge(out, shards)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("killed_at", [1, 2], ids=["the earlier run is away", "the new run is in place"])
def test_a_merge_that_is_killed_while_it_replaces_a_run_loses_nothing(parts, tmp_path, monkeypatch, killed_at):
    complete, shards = parts
    out = tmp_path / "merged"
    merge(out, shards)
    rename, renamed = Path.rename, []

    def killed(path, target):
        moved = rename(path, target)
        renamed.append(path)
        if len(renamed) == killed_at:
            raise KeyboardInterrupt
        return moved

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", killed)
        patched.setattr(merging, "_end_replacement", lambda _: None)
        with pytest.raises(KeyboardInterrupt):
            merge(out, shards[:1])
    assert run_dirs(tmp_path) == [out][: killed_at - 1]  # the run that is kept meanwhile is not one of the lab's
    merge(out, shards[:1])  # the same command again
    assert results(out) == results(complete)
    merge(out, shards[1:2])
    assert not list(tmp_path.glob(".*"))
    with RunDir.open(out) as run:
        assert verify(run) == []


def test_runs_of_other_models_merge(folder, tmp_path):  # noqa: F811
    config = config_of(folder, {"beta", "gamma", "tasks"})
    for name, models in (("a", config.models[:1]), ("b", config.models[1:])):
        run_stages(config.model_copy(update={"models": models}), tmp_path / name, STAGES)
    merge(tmp_path / "merged", [tmp_path / "b", tmp_path / "a"])
    run_stages(config, tmp_path / "complete", STAGES)
    assert results(tmp_path / "merged") == results(tmp_path / "complete")


def test_incompatible_runs_are_refused_and_nothing_is_written(parts, folder, tmp_path):  # noqa: F811
    _, shards = parts
    out = tmp_path / "merged"

    def refused(paths, sentence, error=UserError):
        with pytest.raises(error, match=sentence):
            merge(out, paths)
        assert not out.exists()
        assert not list(tmp_path.glob(".*"))

    refused(shards[:2], "shard 3/3 is missing")
    assert merge(tmp_path / "partial", shards[:2], partial=True).missing_shards == ("3/3",)
    other = run_shard(folder, tmp_path / "seed", "3/3", seed=1)
    refused([*shards[:2], other], r"different configs \(seed: ", ConfigError)
    fourth = run_shard(folder, tmp_path / "fourth", "1/4")
    refused([*shards, fourth], "shards of different numbers")
    altered = shutil.copytree(shards[0], tmp_path / "altered")
    with RunDir.begin(altered, read_run_config(altered)) as run:
        run.store.write("UPDATE scores SET value = value + 1")
    refused([altered, *shards[1:]], "scores of task .* was changed since it was recorded")
    killed = shutil.copytree(shards[0], tmp_path / "killed")
    with RunDir.begin(killed, read_run_config(killed)) as run:
        start_recording(run.store)
        (run.path / "images" / f"{'0' * 64}.png").touch()  # its row was not committed
    refused([killed, *shards[1:]], "has no record of its contents: continue its last command, which did not finish")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(UserError, match="is not empty and not a run directory"):
        merge(tmp_path / "full", shards)


def test_different_bytes_of_one_image_are_refused(parts, tmp_path):
    """Two runs that generated the same image on machines with different bytes."""
    complete, shards = parts
    other = shutil.copytree(complete, tmp_path / "other")
    with RunDir.begin(other, read_run_config(other)) as run:
        first = run.store.candidates()[0]
        change = "state = 'unscored', unscored = 'x', pixels_sha256 = NULL, identity = NULL"
        run.store.write(f"UPDATE candidates SET {change} WHERE work_id = ?", first.work_id)
        run.store.write("DELETE FROM scores")
        run.store.write("DELETE FROM decisions")
        record(run.store, {name: sha for (kind, name), sha in recorded(run.store).items() if kind == "file"})
        path = run.image_store.file(first.pixels_sha256)
        if first.pixels_sha256 not in {row.pixels_sha256 for row in run.store.candidates() if row.image}:
            path.unlink()
    with pytest.raises(UserError, match="has other bytes than in another part"):
        merge(tmp_path / "merged", [other, *shards])


def test_shards_partition_the_tasks_by_their_ids():
    ids = [f"task-{i}" for i in range(300)]
    for n in (1, 2, 7):
        members = [[task for task in ids if in_shard(task, f"{i}/{n}")] for i in range(1, n + 1)]
        assert sorted(itertools.chain.from_iterable(members)) == sorted(ids)
        assert min(map(len, members)) > 300 / n / 2
    assert parse_shard("2/4") == (2, 4)
    for text in ("0/2", "3/2", "1", "a/b", "1/2/3", "-1/2"):
        with pytest.raises(ValueError, match="such as 2/4"):
            parse_shard(text)


def test_the_command(parts, tmp_path, cli):
    _, shards = parts
    ended = cli("merge", tmp_path / "out", *shards, "--json")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["n_tasks"] == 3
    ended = cli("merge", tmp_path / "out-2", shards[0])
    assert (ended.returncode, "shard 2/3, 3/3 is missing" in ended.stderr) == (2, True)
    assert not (tmp_path / "out-2").exists()
