"""Counts the words that the documentation avoids, in the package, the documentation and the tests.

    scripts/count_words.py [--json] [FOLDER]

Each word is counted as a word of its own, without regard to case: in identifiers (split at underscores and capitals),
docstrings, comments and messages alike. Every word has proper uses ("there is", "words" of a caption), so no count has
to be zero; what matters is how it changes. `--list WORD` prints the lines.
"""

import argparse
import json
import re
from collections import Counter
from pathlib import Path

WORDS = (
    *("there", "asked", "ask", "words", "told", "tell", "beside", "held", "hold", "stands", "stand", "says", "said"),
    *("house", "room", "law", "crowd", "sitting", "canary", "canaries", "twin", "twins", "picture", "pictures"),
    *("sheet", "label", "labels", "place", "places", "trial", "maker", "retest", "people", "worth", "cells", "kept"),
    *("written", "truth", "refereed", "ways", "lies", "gone", "whole", "named", "looks", "shown", "quick", "slow"),
)
"""The private words named by a review of the code, and those found with them since."""


def words(text: str) -> Counter[str]:
    """How often each word occurs in `text`; `AskedTwice` and `asked_twice` both hold `asked`."""
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text).replace("_", " ").lower()
    found = Counter(re.findall(r"[a-z]+", split))
    return Counter({word: found[word] for word in WORDS})


def files(folder: Path) -> dict[str, list[Path]]:
    return {
        "package": sorted(folder.glob("local_bench/**/*.py")),
        "documents": [folder / "README.md", *sorted(folder.glob("docs/**/*.md"))],
        "tests": sorted(folder.glob("tests/**/*.py")),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")
    parser.add_argument("--list", metavar="WORD", help="print the package's lines with this word")
    args = parser.parse_args()
    found = files(args.folder)
    if args.list:
        for path in found["package"]:
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if words(line)[args.list]:
                    print(f"{path.relative_to(args.folder)}:{number}: {line.strip()}")
        return
    counts = {name: sum((words(path.read_text()) for path in paths), Counter()) for name, paths in found.items()}
    if args.json:
        print(json.dumps({name: {word: of[word] for word in WORDS} for name, of in counts.items()}, indent=2))
        return
    print(f"{'word':12}" + "".join(f"{name:>12}" for name in counts))
    for word in WORDS:
        print(f"{word:12}" + "".join(f"{of[word]:12}" for of in counts.values()))
    print(f"{'all':12}" + "".join(f"{sum(of.values()):12}" for of in counts.values()))


if __name__ == "__main__":
    main()
