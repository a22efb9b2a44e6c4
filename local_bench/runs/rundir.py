"""The run directory: one writer at a time, nothing in it that names this machine."""

import fcntl
import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from local_bench.core.errors import ConfigError, LedgerDamaged, LedgerError, UserError
from local_bench.core.paths import refuse_links
from local_bench.core.storage import storage_errors, sweep, write_atomic
from local_bench.runs.config import RunConfig, dump_config, load_config
from local_bench.runs.image_store import IMAGES, INPUTS, ImageStore
from local_bench.runs.store import LEDGER, Store


class RunDir:
    """An open run directory. `begin` writes, `open` only reads; both are context managers."""

    def __init__(self, path: Path, config: RunConfig, store: Store, lock: int | None) -> None:
        self.path = path
        self.config = config
        self.store = store
        self.pictures = ImageStore(path)
        self._lock = lock

    @classmethod
    def begin(cls, path: Path, config: RunConfig) -> Self:
        """Makes or reopens the run at `path` for writing.

        ConfigError if another run lives there, LedgerError if another process is writing it, StorageError if the disk
        refuses.
        """
        with storage_errors(path):
            if path.exists() and not path.is_dir():
                raise UserError(f"{path} is a file: give a folder for the run")
            path.mkdir(parents=True, exist_ok=True)
            refuse_links(path)
        lock = take_lock(path)
        try:
            begun = (path / "run.yaml").exists()
            if not begun and any(not _before_run_yaml(p.name) for p in path.iterdir()):
                raise UserError(f"{path} is not empty and holds no run: give an empty or new folder")
            sweep(path)
            # run.yaml is written once the ledger is committed: with it, a missing or empty ledger is always damage.
            store = Store(path / LEDGER, create=not begun, write=True)
            if store.planned:  # before that nothing is decided
                if not begun:
                    raise LedgerDamaged(
                        f"{path}/run.yaml is missing although its run has begun: put it back, or give a new folder"
                    )
                _refuse_other_run(path, config)
            write_atomic(path / "run.yaml", dump_config(config).encode())
            return cls(path, config, store, lock)
        except BaseException:
            os.close(lock)
            raise

    @classmethod
    def open(cls, path: Path) -> Self:
        """Opens the run at `path` for reading. UserError or LedgerError where there is none."""
        config = read_run_config(path)
        return cls(path, config, Store(path / LEDGER), None)

    @classmethod
    def view(cls, path: Path, config: RunConfig) -> Self:
        """Opens a copy of the run in memory, under `config`; what is written to its store is lost. Errors as `open`,
        and ConfigError where `config` is of another run."""
        read_run_config(path)
        store = Store(path / LEDGER, in_memory=True)
        _refuse_other_run(path, config)
        return cls(path, config, store, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.store.close()
        if self._lock is not None:
            os.close(self._lock)

    @property
    def images(self) -> Path:
        return self.path / IMAGES

    def image(self, pixels_sha256: str) -> Path:
        return self.pictures.file(pixels_sha256)

    @property
    def inputs(self) -> Path:
        """Source and reference pictures of the tasks, as canonical pixels under their digests."""
        return self.path / INPUTS

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def write_json(self, name: str, value: Any) -> None:
        write_atomic(
            self.path / name, (json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()
        )


def take_lock(path: Path) -> int:
    """The descriptor that keeps other processes from writing the run at `path` until it is closed. LedgerError where
    another one holds it."""
    with storage_errors(path):
        lock = os.open(path / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise LedgerError(f"another local-bench is at work in {path}: wait for it or give another --run-dir") from None
    return lock


def _before_run_yaml(name: str) -> bool:
    """Whether a file of that name can be there when a process was killed before it wrote run.yaml."""
    return name in (".lock", "logs", LEDGER, f"{LEDGER}-journal") or (
        name.startswith(".run.yaml.") and name.endswith(".writing")
    )


def read_run_config(path: Path, settings: tuple[str, ...] = ()) -> RunConfig:
    """The resolved config of the run directory `path`, with settings laid over it. UserError where it is not one."""
    file = path / "run.yaml"
    if not file.is_file():
        raise UserError(f"{path} is not a run directory (it has no run.yaml): give one that `local-bench run` made")
    refuse_links(path)
    return load_config(file, settings)


# What may differ between two sessions of one run: how the work is done and how its results are read, not what is done.
# Files are compared by what is in them: the plan sees to that.
_FREE_SECTIONS = {"acceptance", "settlement", "panel", "panel_word"}
_FREE_KEYS = {
    *(
        ("suite", "path"),
        ("suite", "written"),
        ("suite", "questions_from"),
        ("engine", "batch_order"),
        ("engine", "io_workers"),
        ("engine", "workers"),
        ("engine", "encodings_gb"),
    ),
    *(("engine", "offload"), ("judge", "weights"), ("judge", "transport"), ("judge", "canaries")),
    *(("judge", "base_url"), ("judge", "api_key_env"), ("judge", "served_model"), ("judge", "port")),
    *(("judge", "in_flight"), ("judge", "request_timeout_s"), ("judge", "start_timeout_s"), ("judge", "max_restarts")),
}
_FREE_OF_MODELS = {("models", "weights"), ("models", "imported", "images")}


def _is_free(key: tuple[Any, ...]) -> bool:
    return key[0] in _FREE_SECTIONS or key[:2] in _FREE_KEYS or (key[0], *key[2:]) in _FREE_OF_MODELS


def _refuse_other_run(path: Path, config: RunConfig) -> None:
    old = _flat(read_run_config(path).model_dump())
    new = _flat(yaml.safe_load(dump_config(config)))
    changed = [key for key in sorted({*old, *new}, key=str) if old.get(key) != new.get(key) and not _is_free(key)]
    if changed:
        key = changed[0]
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise ConfigError(
            f"{path} holds a run with another config ({'.'.join(map(str, key))}: {_short(old.get(key))} there, "
            f"{_short(new.get(key))} here{more}): give a new --run-dir, or the old settings"
        )


def _flat(value: Any, at: tuple[Any, ...] = ()) -> dict[tuple[Any, ...], Any]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if items is None:
        return {at: value}
    return {k: v for key, inner in items for k, v in _flat(inner, (*at, key)).items()}


def _short(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, allow_unicode=True).removesuffix("...\n").strip()
