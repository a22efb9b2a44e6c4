"""What `models` says of a card and of its files, as words and as data."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from local_bench.models.cards import ModelCard


def what_it_takes(card: "ModelCard") -> str:
    """What a generator is given: `words`, `words, or with a picture`, `words and a depth map`. Empty for the others."""
    if card.role != "generator":
        return ""
    takes = card.takes
    if takes.condition:
        pictures = f"a {takes.condition} map"
    elif takes.pictures > 1:
        pictures = f"up to {takes.pictures} pictures"
    else:
        pictures = "a picture"
    mask = " and a mask" if takes.mask else ""
    if not takes.pictures:
        return f"words{mask}"
    return f"words, or with {pictures}{mask}" if takes.text_alone else f"words and {pictures}{mask}"


def files_here(card: "ModelCard", say: Callable[[str], None]) -> dict[str, Any]:
    """What of a card's files is on this machine; what is missing or damaged is said. A small model is built."""
    from local_bench.core.errors import WeightsError
    from local_bench.models.manifest import MAIN, pins, read_manifest, revision_of
    from local_bench.models.weights import resolve, resolve_parts, weights_digest

    data: dict[str, Any] = {
        "here": False,
        "folder": None,
        "weights_sha256": None,
        "bytes": None,
        "revision": None,
        "revision_from": None,
        "manifest": None,
    }
    try:
        data["revision"] = revision_of(card, MAIN)
        data["revision_from"] = data["revision"] and ("this machine" if MAIN in pins(card) else "the card")
        manifest = read_manifest(card)
        data["manifest"] = manifest and manifest.model_dump()
        folder, parts = resolve(card), resolve_parts(card)
        data["weights_sha256"] = weights_digest(folder, parts)
        data["folder"] = str(folder)
        files = [p for place in (folder, *parts.values()) for p in place.rglob("*") if p.is_file()]
        data["bytes"] = sum(p.stat().st_size for p in files)
        data["here"] = True
    except WeightsError as e:
        say(str(e))
    return data


def fetch_rows(cards: dict[str, "ModelCard"], fetched: dict[str, dict[str, Any]]) -> list[list[str]]:
    """A line for each model: licence, files, size, commit and the digest of its weights."""
    rows = []
    for name, data in fetched.items():
        manifest = data["manifest"]
        repositories = [manifest, *manifest["parts"].values()] if manifest else []
        rows.append(
            [
                name,
                cards[name].licence,
                str(sum(len(repository["files"]) for repository in repositories)) if repositories else "built here",
                f"{(data['bytes'] or 0) / 1e9:.2f} GB",
                (data["revision"] or "-")[:12],
                data["weights_sha256"] or "-",
            ]
        )
    return rows


def in_words(data: dict[str, Any]) -> list[list[str]]:
    """A card and its files as lines: nested keys with dots, a manifest as one line, without what is empty."""
    rows = []
    for key, value in data.items():
        if key == "manifest" and value:
            repositories = (value, *value["parts"].values())
            count = sum(len(repository["files"]) for repository in repositories)
            rows.append([key, f"{count} files, fetched {value['fetched_utc']}"])
            rows += [
                [f"{key}.made from", f"{o['url']} ({o['bytes'] / 1e6:.1f} MB), {_checked(o['checked_by'])}"]
                for repository in repositories
                for o in repository["origins"]
            ]
        elif key == "bytes" and value is not None:
            rows.append(["on disk", f"{value / 1e9:.2f} GB"])
        elif key == "here":
            rows.append([key, "yes" if value else "no"])
        elif isinstance(value, dict):
            rows += in_words({f"{key}.{name}": inner for name, inner in value.items()})
        elif value is not None:
            rows.append([key, str(value)])
    return rows


def _checked(by: str | None) -> str:
    return f"its digest known by {by}" if by else "its digest known by nobody beforehand"
