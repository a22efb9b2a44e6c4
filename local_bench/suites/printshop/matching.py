"""What holds of a picture: how much of a wanted scene is there, whether an edit did what it should and no more, whether
a set keeps its style. All from what the checker sees; what could not be told counts as not there."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from local_bench.suites.printshop.checker import Seen
from local_bench.suites.printshop.edits import Edit
from local_bench.suites.printshop.scene import Scene

Fact = tuple[str, str, str]
"""(what it is about: `picture` or a place, attribute, value)"""

Style = tuple[str | None, str | None, str | None]
"""Background, colour and size, each None where it cannot be told."""


def facts(scene: Scene) -> frozenset[Fact]:
    """All that is so: the background, how many figures, and of each, by its place, shape, colour and size."""
    found = {("picture", "background", scene.background), ("picture", "count", str(len(scene.figures)))}
    for figure in scene.figures:
        found.update((figure.place, name, getattr(figure, name)) for name in ("shape", "colour", "size"))
    return frozenset(found)


def seen_facts(seen: Seen) -> frozenset[Fact]:
    """The same of a picture. Of two figures at one place nothing is told but their number."""
    found = {("picture", "count", str(len(seen.figures)))}
    if seen.background is not None:
        found.add(("picture", "background", seen.background))
    crowded = Counter(figure.place for figure in seen.figures)
    for figure in seen.figures:
        if figure.place is not None and crowded[figure.place] == 1:
            told = ((name, getattr(figure, name)) for name in ("shape", "colour", "size"))
            found.update((figure.place, name, value) for name, value in told if value is not None)
    return frozenset(found)


def match(seen: Seen, wanted: Scene) -> float:
    """The share of the wanted scene's facts that are seen, 0 to 1; 1 only where all of it is."""
    return _share(facts(wanted), seen_facts(seen))


@dataclass(frozen=True)
class EditMatch:
    """How well a picture answers an edit, each 0 to 1."""

    changed: float
    """Of what had to become so."""
    kept: float
    """Of what had to stay as it was."""

    @property
    def whole(self) -> bool:
        """Whether it is the target, to the last fact."""
        return self.changed == self.kept == 1


def must_change(edit: Edit) -> frozenset[Fact]:
    """What is so in the target and was not in the source."""
    return facts(edit.target) - facts(edit.source)


def must_stay(edit: Edit) -> frozenset[Fact]:
    """What is so in both. An edit that leaves a figure behind, or takes one more, breaks the count."""
    return facts(edit.target) & facts(edit.source)


def match_edit(seen: Seen, edit: Edit) -> EditMatch:
    """What a picture made of the edit's source."""
    there = seen_facts(seen)
    return EditMatch(_share(must_change(edit), there), _share(must_stay(edit), there))


def edit_score(there: frozenset[Fact], edit: Edit) -> int:
    """What a faultless judge gives an edit for consistency, 1 to 5, of the facts of its result: 5 where all that had to
    stay has stayed, 3 to 1 as less of it has."""
    kept = _share(must_stay(edit), there)
    return 5 if kept == 1 else 1 + int(3 * kept)


def set_scores(pictures: Sequence[Style]) -> list[int]:
    """What a faultless judge gives each picture of a set, 1 to 5: 5 where all are of one style; else 4 for one that has
    what most have, 3 where it departs in size alone, 2 for background or colour, 1 for more than that."""
    usual = [_most([style[i] for style in pictures]) for i in range(3)]
    off = [[value is None or value != most for value, most in zip(style, usual, strict=True)] for style in pictures]
    if not any(map(any, off)):
        return [5] * len(off)
    return [4 if not any(own) else 1 if sum(own) > 1 else 3 if own[2] else 2 for own in off]


def style_of(seen: Seen) -> Style:
    """What a picture shares with others of its set; its colour and size None unless it has one figure."""
    return (seen.background, *_colour_and_size(seen))


def same_but_for(seen: Seen, scene: Scene, but: Sequence[str]) -> bool:
    """Whether the picture is the scene in everything but the attributes named, which may be anything: of
    `background`, `count`, `shape`, `colour` and `size`."""
    return all(fact[1] in but for fact in facts(scene) ^ seen_facts(seen))


def style_agreement(pictures: Sequence[Seen]) -> float:
    """How far pictures of one figure each share a style, 0 to 1: the share of them that have what most have, on average
    over background, colour and size. A picture with no or more figures has neither colour nor size."""
    rows = [style_of(seen) for seen in pictures]
    return fmean(_majority([row[i] for row in rows]) for i in range(3))


def _colour_and_size(seen: Seen) -> tuple[str | None, str | None]:
    if len(seen.figures) != 1:
        return None, None
    return seen.figures[0].colour, seen.figures[0].size


def _most(values: list[str | None]) -> str | None:
    """The value that most have, the first of several; None where nobody has one."""
    known = Counter(value for value in values if value is not None)
    return known.most_common(1)[0][0] if known else None


def _majority(values: list[str | None]) -> float:
    return max(Counter(value for value in values if value is not None).values(), default=0) / len(values)


def _share(wanted: frozenset[Fact], there: frozenset[Fact]) -> float:
    return len(wanted & there) / len(wanted) if wanted else 1.0
