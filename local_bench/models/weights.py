"""A model's files on this machine, and the digest that names them."""

import importlib
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from local_bench.core.errors import WeightsError
from local_bench.core.identity import digest
from local_bench.core.paths import cache_dir
from local_bench.core.quiet import quiet_libraries
from local_bench.core.storage import storage_errors
from local_bench.models import shipped
from local_bench.models.cards import SHIPPED, ModelCard, Source
from local_bench.models.convert import converted_name
from local_bench.models.digests import file_digests
from local_bench.models.manifest import MAIN, check_whole, folder_of, revision_of, source_of
from local_bench.models.vet import KINDS, PIPELINE, listing_of, vet

_NAMED_KINDS = (".onnx", ".mat")
"""Weights too, where a card names such files: they lie at the top of its folder."""
_SHA256 = re.compile(r"[0-9a-f]{64}")


def resolve(card: ModelCard, given: str | None = None) -> Path:
    """The folder that holds the model: the one given, a small one built now, or the Hub's cache. Never downloads.

    WeightsError says how to get the files where they are missing, which one is not as it was fetched, or why such a
    model is not loaded (see `vet`).
    """
    if given is None:
        return _found(card, MAIN, card.source)
    return _here(card, given)


def resolve_parts(card: ModelCard) -> dict[str, Path]:
    """The folders of the card's parts by name; WeightsError as `resolve`."""
    return {part: _found(card, part, source) for part, source in card.parts.items()}


def check_here(card: ModelCard, given: str | None = None) -> None:
    """WeightsError if `resolve` or `resolve_parts` would raise one; builds nothing."""
    if given is not None:
        resolve(card, given)
    elif not card.source.build:
        resolve(card)
    for part, source in card.parts.items():
        if not source.build:
            _found(card, part, source)


def weights_digest(folder: Path, parts: Mapping[str, Path] | None = None) -> str:
    """sha256 over the names and sha256s of all files that the model is loaded from, its parts' digests included.

    Readings are remembered until a file's size, times or inode change. WeightsError where there are no weights, or
    where the Hub's cache holds a file under another digest than its own.
    """
    pipeline = (folder / PIPELINE).is_file()
    names = sorted(
        p.relative_to(folder).as_posix()
        for p in folder.rglob("*")
        if p.suffix in KINDS and p.is_file() and (not pipeline or p.parent != folder or p.name == PIPELINE)
    )
    named = sorted(p.name for p in folder.iterdir() if p.suffix in _NAMED_KINDS and p.is_file())
    names += named
    if not named and not any(name.endswith(".safetensors") for name in names):
        raise WeightsError(f"{folder} holds no .safetensors file: only that format is loaded, convert the model")
    digests = file_digests(folder, names)
    _refuse_misnamed(folder, digests)
    of_parts = {f"part:{part}": weights_digest(path) for part, path in (parts or {}).items()}
    return digest(digests | of_parts)


def _refuse_misnamed(folder: Path, digests: Mapping[str, str]) -> None:
    """The Hub's cache keeps a large file under its sha256, behind a link: that holds without any manifest."""
    for name, sha256 in digests.items():
        path = folder / name
        stored_as = path.readlink().name if path.is_symlink() else ""
        if _SHA256.fullmatch(stored_as) and stored_as != sha256:
            raise WeightsError(f"{path} is damaged: fetch its model again (`local-bench models fetch NAME`)")


def _here(card: ModelCard, given: str) -> Path:
    """A folder of the user's, as it is. WeightsError if there is none or `vet` refuses it."""
    folder = Path(given).expanduser()
    if not folder.is_dir():
        raise WeightsError(f"the weights of {card.name} are not at {given}: give the folder that holds them")
    vet(listing_of(folder))
    return folder


def _found(card: ModelCard, part: str, source: Source) -> Path:
    if source.build:
        return built(card, part)
    if source.folder is not None:
        return _here(card, source.folder)
    folder = _taken(card, part, source)
    if part == MAIN:
        check_whole(card, folder)
    else:
        check_whole(card, None, {part: folder})
    vet(listing_of(folder))
    return folder


def _taken(card: ModelCard, part: str, source: Source) -> Path:
    """The folder that `models fetch` filled: the Hub's cache, or ours where the card names single files."""
    mend = f"run `local-bench models fetch {card.name}` where there is a network"
    if source.gather or source.files:
        folder = folder_of(card, part)
        name = next((n for n in source.files if not (folder / converted_name(n)).is_file()), None)
        if name is not None:
            where = source.repo or source.base_url
            raise WeightsError(f"{name} of {card.name} is not on this machine; it comes from {where}: {mend}")
        if not folder.is_dir():
            raise WeightsError(f"the weights of {card.name} are not on this machine: {mend}")
        return folder
    from local_bench.models.hub import snapshot

    assert source.repo
    return snapshot(card.name, source.repo, revision_of(card, part))


def built(card: ModelCard, part: str = MAIN) -> Path:
    """The small model of this card, or of a part of it, in the user's cache, built there first if it is not there;
    whole or absent."""
    source = source_of(card, part)
    assert source.build
    name = f"{card.name}-{part}" if part else card.name
    made = f"v{source.version}"
    if source.build == SHIPPED:
        made += f"-{shipped.files_digest(card)[:12]}"  # another release may ship another model under that name
    folder = cache_dir() / "models" / f"{name}-{made}"
    if folder.is_dir():
        return folder
    quiet_libraries()
    module, _, function = source.build.partition(":")
    build = getattr(importlib.import_module(module), function)
    with storage_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{name}."))
        try:
            build(scratch, card)
            scratch.chmod(0o755)
            if not folder.is_dir():  # another process may have been quicker: its files are the same
                os.rename(scratch, folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return folder
