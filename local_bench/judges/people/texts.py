"""The interface's texts in its languages."""

import re
from functools import cache
from pathlib import Path

import yaml

from local_bench.judges.people.protocol import LANGUAGES, Language

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
