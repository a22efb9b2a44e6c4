"""The run directory: one writer at a time, and no content that depends on this machine. `recover` restores a damaged
ledger from its backup; the damaged file is kept under another name."""

import fcntl
import json
import os
import shutil
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Self

from local_bench.core.errors import ConfigError, LedgerDamaged, LedgerError, StorageError, UserError
from local_bench.core.files import put_in_place, reason, refuse_links, storage_errors, sweep, text_name, write_atomic
from local_bench.core.yamlfile import yaml_line, yaml_value
from local_bench.runs.config import RunConfig, dump_config, load_config
from local_bench.runs.image_store import INPUTS, ImageStore
from local_bench.runs.store import LEDGER, Committed, Store, backups, free_name
from local_bench.suites.registry import suite, suite_names

LOGS = "logs"


class RunDir:
    """An open run directory, a context manager. `begin` opens it for writing, `open` for reading."""

    def __init__(self, path: Path, config: RunConfig, store: Store, lock: int | None, grows: bool = False) -> None:
        self.path, self.inputs, self.logs = path, path / INPUTS, path / LOGS
        self.grows = grows
        """Whether `config` extends the stored config, so that the plan must be extended."""
        self.config = config
        self.store = store
        self.image_store = ImageStore(path)
        self._lock = lock
        self._being_written = lock is None and in_progress(path)
        if config.suite.name not in suite_names():  # results of a plug-in are also read where it is not installed
            return
        entry = suite(config.suite.name)
        task_id = store.task_of_other(entry.of_tasks, entry.categories)
        if task_id is not None:
            store.close()
            raise ConfigError(
                f"{path}/run.yaml: suite.name is {entry.name!r}, but the run's task {task_id!r} is of another suite: "
                "restore the name"
            )

    @classmethod
    def begin(cls, path: Path, config: RunConfig) -> Self:
        """Create the run at `path`, or open it for writing.

        ConfigError if it is a run with another config, LedgerError if another process is writing it, StorageError if a
        write fails.
        """
        with storage_errors(path):
            if path.exists() and not path.is_dir():
                raise UserError(f"{path} is a file: give a folder for the run")
            path.mkdir(parents=True, exist_ok=True)
            refuse_links(path)
        lock = take_lock(path)
        try:
            begun = (path / "run.yaml").exists()
            if not begun and not all(any(fnmatchcase(p.name, name) for name in _EARLIER) for p in path.iterdir()):
                raise UserError(f"{path} is not empty and not a run directory: give an empty or new folder")
            sweep(path)
            # run.yaml is written once the ledger is committed: with it, a missing or empty ledger is always damage.
            store = Store(path / LEDGER, create=not begun, write=True)
            if store.planned:  # before that, any config may continue
                if not begun:
                    raise LedgerDamaged(
                        f"{path}/run.yaml is missing although its run has started: restore it, or give a new folder"
                    )
                stored = load_config(path / "run.yaml")
                if not store.counts().verdicts:  # a judge that could not answer may be replaced
                    stored = stored.model_copy(update={"judge": None})
                try:
                    grows = _refuse_other_run(path, stored, config)
                except ConfigError:
                    void = store.without_images()  # a setting that the device refused, or a faulty model's files
                    others = [model for model in stored.models if model.label not in void]
                    if not void:
                        raise
                    if others:
                        _refuse_other_run(path, stored.model_copy(update={"models": others}), config)
                    else:
                        store.forget_plan()
                    grows = True
                if store.planned:
                    return cls(path, config, store, lock, grows)
            run = cls(path, config, store, lock)
            run.write_config()
            return run
        except BaseException:
            os.close(lock)
            raise

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the run at `path` for reading. Raises UserError or LedgerError."""
        return cls(path, read_run_config(path), Store(path / LEDGER), None)

    @classmethod
    def view(cls, path: Path, config: RunConfig) -> Self:
        """Open the run under `config` so that changes of its decisions are not saved. Raises as `open`, and
        ConfigError if `config` belongs to another run."""
        stored = read_run_config(path)
        store = Store(path / LEDGER, view=True)
        if _refuse_other_run(path, stored, config):
            raise ConfigError(f"{path} lacks work that the config requires: use `local-bench run` to add it")
        return cls(path, config, store, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()
        if self._lock is not None:
            os.close(self._lock)

    @property
    def name(self) -> str:
        """The folder's name, for people."""
        return text_name(self.path.resolve().name)

    @property
    def written_meanwhile(self) -> bool:
        """Whether another process has written the run while it was open here: not all that was read is of one state."""
        return self._being_written or self.store.db.written_by_others()

    def image(self, pixels_sha256: str) -> Path:
        return self.image_store.file(pixels_sha256)

    def write_config(self) -> None:
        """Write run.yaml. For a run that has a plan this is done once the new plan has been accepted."""
        write_atomic(self.path / "run.yaml", dump_config(self.config).encode())

    def replaced_settings(self) -> list[str]:
        """The stored settings of the settlement that `write_config` replaces (`settle --save`), one sentence each."""
        old, new = _comparable(load_config(self.path / "run.yaml")), _comparable(self.config)
        return [
            f"{'.'.join(map(str, key))} was {yaml_line(old.get(key))} in the run, and is now {yaml_line(new.get(key))}"
            for key in sorted({*old, *new}, key=str)
            if key[0] in ("acceptance", "settlement") and old.get(key) != new.get(key)
        ]

    def write_provenance(self, value: Mapping[str, Any]) -> None:
        """Store the provenance, and write it to provenance.json."""
        self.store.set_meta("provenance", json.dumps(value, sort_keys=True))
        text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)
        write_atomic(self.path / "provenance.json", f"{text}\n".encode())


_LOCK_TRIES = 3
_LOCK_WAIT_S = 0.05


def take_lock(path: Path, name: str = ".lock", held: str = "") -> int:
    """Lock the run at `path` for writing; closing the returned descriptor releases the lock. LedgerError if another
    process has it (the sentence `held`)."""
    with storage_errors(path):
        lock = os.open(path / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_LOCK_WAIT_S)  # `in_progress` has it for a moment
        except OSError as e:  # an NFS mount without a lock service
            os.close(lock)
            raise StorageError(
                f"the file system of {path} does not lock files ({reason(e)}), so that two processes could write one "
                "run: give a --run-dir on another file system, or mount it with locks"
            ) from None
        else:
            if os.path.exists(path / name) and os.path.samestat(os.fstat(lock), os.stat(path / name)):
                return lock
            break  # a merge has replaced the folder meanwhile
    os.close(lock)
    raise LedgerError(held or f"another local-bench process is writing {path}: wait for it or give another --run-dir")


def in_progress(path: Path) -> bool:
    """Whether a process is writing the run at `path`."""
    try:
        lock = os.open(path / ".lock", os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as e:
        return isinstance(e, BlockingIOError)
    finally:
        os.close(lock)
    return False


_EARLIER = (
    *(".lock", LOGS, LEDGER, f"{LEDGER}-journal", ".run.yaml.*.writing"),  # written before run.yaml
    *("ray.sbatch", "slurm-*.log", ".ray-*.token"),  # of a job that `local-bench slurm --ray` wrote
)


def read_run_config(path: Path, settings: tuple[str, ...] = ()) -> RunConfig:
    """The resolved config of the run directory `path` with settings applied. UserError if it is not a run directory."""
    file = path / "run.yaml"
    if not file.is_file():
        raise UserError(f"{path} is not a run directory (it has no run.yaml): give one created by `local-bench run`")
    refuse_links(path)
    return load_config(file, settings)


# Settings that may differ between sessions of a run: how work is executed and how results are evaluated, not the work
# itself. Input files are compared by content when the plan is made.
_FREE_SECTIONS = {"acceptance", "settlement", "panel", "panel_word"}
_FREE_KEYS = {
    "suite": {"path", "written", "questions_from"},
    "engine": {"batch_order", "executor", "ray", "io_workers", "workers", "encodings_gb", "offload"},
    "judge": {
        *("weights", "transport", "canaries", "base_url", "api_key_env", "served_model", "port", "in_flight"),
        *("request_timeout_s", "start_timeout_s", "max_restarts"),
    },
}
_FREE_OF_MODELS = {("weights",), ("imported", "images")}


def _refuse_other_run(path: Path, stored: RunConfig, config: RunConfig) -> bool:
    """Whether `config` extends `stored`, the config of the run at `path`, which then needs a larger plan.

    Models, attempts, tasks (`suite.limit`), metrics and judges can be added. ConfigError with the first of all other
    differences.
    """
    old, new = _comparable(stored), _comparable(config)
    changed = _differences(old, new)
    grown = [key for key in changed if _grows(key, old, new)]
    refused = [key for key in changed if key not in grown]
    if {stored.engine.device, config.engine.device} == {"auto", "cpu"} and config.engine.executor == "local":
        with suppress(ConfigError, ModuleNotFoundError):  # a GPU that torch cannot use; `settle` has no torch
            from local_bench.generators.numerics import choose_device

            if choose_device("auto").type == "cpu":  # both are this machine's CPU
                refused.remove(("engine", "device"))
    if refused:
        key = refused[0]
        more = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
        raise ConfigError(
            f"{path} is a run with another config ({'.'.join(map(str, key))}: {yaml_line(old.get(key))} in the run, "
            f"{yaml_line(new.get(key))} now{more}): give a new --run-dir, or the old settings"
        )
    return any(key[0] not in ("metrics", "judge") for key in grown)


def first_config_difference(a: RunConfig, b: RunConfig) -> str | None:
    """The first difference of two configs in what decides a run's work, as `key: value, value`; None if there is
    none."""
    old, new = _comparable(a), _comparable(b)
    key = next(iter(_differences(old, new)), None)
    return None if key is None else f"{'.'.join(map(str, key))}: {yaml_line(old.get(key))}, {yaml_line(new.get(key))}"


def _differences(old: Mapping[tuple[Any, ...], Any], new: Mapping[tuple[Any, ...], Any]) -> list[tuple[Any, ...]]:
    def is_free(section: str, *key: Any) -> bool:
        if section == "models":
            return key[1:] in _FREE_OF_MODELS
        return section in _FREE_SECTIONS or not _FREE_KEYS.get(section, set()).isdisjoint(key[:1])

    return [key for key in sorted({*old, *new}, key=str) if old.get(key) != new.get(key) and not is_free(*key)]


def _comparable(config: RunConfig) -> dict[tuple[Any, ...], Any]:
    """The portable config by key path, with models by name and metrics as a set."""
    data = yaml_value(dump_config(config))
    data["models"] = {model.label: entry for model, entry in zip(config.models, data["models"], strict=True)}
    data["metrics"] = dict.fromkeys(data["metrics"], True)
    return _flat(data)


def _grows(key: tuple[Any, ...], old: Mapping[tuple[Any, ...], Any], new: Mapping[tuple[Any, ...], Any]) -> bool:
    match key:
        case ("suite", "limit"):
            return new[key] is None or (old[key] is not None and new[key] > old[key])
        case ("metrics", _):
            return key in new
        case ("judge", *_):
            return ("judge",) in old
        case ("models", _, "attempts") if key in old and key in new:
            return bool(new[key] > old[key])
        case ("models", label, *_):
            return not any(other[:2] == ("models", label) for other in old)
    return False


def _flat(value: Any, at: tuple[Any, ...] = ()) -> dict[tuple[Any, ...], Any]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if items is None:
        return {at: value}
    return {k: v for key, inner in items for k, v in _flat(inner, (*at, key)).items()}


# ---- recovery of a damaged ledger

SIDE_FILES = ("-journal", "-wal", "-shm")
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
        ledger = path / LEDGER
        try:
            intact = Store(ledger)
        except LedgerDamaged as e:
            damage = str(e).partition(": ")[0]
        else:
            with closing(intact):
                done = intact.committed()
            raise UserError(
                f"{ledger} is intact ({done.candidates:,} finished candidates, {done.verdicts:,} verdicts): there is "
                "nothing to recover"
            )
        backup, restored = _usable(path)
        with storage_errors(ledger):
            scratch = path / f".{LEDGER}.writing"
            shutil.copyfile(backup, scratch)
            kept = free_name(path, "ledger.damaged.{}.sqlite")
            for suffix in SIDE_FILES:
                side = ledger.with_name(ledger.name + suffix)
                if side.exists():
                    side.rename(kept.with_name(kept.name + suffix))
            is_kept = ledger.exists()
            if is_kept:
                ledger.rename(kept)
        put_in_place(scratch, ledger)
        return Recovered(backup, damage, kept if is_kept else None, *restored)
    finally:
        os.close(lock)


def _usable(path: Path) -> tuple[Path, tuple[Committed, int]]:
    """The latest intact backup, its finished work and its number of candidates."""
    faults = []
    for backup in backups(path):
        try:
            store = Store(backup)
        except LedgerError as e:
            faults.append(str(e).partition(": ")[0])
            continue
        with closing(store):
            return backup, (store.committed(), store.counts().candidates)
    reason = "; ".join(faults) or "there is none"
    raise LedgerError(
        f"{path} has no usable backup of its ledger ({reason}): restore {LEDGER} from your own copy, or move the "
        "folder away and run the same command again to start over"
    )
