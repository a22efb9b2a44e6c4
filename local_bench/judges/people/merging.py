"""Merges databases of annotations, when runs are merged."""

import json
from collections.abc import Sequence
from pathlib import Path

from local_bench.core.errors import UserError
from local_bench.judges.people.database import AnnotationDatabase
from local_bench.judges.people.protocol import Protocol

PROTOCOL_META, SESSION_META = "protocol:", "session:"
"""Prefixes of the keys of `meta` with the text of a protocol, and with the settings and items of its session."""
SERVED_PROTOCOL, SERVED_BASE = "served:protocol", "served:base"
"""Keys of `meta` with the protocol and the address of the server that ran last."""


def merge_annotations(target: Path, parts: Sequence[Path]) -> None:
    """Write all annotators, items and answers of the databases in `parts` to `target`; parts that do not exist are
    skipped, and without any nothing is written. Annotators of the same name are the same person: of two answers to an
    item the earlier one counts. UserError if a protocol differs between parts."""
    parts = [part for part in parts if part.is_file()]
    if not parts:
        return
    protocols: dict[str, tuple[str, Path]] = {}
    with AnnotationDatabase(target, create=True) as merged:
        for part in parts:
            with AnnotationDatabase(part) as opened:
                meta = opened.all_meta()
            for key, text in meta.items():
                if not key.startswith(PROTOCOL_META):
                    continue
                before = protocols.setdefault(key, (text, part))
                if not same_questions(before[0], text):
                    name = key.removeprefix(PROTOCOL_META)
                    raise UserError(f"the annotation protocol {name} differs between {before[1]} and {part}: {_APART}")
            merged.absorb(part)
            for key, text in meta.items():
                if key.startswith(PROTOCOL_META):
                    merged.set_meta(key, text)
                elif key.startswith(SESSION_META):
                    merged.set_meta(key, _joined(merged.meta(key), text))  # the runs are one now


def same_questions(before: str, text: str) -> bool:
    """Whether two stored protocols have the same questions, so that answers by both can be used together."""
    one, other = map(Protocol.model_validate_json, (before, text))
    return one.questions == other.questions


_APART = "rename the protocol of one run, or merge the runs apart"


def _joined(before: str | None, text: str) -> str:
    """The settings of a session, with the items of both parts."""
    second = json.loads(text)
    first = json.loads(before) if before else second
    return json.dumps(first | {"items": sorted({*first["items"], *second["items"]}), "runs": 1})
