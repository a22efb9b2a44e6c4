"""Model cards and their local files, as text and JSON, for the `models` commands."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from local_bench.models.cards import ModelCard


def inputs_text(card: "ModelCard") -> str:
    """A generator's inputs, e.g. `text`, `text, optional image`, `text + depth map`. Empty for other roles."""
    if card.role != "generator":
        return ""
    takes = card.takes
    if takes.condition:
        images = f"{takes.condition} map"
    elif takes.pictures > 1:
        images = f"up to {takes.pictures} images"
    else:
        images = "image"
    mask = " + mask" if takes.mask else ""
    if not takes.pictures:
        return f"text{mask}"
    return f"text, optional {images}{mask}" if takes.text_alone else f"text + {images}{mask}"


def local_files(card: "ModelCard", say: Callable[[str], None]) -> dict[str, Any]:
    """The state of a card's files on this machine. Reports missing or damaged files; builds a small model if needed."""
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
        files = [p for location in (folder, *parts.values()) for p in location.rglob("*") if p.is_file()]
        data["bytes"] = sum(p.stat().st_size for p in files)
        data["here"] = True
    except WeightsError as e:
        say(str(e))
    return data


def fetch_rows(cards: dict[str, "ModelCard"], fetched: dict[str, dict[str, Any]]) -> list[list[str]]:
    """One row per model: licence, number of files, size, commit and weights digest."""
    rows = []
    for name, data in fetched.items():
        manifest = data["manifest"]
        repositories = [manifest, *manifest["parts"].values()] if manifest else []
        rows.append(
            [
                name,
                cards[name].licence,
                str(sum(len(repository["files"]) for repository in repositories)) if repositories else "built",
                f"{(data['bytes'] or 0) / 1e9:.2f} GB",
                (data["revision"] or "-")[:12],
                data["weights_sha256"] or "-",
            ]
        )
    return rows


_OF_JUDGES = {
    *("judge_max_pixels", "judge_min_pixels", "patch", "context", "max_model_len", "batch_invariant"),
    "tensor_parallel_size",
}
_OF_RANDOM_WEIGHTS = {f"architecture.tokenizer{n}" for n in ("", "_2", "_3")}
"""Tokenizers of the models with random weights that `plan --measure` times."""


def card_rows(data: dict[str, Any]) -> list[list[str]]:
    """Rows (key, value) of a card and its files: nested keys joined by dots, manifests summarised, nulls and
    what does not apply to its role omitted."""
    rows = []
    unused = _OF_RANDOM_WEIGHTS | (set() if data.get("role") == "judge" else _OF_JUDGES)
    for key, value in data.items():
        if key in unused:
            continue
        if key == "manifest" and value:
            repositories = (value, *value["parts"].values())
            count = sum(len(repository["files"]) for repository in repositories)
            rows.append([key, f"{count} files, fetched {value['fetched_utc']}"])
            rows += [
                [f"{key}.origin", f"{o['url']} ({o['bytes'] / 1e6:.1f} MB), {_verification(o['checked_by'])}"]
                for repository in repositories
                for o in repository["origins"]
            ]
        elif key == "bytes" and value is not None:
            rows.append(["on disk", f"{value / 1e9:.2f} GB"])
        elif key == "here":
            rows.append([key, "yes" if value else "no"])
        elif isinstance(value, dict):
            rows += card_rows({f"{key}.{name}": inner for name, inner in value.items()})
        elif value is not None:
            rows.append([key, str(value)])
    return rows


def _verification(by: str | None) -> str:
    return f"digest verified against {by}" if by else "digest not verified"
