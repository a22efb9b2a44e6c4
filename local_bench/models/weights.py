"""Location and digest of a model's files on this machine."""

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from local_bench.core import strictjson
from local_bench.core.environment import load_object, quiet_libraries
from local_bench.core.errors import WeightsError
from local_bench.core.files import cache_dir, scratch, storage_errors, write_atomic
from local_bench.core.types import digest
from local_bench.models import shipped
from local_bench.models.cards import MAIN, SHIPPED, ModelCard
from local_bench.models.convert import converted_name
from local_bench.models.manifest import check_fetched, file_digests, folder_of, revision_of
from local_bench.models.tensors import check_header
from local_bench.models.vet import KINDS, PIPELINE, listing_of, vet

_NAMED_KINDS = (".onnx", ".mat")
"""Other weight formats that a card can list explicitly; these files are in the top-level folder."""
TOKENIZER = "tokenizer"
"""The part of a card that has no weights."""
_SHA256 = re.compile(r"[0-9a-f]{64}")


def resolve(card: ModelCard, weights: str | None = None) -> Path:
    """The folder of the model: `weights`, a model built now, or the cache. Never downloads.

    WeightsError if files are missing or have changed since they were fetched, or if `vet` refuses the model.
    """
    return _part_folder(card, MAIN) if weights is None else _user_folder(card, weights)


def resolve_parts(card: ModelCard) -> dict[str, Path]:
    """The folders of the card's parts by name. Raises like `resolve`."""
    return {part: _part_folder(card, part) for part in card.parts}


def check_local(card: ModelCard, weights: str | None = None) -> None:
    """Raise WeightsError if `resolve` or `resolve_parts` would; builds nothing."""
    if weights is not None:
        resolve(card, weights)
    elif not card.source.build:
        resolve(card)
    for part, source in card.parts.items():
        if not source.build:
            _part_folder(card, part)


def weights_digest(folder: Path, parts: Mapping[str, Path] | None = None, required: bool = True) -> str:
    """sha256 over the names and digests of all files that the model is loaded from, including its parts.

    File digests are cached until a file's size, times or inode change. WeightsError if there are no weights (which the
    part `tokenizer` does not have), or if a file in the Hub cache does not match its name.
    """
    pipeline = (folder / PIPELINE).is_file()
    names = sorted(
        p.relative_to(folder).as_posix()
        for p in folder.rglob("*")
        if p.suffix in KINDS and p.is_file() and (not pipeline or p.parent != folder or p.name == PIPELINE)
    )
    named = sorted(p.name for p in folder.iterdir() if p.suffix in _NAMED_KINDS and p.is_file())
    names += named
    if required and not named and not any(name.endswith(".safetensors") for name in names):
        raise WeightsError(f"{folder} contains no .safetensors file: convert the model, no other format is loaded")
    digests = file_digests(folder, names)
    for name, sha256 in digests.items():
        # the Hub cache stores LFS files under their sha256, behind a symlink: checked without a manifest
        path = folder / name
        stored_as = path.readlink().name if path.is_symlink() else ""
        if _SHA256.fullmatch(stored_as) and stored_as != sha256:
            raise WeightsError(f"{path} is damaged: fetch its model again (`local-bench models fetch NAME`)")
    of_parts = {f"part:{part}": weights_digest(path, None, part != TOKENIZER) for part, path in (parts or {}).items()}
    return digest(digests | of_parts)


def _user_folder(card: ModelCard, path: str) -> Path:
    """A folder given by the user. WeightsError if it does not exist, `vet` refuses it, or a safetensors file that it
    would be loaded from is damaged."""
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise WeightsError(
            f"{path}, the folder for the weights of {card.name}, does not exist: give the folder that contains them"
        )
    listing = listing_of(folder)
    vet(listing)
    for name in listing.loaded:
        if name.endswith(".safetensors"):
            check_header(folder / name)
    return folder


def _part_folder(card: ModelCard, part: str) -> Path:
    source = card.sources[part]
    if source.build:
        return built(card, part)
    if source.folder is not None:
        return _user_folder(card, source.folder)
    remedy = f"run `local-bench models fetch {card.name}` on a machine with network access"
    if source.gather or source.files:  # individual files, in the cache of local-bench
        folder = folder_of(card, part)
        name = next((n for n in source.files if not (folder / converted_name(n)).is_file()), None)
        if name is not None:
            where = source.repo or source.base_url
            raise WeightsError(f"{name} of {card.name} is not on this machine; its source is {where}: {remedy}")
        if not folder.is_dir():
            raise WeightsError(f"the weights of {card.name} are not on this machine: {remedy}")
    else:
        from local_bench.models.hub import snapshot

        assert source.repo
        replaceable = part == MAIN and card.role != "metric"
        folder = snapshot(card.name, source.repo, revision_of(card, part), replaceable)
    check_fetched(card, part, folder)
    vet(listing_of(folder))  # its files have the digests of what was fetched
    return folder


def built(card: ModelCard, part: str = MAIN) -> Path:
    """The folder of the model or part with a `build` source, built in the user's cache first if it is missing."""
    source = card.sources[part]
    assert source.build
    name = f"{card.name}-{part}" if part else card.name
    version = f"v{source.version}"
    if source.build == SHIPPED:
        version += f"-{digest(shipped.files_of(card))[:12]}"  # the files of a model can change between releases
    folder = cache_dir() / "models" / f"{name}-{version}"
    sizes = folder.with_name(f"{folder.name}.sizes.json")
    if folder.is_dir():
        recorded: dict[str, int] = {}  # of a model that an earlier release built, no sizes are recorded
        if sizes.is_file():
            recorded = strictjson.read(sizes, WeightsError, missing=f"remove {folder}")
        actual = _sizes(folder)
        if all(actual.get(name) == size for name, size in recorded.items()):
            return folder
        with storage_errors(folder):
            shutil.rmtree(folder)
    quiet_libraries()
    build = load_object(source.build, card.name)
    with storage_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with scratch(folder.parent) as work:
            (new := work / "files").mkdir()
            build(new, card)
            write_atomic(sizes, json.dumps(_sizes(new), sort_keys=True).encode())
            try:
                os.rename(new, folder)
            except OSError:
                if not folder.is_dir():  # else another process has built the same files meanwhile
                    raise
    return folder


def _sizes(folder: Path) -> dict[str, int]:
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
