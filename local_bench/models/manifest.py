"""What `models fetch` took, card by card, and the commits that were pinned on this machine; in the user's cache."""

import re
from pathlib import Path
from typing import TypeVar

from pydantic import Field, ValidationError

from local_bench.core.errors import WeightsError
from local_bench.core.identity import digest
from local_bench.core.paths import cache_dir
from local_bench.core.storage import write_atomic
from local_bench.core.yamlfile import Strict
from local_bench.models.cards import ModelCard, Source
from local_bench.models.convert import VERSION
from local_bench.models.digests import file_digests

MAIN = ""
"""The model itself, beside the card's `parts`."""
T = TypeVar("T", bound=Strict)
_COMMIT = re.compile(r"[0-9a-f]{40}")


class FetchedFile(Strict):
    """One file as it was when its digest had been compared with the Hub's."""

    bytes: int
    sha256: str


class Origin(Strict):
    """What a file was made from."""

    url: str
    """Or OWNER/NAME@COMMIT/FILE on the Hub."""
    bytes: int
    sha256: str
    checked_by: str | None
    """Who knew its digest beforehand: `the Hub`, `the card`, `its address`, `its name`; None where nobody did."""


class FetchedRepo(Strict):
    """One repository at one commit, or one place elsewhere."""

    repo: str
    """Or the address that the files lie below, or the code that named them."""
    revision: str
    """The commit; elsewhere, the name of the folder that was made."""
    files: dict[str, FetchedFile]
    """As they are loaded: converted where they were pickled."""
    origins: list[Origin] = Field(default=[])
    """Of files that were named one by one."""


class Manifest(FetchedRepo):
    """A card's files, those of its parts included."""

    card: str
    licence: str
    gated: bool
    """Whether the Hub asked for accepted terms."""
    parts: dict[str, FetchedRepo] = Field(default={})
    weights_sha256: str
    fetched_utc: str

    def of(self, part: str) -> FetchedRepo | None:
        """The repository of the model (`MAIN`) or of a part; None for a part that was not fetched."""
        return self if part == MAIN else self.parts.get(part)

    @property
    def total_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.bytes for repo in (self, *self.parts.values()) for file in repo.files.values())


class Pins(Strict):
    """Commits given by hand, by part."""

    revisions: dict[str, str]


def is_commit(revision: str | None) -> bool:
    """Whether `revision` is a full commit (40 hex digits), which always means the same files."""
    return revision is not None and _COMMIT.fullmatch(revision) is not None


def revision_of(card: ModelCard, part: str) -> str | None:
    """The commit of the model (`MAIN`) or of a part: the one pinned on this machine, else the card's."""
    return pins(card).get(part) or source_of(card, part).revision


def source_of(card: ModelCard, part: str) -> Source:
    """Where the model (`MAIN`) or a part comes from."""
    return card.source if part == MAIN else card.parts[part]


def folder_of(card: ModelCard, part: str) -> Path:
    """Where the files lie that `models fetch` takes one by one for the model (`MAIN`) or a part; the name follows from
    all that decides them."""
    source = source_of(card, part)
    what = source.model_dump(exclude={"build", "folder", "version"}) | {
        "revision": revision_of(card, part),
        "as": VERSION,
    }
    return cache_dir() / "files" / f"{_safe(card.name)}{part and '-' + part}-{digest(what)[:16]}"


def origin_of(card: ModelCard, part: str) -> tuple[str, str | None] | None:
    """Repository and commit of what `models fetch` takes, or what stands for them; None for what is built here."""
    source = source_of(card, part)
    if source.repo:
        return source.repo, revision_of(card, part)
    elsewhere = source.base_url or source.gather
    return (elsewhere, folder_of(card, part).name) if elsewhere else None


def pins(card: ModelCard) -> dict[str, str]:
    """The commits pinned on this machine, by part."""
    read = _read(_pins_file(card), Pins, "remove it, then pin the commit again")
    return read.revisions if read else {}


def write_pins(card: ModelCard, revisions: dict[str, str]) -> None:
    """Keeps the commits that are not the card's own."""
    own = {part: revision for part, revision in revisions.items() if revision != source_of(card, part).revision}
    if own or _pins_file(card).exists():
        write_atomic(_pins_file(card), Pins(revisions=own).model_dump_json(indent=2).encode())


def read_manifest(card: ModelCard) -> Manifest | None:
    """What was fetched for the card, or None; one of other repositories or commits than today's is not for it."""
    manifest = _read(_manifest_file(card), Manifest, f"`local-bench models fetch {card.name}` writes it anew")
    if manifest is None:
        return None
    for part in (MAIN, *card.parts):
        origin, fetched = origin_of(card, part), manifest.of(part)
        if origin and (fetched is None or (fetched.repo, fetched.revision) != origin):
            return None
    return manifest


def write_manifest(card: ModelCard, manifest: Manifest) -> None:
    """Keeps it; StorageError if the disk refuses."""
    write_atomic(_manifest_file(card), manifest.model_dump_json(indent=2).encode())


def check_whole(card: ModelCard, folder: Path | None, parts: dict[str, Path] | None = None) -> None:
    """Compares the model's folder and those of its parts with what was fetched; quick unless a file was touched.

    WeightsError names the first file that differs. Does nothing for a model that `models fetch` did not take.
    """
    manifest = read_manifest(card)
    if manifest is None:
        return
    folders = ({} if folder is None else {MAIN: folder}) | (parts or {})
    for part, here in folders.items():
        fetched = manifest.of(part)
        if fetched is None:
            continue
        digests = file_digests(here, fetched.files)
        for name, file in fetched.files.items():
            if digests.get(name) != file.sha256:
                what = "is not what was fetched" if name in digests else "is missing"
                raise WeightsError(
                    f"{fetched.repo}: {name} {what}: `local-bench models fetch {card.name}` brings it again"
                )


def _read(path: Path, model: type[T], mend: str) -> T | None:
    try:
        return model.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError:
        raise WeightsError(f"{path} is damaged: {mend}") from None


def _manifest_file(card: ModelCard) -> Path:
    return cache_dir() / "fetched" / f"{_safe(card.name)}.json"


def _pins_file(card: ModelCard) -> Path:
    return cache_dir() / "pins" / f"{_safe(card.name)}.json"


def _safe(name: str) -> str:
    """A card's name as a file's: `library:name` has a colon, which not every file system takes."""
    return name.replace(":", "--")
