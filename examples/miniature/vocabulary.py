"""Tokenizers that know the world's words, made once, saved, and loaded again before anything is trained with them.

T5's holds every word whole. CLIP's and Qwen's are byte-pair encodings whose merges are learnt here, the most frequent
pair first and the alphabetically first of equals: the same in every process.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from transformers import CLIPTokenizer, T5Tokenizer

from examples.miniature.printshop.wording import vocabulary
from local_bench.models.shipped import byte_characters

CLIP_TOKENS = 40
_WORD_END = "</w>"


def t5_tokenizer() -> T5Tokenizer:
    """Every word of the world one token, Latin and Chinese; what else is printable by single characters."""
    words = vocabulary()
    latin = [f"▁{word}" for word in words if word.isascii() and word.isalpha()]
    others = [word for word in words if not (word.isascii() and word.isalpha())]
    characters = sorted({chr(c) for c in range(33, 127)} | set("".join(others)) - set(others))
    scored = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -4.0)]
    scored += [(piece, -1.0) for piece in (*latin, *others)]
    scored += [(c, -8.0) for c in characters if c not in others]
    return T5Tokenizer(vocab=scored, extra_ids=0, model_max_length=512)


def clip_tokenizer() -> CLIPTokenizer:
    """Every Latin word one token, every Chinese character at most three."""
    alphabet = byte_characters()
    words = []
    for word in vocabulary():
        letters = [alphabet[byte] for byte in word.encode()]
        words.append((*letters[:-1], letters[-1] + _WORD_END))
        if not word.isascii():  # such a word may stand in the midst of a run, which is one word to CLIP
            words.append(tuple(letters))
    merges = learn(words)
    pieces = [*alphabet, *(c + _WORD_END for c in alphabet), *("".join(pair) for pair in merges)]
    pieces += ["<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer(
        vocab={piece: i for i, piece in enumerate(dict.fromkeys(pieces))}, merges=merges, model_max_length=CLIP_TOKENS
    )


def learn(words: Iterable[Sequence[str]]) -> list[tuple[str, str]]:
    """Merges that make every one of the words, given as its letters, one piece."""
    left = [tuple(word) for word in words]
    merges = []
    while True:
        pairs = Counter(pair for word in left for pair in pairwise(word))
        if not pairs:
            return merges
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        left = [_merged(word, best) for word in left]


def _merged(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    out: list[str] = []
    for piece in word:
        if out and (out[-1], piece) == pair and (len(out) < 2 or out[-1] == pair[0]):
            out[-1] += piece
        else:
            out.append(piece)
    return tuple(out)


def saved(folder: Path) -> tuple[CLIPTokenizer, T5Tokenizer]:
    """CLIP's and T5's tokenizer as they read back from `folder`, made first where they are not there."""
    if not (folder / "tokenizer_2").exists():
        clip_tokenizer().save_pretrained(folder / "tokenizer")
        t5_tokenizer().save_pretrained(folder / "tokenizer_2")
    return CLIPTokenizer.from_pretrained(folder / "tokenizer"), T5Tokenizer.from_pretrained(folder / "tokenizer_2")
