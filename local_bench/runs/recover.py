"""Restores a run's damaged ledger from its backup; the damaged one is kept under another name."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from local_bench.core.errors import LedgerDamaged, LedgerError, UserError
from local_bench.core.storage import put_in_place, storage_errors
from local_bench.runs.rundir import read_run_config, take_lock
from local_bench.runs.store import LEDGER, Committed, Store, backups, free_name

_SIDE_FILES = ("-journal", "-wal", "-shm")
"""What SQLite writes next to a database; applied to another database of the same name it would destroy it."""


@dataclass(frozen=True)
class Recovered:
    """What was restored."""

    backup: Path
    damage: str
    """The sentence that names the damage."""
    kept: Path | None
    """Where the damaged ledger is now; None where there was none."""
    committed: Committed
    n_candidates: int


def recover(path: Path) -> Recovered:
    """Puts the latest usable backup of the run at `path` in place of its damaged ledger, in one step.

    UserError where there is no run or its ledger is sound; LedgerError where another process holds the run, the ledger
    is of another release, or no backup is usable; StorageError if the disk refuses. Killed at any point it can be
    repeated: until the backup is in place every command refuses the run.
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
        sound = Store(store)
    except LedgerDamaged as e:
        return str(e).partition(": ")[0]
    done = sound.committed()
    sound.close()
    raise UserError(
        f"{store} is sound ({done.candidates:,} finished candidates, {done.verdicts:,} verdicts): there is nothing to "
        "recover"
    )


def _usable(path: Path) -> tuple[Path, tuple[Committed, int]]:
    """The latest backup that is sound, and what it holds: finished work and all candidates."""
    faults = []
    for backup in backups(path):
        try:
            found = Store(backup)
        except LedgerError as e:
            faults.append(str(e).partition(": ")[0])
            continue
        try:
            total = found.counts().candidates
            return backup, (found.committed(), total)
        finally:
            found.close()
    why = "; ".join(faults) or "there is none"
    raise LedgerError(
        f"{path} has no usable backup of its ledger ({why}): restore {LEDGER} from a copy of your own, or move the "
        "folder away and run the same command again to begin anew"
    )


def _move_away(store: Path) -> Path | None:
    """Gives the damaged ledger and its side files another name, the side files first."""
    target = free_name(store.parent, "ledger.damaged.{}.sqlite")
    for suffix in _SIDE_FILES:
        side = store.with_name(store.name + suffix)
        if side.exists():
            side.rename(target.with_name(target.name + suffix))
    if not store.exists():
        return None
    store.rename(target)
    return target
