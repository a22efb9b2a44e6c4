"""Captions of scenes in English and simplified Chinese, and their parser."""

from functools import cache

from local_bench.suites.printshop.phrases import LANGUAGES, Language, Phrase, language_words
from local_bench.suites.printshop.scene import Figure, Scene, is_scene


def wordings(language: Language | None = None) -> tuple[str, ...]:
    """The names of the caption styles of one language or of all, such as `en.plain`."""
    languages = LANGUAGES if language is None else (language,)
    return tuple(f"{each}.{name}" for each in languages for name in language_words(each).captions)


def write_caption(scene: Scene, wording: str = "en.plain", swapped: bool = False, say_large: bool = False) -> str:
    """The scene's caption in a style; `swapped` describes the right-hand figure first.

    Size `large` is omitted unless `say_large` is set.
    """
    language, caption, figure = _phrases(wording)
    figures = scene.figures[::-1] if swapped else scene.figures
    texts = [
        figure.fill(
            shape=f.shape, colour=f.colour, place=f.place, size=f.size if say_large or f.size == "small" else ""
        )
        for f in figures
    ]
    return caption.fill(figures=language_words(language).joiner.join(texts), background=scene.background)


def read_caption(text: str) -> Scene | None:
    """Parse a caption in any style; None if it matches none."""
    for wording in wordings():
        language, caption, figure = _phrases(wording)
        found = caption.read(text)
        if found is None:
            continue
        parts = [figure.read(part) for part in found["figures"].split(language_words(language).joiner)]
        figures = [Figure(**{"size": "large", **part}) for part in parts if part is not None]
        figures.sort(key=lambda f: ("left", "centre", "right").index(f.place))
        if len(figures) == len(parts) and is_scene(tuple(figures)):
            return Scene(found["background"], tuple(figures))
    return None


@cache
def _phrases(wording: str) -> tuple[Language, Phrase, Phrase]:
    language: Language = "zh" if wording.startswith("zh.") else "en"
    words = language_words(language).captions[wording.partition(".")[2]]
    return language, Phrase(words.caption, language), Phrase(words.figure, language)
