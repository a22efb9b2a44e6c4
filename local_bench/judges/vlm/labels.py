"""Checks that a judge's tokenizer has a single, unique token for each label of the `logit` protocol."""

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from local_bench.core.errors import ConfigError, WeightsError
from local_bench.judges.vlm.rubrics import rubric, rubric_names


def single_tokens(weights: Path, labels: Iterable[str]) -> list[str]:
    """The labels that the tokenizer in `weights` does not encode as one unique token that decodes to the label.

    In order, without duplicates. Raises WeightsError if the tokenizer cannot be loaded.
    """
    encode, decode = _tokenizer(weights)
    tokens = {label: encode(label) for label in labels}
    owners = Counter(ids[0] for ids in tokens.values() if len(ids) == 1)
    return [
        label for label, ids in tokens.items() if len(ids) != 1 or owners[ids[0]] > 1 or decode(ids).strip() != label
    ]


def check_labels(card_name: str, weights: Path) -> None:
    """Raise ConfigError unless the judge of that card has a single token for every label of all rubrics."""
    labels = dict.fromkeys(label for name in rubric_names() for c in rubric(name).criteria for label in c.numbers)
    bad = single_tokens(weights, labels)
    if bad:
        raise ConfigError(
            f"judge.protocol: logit needs a single token for each label, and the tokenizer of {card_name} has none for "
            f"{', '.join(bad)}: set judge.protocol=json"
        )


def check_words(card_name: str, weights: Path, rubrics: Iterable[str]) -> None:
    """Raise ConfigError unless the judge of that card has a single token for every word that answers a rubric."""
    for name in sorted(set(rubrics)):
        words = [word for criterion in rubric(name).criteria for word in criterion.words]
        if words and (bad := single_tokens(weights, words)):
            raise ConfigError(
                f"the answers to {name} need a single token each, and the tokenizer of {card_name} has none for "
                f"{', '.join(bad)}: remove these questions (suite.questions_from) or choose another judge"
            )


def _tokenizer(weights: Path) -> tuple[Callable[[str], list[int]], Callable[[list[int]], str]]:
    """The tokenizer's encode and decode functions; `tokenizer.json` avoids the slow import of transformers."""
    file = weights / "tokenizer.json"
    try:
        if file.is_file():
            from tokenizers import Tokenizer

            fast = Tokenizer.from_file(str(file))
            return lambda text: fast.encode(text, add_special_tokens=False).ids, fast.decode
        from transformers import AutoTokenizer

        slow = AutoTokenizer.from_pretrained(weights, local_files_only=True, trust_remote_code=False)
    except Exception as e:  # the tokenizers library raises nothing narrower
        raise WeightsError(
            f"the tokenizer in {weights} cannot be read ({e}): fetch it or give the judge's complete folder"
        ) from e
    return lambda text: slow.encode(text, add_special_tokens=False), slow.decode
