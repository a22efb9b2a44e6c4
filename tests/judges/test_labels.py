import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from local_bench.core.errors import ConfigError, WeightsError
from local_bench.judges.vlm.rubrics import check_labels, check_words, single_tokens
from local_bench.models.cards import card
from local_bench.models.weights import resolve

DIGITS = [str(n) for n in range(10)]


def saved(folder, vocabulary):
    """A tokenizer with this vocabulary; unknown words become its first entry."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token=vocabulary[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize("name", ["tiny-qwen2-vl", "tiny-qwen3-vl"])
def test_the_small_judges_have_a_token_for_each_digit_and_none_for_a_number_of_two(cache, name):
    weights = resolve(card(name, "judge"))
    assert single_tokens(weights, [*DIGITS, "10", "7", ""]) == ["10", ""]
    check_labels(name, weights)
    check_words(name, weights, ["brf"])
    with pytest.raises(
        ConfigError, match=rf"^the answers to vqa_score .* tokenizer of {name} has none for No, Yes: remove"
    ):
        check_words(name, weights, ["brf", "vqa_score", "vqa_score"])


def test_a_judge_without_digit_tokens_must_use_json(tmp_path):
    """Labels that share a token or are unknown are reported."""
    saved(tmp_path, ["[UNK]", "0", "1"])
    assert single_tokens(tmp_path, ["0", "1", "2", "3"]) == ["2", "3"]
    assert single_tokens(tmp_path, ["0", "1", "2"]) == ["2"]
    with pytest.raises(
        ConfigError, match=r"^judge\.protocol: logit .* of dull has none for .*5.*: set judge\.protocol=json$"
    ):
        check_labels("dull", tmp_path)


@pytest.mark.parametrize("content", [None, "{", '{"model": {}}'])
def test_a_folder_without_a_readable_tokenizer_is_an_error(tmp_path, content):
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content, "utf-8")
    with pytest.raises(WeightsError, match=f"the tokenizer in {tmp_path} cannot be read"):
        single_tokens(tmp_path, DIGITS)


def test_a_judge_with_tokens_for_the_words_of_a_question_is_accepted(tmp_path):
    vocabulary = {"[UNK]": 0, "Yes": 1, "No": 2}
    Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]")).save(str(tmp_path / "tokenizer.json"))
    check_words("able", tmp_path, ["vqa_score", "brf"])
