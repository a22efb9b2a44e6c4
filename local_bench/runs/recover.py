"""Restores a run's damaged store from its backup; the damaged file is kept under another name."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from local_bench.core.errors import LedgerDamaged, LedgerError, UserError
from local_bench.core.files import put_in_place, storage_errors
from local_bench.runs.rundir import read_run_config, take_lock
from local_bench.runs.store import LEDGER, Committed, Store, backups, free_name

_SIDE_FILES = ("-journal", "-wal", "-shm")
"""Suffixes of SQLite's side files; applied to another database of the same name they would corrupt it."""


@dataclass(frozen=True)
class Recovered:
    """What was restored."""

    backup: Path
    damage: str
    """A description of the damage."""
    kept: Path | None
    """Where the damaged file is now; None if there was none."""
    committed: Committed
    n_candidates: int


def recover(path: Path) -> Recovered:
    """Replace the damaged store of the run at `path` by its latest usable backup, atomically.

    UserError if there is no run or its store is intact; LedgerError if another process has the run open, the store was
    written by another release, or no backup is usable; StorageError if a write fails. If killed, it can be repeated;
    until the backup is in place every command refuses the run.
    """
    read_run_config(path)
    lock = take_lock(path)
    try:
        store = path / LEDGER
        damage = _damage(store)
        backup, restored = _usable(path)
        with storage_errors(store):
            scratch = path / f".{LEDGER}.writing"
            shutil.copyfile(backup, scratch)
            kept = _move_away(store)
        put_in_place(scratch, store)
        return Recovered(backup, damage, kept, *restored)
    finally:
        os.close(lock)


def _damage(store: Path) -> str:
    try:
        intact = Store(store)
    except LedgerDamaged as e:
        return str(e).partition(": ")[0]
    done = intact.committed()
    intact.close()
    raise UserError(
        f"{store} is intact ({done.candidates:,} finished candidates, {done.verdicts:,} verdicts): there is nothing to "
        "recover"
    )


def _usable(path: Path) -> tuple[Path, tuple[Committed, int]]:
    """The latest intact backup, its finished work and its number of candidates."""
    faults = []
    for backup in backups(path):
        try:
            store = Store(backup)
        except LedgerError as e:
            faults.append(str(e).partition(": ")[0])
            continue
        try:
            total = store.counts().candidates
            return backup, (store.committed(), total)
        finally:
            store.close()
    reason = "; ".join(faults) or "there is none"
    raise LedgerError(
        f"{path} has no usable backup of its ledger ({reason}): restore {LEDGER} from your own copy, or move the "
        "folder away and run the same command again to start over"
    )


def _move_away(store: Path) -> Path | None:
    """Rename the damaged store and its side files, the side files first."""
    target = free_name(store.parent, "ledger.damaged.{}.sqlite")
    for suffix in _SIDE_FILES:
        side = store.with_name(store.name + suffix)
        if side.exists():
            side.rename(target.with_name(target.name + suffix))
    if not store.exists():
        return None
    store.rename(target)
    return target
