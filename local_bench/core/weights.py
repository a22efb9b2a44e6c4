"""A model's files on this machine, and the digest that names them."""

import hashlib
import importlib
import json
import os
import shutil
import tempfile
from pathlib import Path

from local_bench.core.cards import ModelCard
from local_bench.core.errors import WeightsError
from local_bench.core.identity import digest
from local_bench.core.paths import cache_dir
from local_bench.core.quiet import quiet_libraries
from local_bench.core.storage import storage_errors, write_atomic

PIPELINE = "model_index.json"
"""What a diffusers pipeline's folder has at its top; its models then lie in folders below."""
_KINDS = (".safetensors", ".json", ".txt", ".model", ".jinja")


def resolve(card: ModelCard, given: str | None = None) -> Path:
    """The folder that holds the model: the one given, a small one built now, or the Hub's cache. Never downloads.

    WeightsError says how to get the files where they are missing.
    """
    if given is not None:
        folder = Path(given).expanduser()
        if not folder.is_dir():
            raise WeightsError(f"the weights of {card.name} are not at {given}: give the folder that holds them")
        return folder
    if card.source.build:
        return _built(card)
    return _snapshot(card)


def check_here(card: ModelCard, given: str | None = None) -> None:
    """WeightsError if `resolve` would raise one; builds nothing."""
    if given is not None or not card.source.build:
        resolve(card, given)


def fetch(card: ModelCard) -> Path:
    """Downloads the card's safetensors and configs into the Hub's cache, or builds the small model; the folder.

    WeightsError where the Hub refuses: no network, no such revision, or terms that were not accepted.
    """
    if card.source.build:
        return _built(card)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError

    assert card.source.repo
    try:
        return Path(snapshot_download(card.source.repo, revision=card.source.revision, allow_patterns=_wanted(card)))
    except GatedRepoError:
        raise WeightsError(
            f"{card.source.repo} is gated: accept its terms on its page, set HF_TOKEN, and fetch {card.name} again"
        ) from None
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as e:
        raise WeightsError(
            f"{card.source.repo} cannot be fetched ({type(e).__name__}): check the network and try again"
        ) from e


def _wanted(card: ModelCard) -> list[str]:
    """What to fetch. A pipeline's repository often holds the same weights once more at its top: those stay there."""
    below = "*/" if card.role == "generator" else ""
    return [PIPELINE, "LICENSE*", *(f"{below}*{kind}" for kind in _KINDS)]


def _built(card: ModelCard) -> Path:
    """The small model of this card in the user's cache, built there first if it is not; whole or absent."""
    assert card.source.build
    folder = cache_dir() / "models" / f"{card.name}-v{card.source.version}"
    if folder.is_dir():
        return folder
    quiet_libraries()
    module, _, function = card.source.build.partition(":")
    build = getattr(importlib.import_module(module), function)
    with storage_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{card.name}."))
        try:
            build(scratch)
            scratch.chmod(0o755)
            if not folder.is_dir():  # another process may have been quicker: its files are the same
                os.rename(scratch, folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _snapshot(card: ModelCard) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    assert card.source.repo
    try:
        return Path(snapshot_download(card.source.repo, revision=card.source.revision, local_files_only=True))
    except LocalEntryNotFoundError:
        raise WeightsError(
            f"the weights of {card.name} are not on this machine: run `local-bench models fetch {card.name}` "
            "where there is a network, or give `weights: FOLDER` in the config"
        ) from None


def weights_digest(folder: Path) -> str:
    """sha256 over the names and sha256s of all files that the model is loaded from; readings are remembered by size
    and time.

    WeightsError where there are no safetensors.
    """
    pipeline = (folder / PIPELINE).is_file()
    files = sorted(
        p
        for p in folder.rglob("*")
        if p.suffix in _KINDS and p.is_file() and (not pipeline or p.parent != folder or p.name == PIPELINE)
    )
    if not any(p.suffix == ".safetensors" for p in files):
        raise WeightsError(f"{folder} holds no .safetensors file: only that format is loaded, convert the model")
    memory_file = cache_dir() / "weights" / f"{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()}.json"
    try:
        memory = json.loads(memory_file.read_text())
    except (FileNotFoundError, ValueError):
        memory = {}
    fresh = {}
    for path in files:
        stat = path.stat()
        stamp = f"{stat.st_size}:{stat.st_mtime_ns}"
        name = path.relative_to(folder).as_posix()
        known = memory.get(name)
        fresh[name] = known if known and known[0] == stamp else [stamp, _file_sha256(path)]
    if fresh != memory:
        write_atomic(memory_file, json.dumps(fresh).encode())
    return digest({name: sha for name, (_, sha) in fresh.items()})


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
