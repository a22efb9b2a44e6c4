"""Learns the byte-pair merges of the small judges' tokenizer from our own words. Run once; the file is kept.

    .venv/bin/python scripts/make_tiny_merges.py

Training orders pairs of equal count differently from one process to the next, so the small judges read the kept file:
their weights and their tokenizer are then the same everywhere.
"""

import json
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

ROOT = Path(__file__).resolve().parent.parent / "local_bench"
MERGES = 1200


def texts() -> list[str]:
    folder = ROOT / "judges/vlm/rubrics"
    files = [*folder.glob("*.yaml"), *(folder / "miniature").glob("*.yaml")]
    rubrics = [path.read_text() for path in sorted(files, key=lambda path: path.name)]
    orders = [json.loads(line) for line in (ROOT / "suites/studio.jsonl").read_text().splitlines()]
    words = [" ".join([o["title"], o["brief"], *o["evaluation_points"]]) for o in orders]
    return rubrics + words


def main() -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=256 + MERGES, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(texts(), trainer)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    target = ROOT / "testing/tiny_merges.txt"
    target.write_text("".join(f"{left} {right}\n" for left, right in merges))
    print(f"{len(merges)} merges in {target}")


if __name__ == "__main__":
    main()
