"""Renders the pages and fragments of the annotation interface."""

import re
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from local_bench.judges.people.database import Annotator
from local_bench.judges.people.items import Item, Kind, Side
from local_bench.judges.people.protocol import LANGUAGES, Language
from local_bench.judges.people.session import NOTE_CHARACTERS, Session

if TYPE_CHECKING:
    from local_bench.judges.people.summary import Summary


FILE = Path(__file__).parent / "text.yaml"


@cache
def texts(language: Language) -> dict[str, str]:
    """Key -> text."""
    data = yaml.safe_load(FILE.read_text("utf-8"))
    return {key: of[language] for key, of in data.items()}


def known_language(name: str) -> Language:
    """`name` if the interface has that language, else English."""
    return next((language for language in LANGUAGES if language == name), "en")


def preferred_language(header: str) -> Language:
    """The interface's language that a request's `Accept-Language` header prefers, else English."""
    found = re.findall(r"\b([a-z]{2,3})\b[a-z0-9-]*(?:\s*;\s*q=([01](?:\.\d+)?))?", header.lower())
    ranked = sorted(found, key=lambda one: -float(one[1] or 1))
    return next((language for name, _ in ranked for language in LANGUAGES if language == name), "en")


_SCRIPT_TEXTS = (
    *("incomplete", "saving", "saved", "offline", "online", "refused", "stale", "link_invalid", "nothing", "undone"),
    *("nothing_now", "retry", "progress", "pace", "break", "nothing_to_undo", "undo_failed", "image_failed"),
    "adjudication",
)
_NAMES: dict[Language, str] = {"en": "English", "zh": "中文"}
_LEGEND = (
    *(("Enter", "k_enter"), ("z", "k_undo"), ("c", "k_cannot"), ("t", "k_tags"), ("n", "k_note"), ("[ ]", "k_images")),
    *(("d", "k_side"), ("s", "k_slider"), ("f", "k_flicker"), ("+ - Home", "k_zoom"), ("← ↑ → ↓", "k_arrows")),
    *(("g", "k_guidelines"), ("?", "k_legend")),
)


class Pages:
    """HTML of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._jinja = Environment(
            loader=PackageLoader("local_bench.judges.people"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._item = self._jinja.get_template("item.html.j2")

    def sentence(self, key: str, language: Language) -> str:
        """The text with this key; the key itself if there is none."""
        return texts(language).get(key, key.replace("_", " "))

    def message(self, key: str) -> str:
        """A page with one sentence, in every language."""
        lines = [(language, self.sentence(key, language)) for language in LANGUAGES]
        return self._jinja.get_template("message.html.j2").render(lines=lines)

    def page(self, me: Annotator, csrf: str) -> str:
        """The page of an annotator; its items are loaded by `queue`."""
        language = known_language(me.language)
        protocol, text = self._session.protocol, texts(language)
        keys = " ".join(o.key for field in protocol.fields_of(("",)) for o in field.options)
        return self._jinja.get_template("page.html.j2").render(
            t=text,
            language=language,
            languages=_NAMES,
            title=protocol.title.get(language),
            guidelines=paragraphs(protocol.guidelines.get(language)),
            legend=[(" ".join(dict.fromkeys(keys.split())), text["k_options"])]
            + [(k, text[name]) for k, name in _LEGEND],
            csrf=csrf,
            me=me.name,
            protocol=f"{protocol.id}-{protocol.version}",
            break_minutes=protocol.break_minutes,
            script_texts={key: text[key] for key in _SCRIPT_TEXTS},
        )

    def queue(self, me: Annotator, n: int) -> dict[str, Any]:
        """The next items as fragments, with the annotator's progress and the number of the latest answer."""
        queue = self._session.queue
        entries = queue.next(me.name, n)
        progress = queue.progress(me.name)
        return {
            "items": [self.entry(me, item, kind) for item, kind in entries],
            "progress": {"done": progress.done, "left": max(progress.left, len(entries))},
            "last": self._session.database.latest(me.name, self._session.protocol.id),
            "more_later": not entries and queue.may_follow(me.name),
        }

    def entry(self, me: Annotator, item: Item, kind: Kind, left: Side | None = None) -> dict[str, Any]:
        """One item; `left` is the side of a pair on the left, by default the queue's. A repeat is marked only by its
        kind `repeat`, which the page does not show."""
        session, language = self._session, known_language(me.language)
        task = session.tasks[item.task_id]
        left = left or session.queue.left_side(me.name, item.item_id, kind)
        sides = (item.images, item.other) if left != "b" else (item.other, item.images)
        fields = session.fields(item)
        html = self._item.render(
            t=texts(language),
            language=language,
            protocol=session.protocol,
            task=task,
            left=sides[0],
            right=sides[1],
            keys=session.keys(item),
            fields=fields,
            adjudication=kind == "adjudication",
            opinions=session.queue.opinions(item.item_id) if kind == "adjudication" else [],
            note_characters=NOTE_CHARACTERS,
            point_list=task.points if session.protocol.show_points and not session.protocol.points else (),
        )
        return {
            "item_id": item.item_id,
            "kind": kind,
            "left": left,
            "html": html,
            "direct": len(fields) == 1 and len(session.keys(item)) == 1,
        }

    def lead(self, me: Annotator, found: "Summary") -> str:
        """The lead's page."""
        return self._jinja.get_template("lead.html.j2").render(
            t=texts("en"), found=found, me=me.name, now=datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        )


def paragraphs(text: str) -> list[tuple[str, list[str]]]:
    """Guidelines as (tag, lines): ("p", [text]) or ("ul", items)."""
    found: list[tuple[str, list[str]]] = []
    for block in text.strip().split("\n\n"):
        if block.startswith("- "):
            found.append(("ul", [" ".join(item.split()) for item in block[2:].split("\n- ")]))
        else:
            found.append(("p", [" ".join(block.split())]))
    return found
