"""Short questions in no rubric's words, (text, answer): plain readings and comparisons, which teach the judge's eye
much faster than a rubric's points do."""

from collections.abc import Sequence

from local_bench.suites.printshop.matching import Style
from local_bench.suites.printshop.phrases import language_words
from local_bench.suites.printshop.scene import PLACES, Scene


def read(scene: Scene, which: str = "") -> list[tuple[str, str]]:
    """What stands at each place and behind it all."""
    there = {figure.place: f"{figure.size} {figure.colour} {figure.shape}" for figure in scene.figures}
    return [
        *((f"{which}{place}", there.get(place, "no")) for place in PLACES),
        (f"{which}background", scene.background),
    ]


def read_in_chinese(scene: Scene) -> list[tuple[str, str]]:
    """The same in Chinese, so that its words too are known from being said."""
    words = language_words("zh")
    there = {
        figure.place: f"{words.sizes[figure.size]}{words.colours[figure.colour]}的{words.shapes[figure.shape]}"
        for figure in scene.figures
    }
    return [
        *((words.places[place], there.get(place, "没有")) for place in PLACES),
        ("背景", words.backgrounds[scene.background]),
    ]


def alike(styles: Sequence[Style]) -> tuple[tuple[str, str], ...]:
    """What the images of a set share."""
    return tuple(
        (f"same {name}", str(int(len({style[i] for style in styles}) == 1)))
        for i, name in enumerate(("background", "colour", "size"))
    )


def compared(source: Scene, result: Scene | None, instruction: str, done: bool) -> tuple[tuple[str, str], ...]:
    """A result beside its source: what both show, and whether what was asked is done."""
    return (
        (f"done: {instruction}", str(int(done))),
        *(read(result, "first ") if result is not None else ()),
        *read(source, "second "),
        *(_kept_where(source, result) if result is not None else ()),
    )


def _kept_where(source: Scene, result: Scene) -> list[tuple[str, str]]:
    """At which places, and whether behind them, all is as it was."""
    was, became = ({figure.place: figure for figure in scene.figures} for scene in (source, result))
    return [
        *((f"same {place}", str(int(was.get(place) == became.get(place)))) for place in PLACES),
        ("same background", str(int(source.background == result.background))),
    ]
