"""`models fetch`: a card's repositories at their pinned commits, vetted before and checked after, then a manifest."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from local_bench.core.cards import ModelCard
from local_bench.core.errors import WeightsError
from local_bench.core.hub import Repository, check_space, look
from local_bench.core.manifest import (
    MAIN,
    Manifest,
    is_commit,
    read_manifest,
    revision_of,
    source_of,
    write_manifest,
    write_pins,
)
from local_bench.core.vet import vet
from local_bench.core.weights import built, resolve, resolve_parts, weights_digest

Say = Callable[[str], None]


def fetch(card: ModelCard, revisions: Mapping[str, str] | None = None, say: Say = lambda _: None) -> Manifest | None:
    """Brings all files of a card onto this machine, or builds the small model; None for one that is built.

    `revisions` pins commits for this machine, by part (`MAIN` for the model itself). Files that are here whole are left
    alone, and then the Hub is not asked. WeightsError where a repository has no pinned commit, or is refused by `vet`
    or by the Hub; StorageError where there is no room.
    """
    commits = _commits(card, revisions or {})
    if not commits:
        resolve(card)
        resolve_parts(card)
        return None
    known = _whole_already(card, commits)
    if known is not None:
        say(f"{card.name}: all {len(known.files)} files are here already")
        return known
    repositories = {part: look(card.name, source_of(card, part).repo or "", commit) for part, commit in commits.items()}
    for repository in repositories.values():
        vet(repository.listing)
    absent = {part: repository.absent() for part, repository in repositories.items()}
    for part, repository in repositories.items():
        say(_announcement(card, repository, absent[part]))
    check_space(card.name, sum(repositories[part].bytes_of(names) for part, names in absent.items()))
    folders = {part: repository.take() for part, repository in repositories.items()}
    write_pins(card, commits)
    return _enter(card, repositories, folders)


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


def _enter(card: ModelCard, repositories: Mapping[str, Repository], folders: Mapping[str, Path]) -> Manifest | None:
    """Writes the manifest; a card whose own files are built has none."""
    parts = {part: folders[part] if part in folders else built(card, part) for part in card.parts}
    if MAIN not in repositories:
        return None
    fetched = {part: repository.fetched(folders[part]) for part, repository in repositories.items()}
    manifest = Manifest(
        card=card.name,
        repo=fetched[MAIN].repo,
        revision=fetched[MAIN].revision,
        licence=card.licence,
        gated=any(repository.gated for repository in repositories.values()),
        files=fetched[MAIN].files,
        parts={part: repo for part, repo in fetched.items() if part != MAIN},
        weights_sha256=weights_digest(folders[MAIN], parts),
        fetched_utc=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )
    write_manifest(card, manifest)
    return manifest
