"""Whether a judge's tokenizer has a token of its own for each label that the `logit` protocol asks for."""

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from local_bench.core.errors import ConfigError, WeightsError
from local_bench.judges.vlm.rubric_files import rubric_names
from local_bench.judges.vlm.rubrics import rubric


def single_tokens(weights: Path, labels: Iterable[str]) -> list[str]:
    """Those of `labels` which the tokenizer in `weights` does not write as exactly one token that reads back as the
    label, or writes with the token of another label; in their order, each once. WeightsError without a tokenizer."""
    encode, decode = _tokenizer(weights)
    tokens = {label: encode(label) for label in labels}
    owners = Counter(ids[0] for ids in tokens.values() if len(ids) == 1)
    return [
        label for label, ids in tokens.items() if len(ids) != 1 or owners[ids[0]] > 1 or decode(ids).strip() != label
    ]


def check_labels(card_name: str, weights: Path) -> None:
    """ConfigError if the judge of that card cannot answer every shipped rubric by one token a criterion."""
    wanted = dict.fromkeys(label for name in rubric_names() for c in rubric(name).criteria for label in c.tokens)
    bad = single_tokens(weights, wanted)
    if bad:
        raise ConfigError(
            f"judge.protocol: logit needs a single token for each label, and the tokenizer of {card_name} has none for "
            f"{', '.join(bad)}: set judge.protocol=json"
        )


def _tokenizer(weights: Path) -> tuple[Callable[[str], list[int]], Callable[[list[int]], str]]:
    """Encode and decode of the tokenizer in that folder; `tokenizer.json` needs no transformers, slow to load."""
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
            f"the tokenizer in {weights} cannot be read ({e}): fetch or give the judge's whole folder"
        ) from e
    return lambda text: slow.encode(text, add_special_tokens=False), slow.decode
