"""`models fetch`: a card's repositories at their pinned commits, vetted before and checked after, and the files that it
names one by one; then a manifest."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from local_bench.core.errors import WeightsError
from local_bench.models.cards import ModelCard
from local_bench.models.hub import Repository, check_space, look
from local_bench.models.manifest import (
    MAIN,
    FetchedRepo,
    Manifest,
    Origin,
    folder_of,
    is_commit,
    origin_of,
    read_manifest,
    revision_of,
    source_of,
    write_manifest,
    write_pins,
)
from local_bench.models.pull import Pulled, fetched_files, fill, pull_hub, pull_url, refuse_other
from local_bench.models.purpose import for_model
from local_bench.models.vet import listing_of, vet
from local_bench.models.weights import built, resolve, resolve_parts, weights_digest

Say = Callable[[str], None]


def fetch(card: ModelCard, revisions: Mapping[str, str] | None = None, say: Say = lambda _: None) -> Manifest | None:
    """Brings all files of a card onto this machine, or builds the small model; None for one that is built.

    `revisions` pins commits for this machine, by part (`MAIN` for the model itself). Files that are here whole are left
    alone, and then the Hub is not asked. WeightsError where a repository has no pinned commit, or is refused by `vet`
    or by the Hub; StorageError where there is no room.
    """
    commits = _commits(card, revisions or {})
    elsewhere = [part for part in (MAIN, *card.parts) if source_of(card, part).base_url or source_of(card, part).gather]
    if not commits and not elsewhere:
        resolve(card)
        resolve_parts(card)
        return None
    known = _whole_already(card, commits)
    if known is not None:
        say(f"{card.name}: all {len(known.files)} files are here already")
        return known
    repositories = {
        part: look(for_model(card.name), source_of(card, part).repo or "", commit, source_of(card, part).files)
        for part, commit in commits.items()
    }
    for repository in repositories.values():
        if not repository.only:  # what is named is converted where it is pickled
            vet(repository.listing)
    absent = {part: repository.absent() for part, repository in repositories.items()}
    for part, repository in repositories.items():
        say(_announcement(card, repository, absent[part]))
    check_space(for_model(card.name), sum(repositories[part].bytes_of(names) for part, names in absent.items()))
    taken = {part: repository.take() for part, repository in repositories.items()}
    write_pins(card, commits)
    places = {part: _place(card, part, repositories[part], folder) for part, folder in taken.items()}
    places |= {part: _from_elsewhere(card, part, say) for part in elsewhere}
    return _enter(card, places, any(repository.gated for repository in repositories.values()))


@dataclass(frozen=True)
class _Place:
    """A folder that was filled, and what the manifest says of it."""

    folder: Path
    fetched: FetchedRepo


def _place(card: ModelCard, part: str, repository: Repository, taken: Path) -> _Place:
    """What was taken from the Hub; files that the card names get a folder of their own."""
    if not repository.only:
        return _Place(taken, repository.fetched(taken))
    return _filled(card, part, [pull_hub(repository, taken, name) for name in repository.only])


def _from_elsewhere(card: ModelCard, part: str, say: Say) -> _Place:
    source = source_of(card, part)
    if source.gather:
        module, _, function = source.gather.partition(":")
        folder = folder_of(card, part)
        origins: list[Origin] = getattr(importlib.import_module(module), function)(folder, card, say)
        return _entered(card, part, folder, origins)
    assert source.base_url
    base = source.base_url.rstrip("/")
    say(f"{card.name}: {len(source.files)} files from {base}, licence {card.licence}")
    purpose = for_model(card.name)
    return _filled(
        card, part, [pull_url(purpose, f"{base}/{name}", name, source.sha256.get(name)) for name in source.files]
    )


def _filled(card: ModelCard, part: str, pulled: list[Pulled]) -> _Place:
    """WeightsError where a file is not what the card says."""
    source = source_of(card, part)
    for name, file in zip(source.files, pulled, strict=True):
        refuse_other(for_model(card.name), file.origin.url, file.origin.sha256, source.sha256.get(name))
    folder = folder_of(card, part)
    fill(folder, pulled)
    return _entered(card, part, folder, [file.origin for file in pulled])


def _entered(card: ModelCard, part: str, folder: Path, origins: list[Origin]) -> _Place:
    vet(listing_of(folder))
    origin = origin_of(card, part)
    assert origin is not None
    repo, revision = origin
    fetched = FetchedRepo(repo=repo, revision=revision or "", files=fetched_files(folder), origins=origins)
    return _Place(folder, fetched)


def _commits(card: ModelCard, given: Mapping[str, str]) -> dict[str, str]:
    """The commit of each repository of the card. WeightsError says how to give one that is missing."""
    parts = [part for part in (MAIN, *card.parts) if source_of(card, part).repo]
    strange = next((part for part in given if part not in parts), None)
    if strange is not None:
        has = ", ".join(repr(part) for part in parts if part) or "none"
        raise WeightsError(
            f"{card.name} takes nothing called {strange!r} from the Hub (its parts from there: {has}): leave it out"
            if strange
            else f"{card.name} is built on this machine and has no commit to pin: leave --revision out"
        )
    commits = {}
    for part in parts:
        revision = given.get(part) or revision_of(card, part)
        if not is_commit(revision):
            name = f"{part}=COMMIT" if part else "COMMIT"
            has = f"only {revision!r}" if revision else "no commit"
            raise WeightsError(
                f"{source_of(card, part).repo} has {has} pinned, and a branch may hold other files tomorrow: give the "
                f"full commit (40 hex digits) by `local-bench models fetch {card.name} --revision {name}` or as the "
                "card's revision"
            )
        assert revision
        commits[part] = revision
    return commits


def _whole_already(card: ModelCard, commits: Mapping[str, str]) -> Manifest | None:
    try:
        manifest = read_manifest(card)
        if manifest is None or any(revision_of(card, part) != commit for part, commit in commits.items()):
            return None
        resolve(card)
        resolve_parts(card)
    except WeightsError:
        return None
    return manifest


def _announcement(card: ModelCard, repository: Repository, absent: list[str]) -> str:
    wanted = repository.wanted
    size, rest = repository.bytes_of(wanted) / 1e9, repository.bytes_of(absent) / 1e9
    return (
        f"{card.name}: {repository.repo} at {repository.revision[:12]}, licence {card.licence}, "
        f"{len(wanted)} files, {size:.2f} GB, {rest:.2f} GB of them to download"
    )


def _enter(card: ModelCard, places: Mapping[str, _Place], gated: bool) -> Manifest | None:
    """Writes the manifest; a card whose own files are built has none."""
    parts = {part: places[part].folder if part in places else built(card, part) for part in card.parts}
    if MAIN not in places:
        return None
    main = places[MAIN]
    manifest = Manifest(
        card=card.name,
        repo=main.fetched.repo,
        revision=main.fetched.revision,
        licence=card.licence,
        gated=gated,
        files=main.fetched.files,
        origins=main.fetched.origins,
        parts={part: place.fetched for part, place in places.items() if part != MAIN},
        weights_sha256=weights_digest(main.folder, parts),
        fetched_utc=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )
    write_manifest(card, manifest)
    return manifest
