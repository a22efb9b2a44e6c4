"""`models fetch`: download a card's repositories at their pinned commits and its individual files, verify them, and
write a manifest."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from local_bench.core.environment import load_object
from local_bench.core.errors import WeightsError
from local_bench.models.cards import ModelCard
from local_bench.models.hub import Repository, check_space, for_model, repository_info
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
from local_bench.models.pull import Pulled, check_digest, fetched_files, fill, pull_hub, pull_url
from local_bench.models.vet import listing_of, vet
from local_bench.models.weights import built, resolve, resolve_parts, weights_digest

Say = Callable[[str], None]


def fetch(card: ModelCard, revisions: Mapping[str, str] | None = None, say: Say = lambda _: None) -> Manifest | None:
    """Download all files of a card and return the manifest; build the model and return None if its source is `build`.

    `revisions` pins commits on this machine, by part (`MAIN` for the model itself). If all files are present and
    intact, the Hub is not queried. WeightsError if a repository has no pinned commit or is refused by `vet` or by the
    Hub; StorageError if the disk is full.
    """
    commits = _commits(card, revisions or {})
    other_parts = [
        part for part in (MAIN, *card.parts) if source_of(card, part).base_url or source_of(card, part).gather
    ]
    if not commits and not other_parts:
        resolve(card)
        resolve_parts(card)
        return None
    existing = _existing(card, commits)
    if existing is not None:
        say(f"{card.name}: all {len(existing.files)} files are already on this machine")
        return existing
    repositories = {
        part: repository_info(
            for_model(card.name), source_of(card, part).repo or "", commit, source_of(card, part).files
        )
        for part, commit in commits.items()
    }
    for repository in repositories.values():
        if not repository.only:  # pickled files that the card lists are converted
            vet(repository.listing)
    absent = {part: repository.not_cached() for part, repository in repositories.items()}
    for part, repository in repositories.items():
        say(_announcement(card, repository, absent[part]))
    check_space(for_model(card.name), sum(repositories[part].bytes_of(names) for part, names in absent.items()))
    snapshots = {part: repository.download() for part, repository in repositories.items()}
    write_pins(card, commits)
    fetched = {part: _from_hub(card, part, repositories[part], folder) for part, folder in snapshots.items()}
    fetched |= {part: _from_other_source(card, part, say) for part in other_parts}
    return _write_manifest(card, fetched, any(repository.gated for repository in repositories.values()))


@dataclass(frozen=True)
class _Fetched:
    """A downloaded folder and its manifest entry."""

    folder: Path
    entry: FetchedRepo


def _from_hub(card: ModelCard, part: str, repository: Repository, snapshot: Path) -> _Fetched:
    """A downloaded Hub repository; files listed in the card are linked into a separate folder."""
    if not repository.only:
        return _Fetched(snapshot, repository.fetched(snapshot))
    return _from_files(card, part, [pull_hub(repository, snapshot, name) for name in repository.only])


def _from_other_source(card: ModelCard, part: str, say: Say) -> _Fetched:
    source = source_of(card, part)
    if source.gather:
        folder = folder_of(card, part)
        origins: list[Origin] = load_object(source.gather, card.name)(folder, card, say)
        return _vetted(card, part, folder, origins)
    assert source.base_url
    base = source.base_url.rstrip("/")
    say(f"{card.name}: {len(source.files)} files from {base}, licence {card.licence}")
    purpose = for_model(card.name)
    return _from_files(
        card, part, [pull_url(purpose, f"{base}/{name}", name, source.sha256.get(name)) for name in source.files]
    )


def _from_files(card: ModelCard, part: str, pulled: list[Pulled]) -> _Fetched:
    """A folder of individual files. WeightsError if a file differs from the digest in the card."""
    source = source_of(card, part)
    for name, file in zip(source.files, pulled, strict=True):
        check_digest(for_model(card.name), file.origin.url, file.origin.sha256, source.sha256.get(name))
    folder = folder_of(card, part)
    fill(folder, pulled)
    return _vetted(card, part, folder, [file.origin for file in pulled])


def _vetted(card: ModelCard, part: str, folder: Path, origins: list[Origin]) -> _Fetched:
    vet(listing_of(folder))
    origin = origin_of(card, part)
    assert origin is not None
    repo, revision = origin
    entry = FetchedRepo(repo=repo, revision=revision or "", files=fetched_files(folder), origins=origins)
    return _Fetched(folder, entry)


def _commits(card: ModelCard, revisions: Mapping[str, str]) -> dict[str, str]:
    """The commit of each repository of the card. WeightsError if one is missing."""
    parts = [part for part in (MAIN, *card.parts) if source_of(card, part).repo]
    unknown = next((part for part in revisions if part not in parts), None)
    if unknown is not None:
        available = ", ".join(repr(part) for part in parts if part) or "none"
        raise WeightsError(
            f"{card.name} has no part {unknown!r} from the Hub (its parts from the Hub: {available}): leave it out"
            if unknown
            else f"{card.name} is built on this machine and has no commit to pin: leave --revision out"
        )
    commits = {}
    for part in parts:
        revision = revisions.get(part) or revision_of(card, part)
        if not is_commit(revision):
            name = f"{part}=COMMIT" if part else "COMMIT"
            pinned = f"only {revision!r}" if revision else "no commit"
            raise WeightsError(
                f"{source_of(card, part).repo} has {pinned} pinned, and the files of a branch can change: give the "
                f"full commit (40 hex digits) with `local-bench models fetch {card.name} --revision {name}` or as the "
                "card's revision"
            )
        assert revision
        commits[part] = revision
    return commits


def _existing(card: ModelCard, commits: Mapping[str, str]) -> Manifest | None:
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
    size, remaining = repository.bytes_of(wanted) / 1e9, repository.bytes_of(absent) / 1e9
    return (
        f"{card.name}: {repository.repo} at {repository.revision[:12]}, licence {card.licence}, "
        f"{len(wanted)} files, {size:.2f} GB, {remaining:.2f} GB to download"
    )


def _write_manifest(card: ModelCard, fetched: Mapping[str, _Fetched], gated: bool) -> Manifest | None:
    """Write the manifest; None for a card whose main model is built."""
    parts = {part: fetched[part].folder if part in fetched else built(card, part) for part in card.parts}
    if MAIN not in fetched:
        return None
    main = fetched[MAIN]
    manifest = Manifest(
        card=card.name,
        repo=main.entry.repo,
        revision=main.entry.revision,
        licence=card.licence,
        gated=gated,
        files=main.entry.files,
        origins=main.entry.origins,
        parts={part: result.entry for part, result in fetched.items() if part != MAIN},
        weights_sha256=weights_digest(main.folder, parts),
        fetched_utc=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )
    write_manifest(card, manifest)
    return manifest
