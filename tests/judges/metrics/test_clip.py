"""CLIP's metrics on the small CLIP, whose weights are unchanged since the first metric."""

from dataclasses import replace

import numpy as np
import open_clip
import pytest
import torch
import transformers

from local_bench.core.errors import WeightsError
from local_bench.judges.metrics.base import Subject
from local_bench.judges.metrics.embeddings import ClipNetwork, as_clip_reads
from local_bench.judges.metrics.registry import cosine

from .helpers import make_image, metric_of, values, weights_of

CAPTION = "a poster of a mountain hut"


@pytest.fixture(scope="module")
def model(cache):
    location = f"local-dir:{weights_of('tiny-clip').folder}"
    clip, _, prepare = open_clip.create_model_and_transforms(location)
    return clip.eval(), prepare, open_clip.get_tokenizer(location)


def test_it_is_open_clips_own_cosine_with_the_first_reference(tmp_path, model):
    clip, prepare, tokenizer = model
    image, source, first, second = (
        make_image(tmp_path, i, size) for i, size in enumerate([(96, 80), (64, 120), (72, 72), (96, 80)])
    )

    @torch.no_grad()
    def embedding(shown):
        return (
            clip.encode_text(tokenizer([shown]))
            if isinstance(shown, str)
            else clip.encode_image(prepare(shown.load())[None])
        )

    subjects = [
        Subject("a", image, source, references=(first, second), caption=CAPTION),
        Subject("turned", image, first, references=(second, first), caption=f"{CAPTION} 2"),
    ]
    for name, others in {
        "clip_cap": (CAPTION, f"{CAPTION} 2"),
        "clip_src": (source, first),
        "clip_ref": (first, second),
    }.items():
        metric = metric_of(f"{name}:tiny-clip")
        assert metric.spec.name == f"{name}:tiny-clip"
        expected = [torch.cosine_similarity(embedding(image), embedding(other)).item() for other in others]
        assert values(metric, subjects) == pytest.approx(expected, abs=1e-6)
        assert abs(expected[0] - expected[1]) > 1e-5


def test_the_three_share_one_network():
    keys = {metric_of(f"{name}:tiny-clip").network.key for name in ("clip_cap", "clip_src", "clip_ref")}
    assert len(keys) == 1
    assert metric_of("laion_aes:tiny-laion").network.key not in keys
    description = metric_of("clip_src:tiny-clip").network.description
    assert "shortest side to 64 px (PIL bicubic, antialiased), centre crop 64x64" in description


def test_rounding_never_leaves_the_range():
    third = np.full(3, 1 / 3**0.5, np.float32)
    assert cosine([np.nextafter(third, np.float32(2))] * 2) == 1


def test_special_characters_in_a_caption_are_not_escaped(tmp_path):
    image = make_image(tmp_path, 1)
    for texts in (("<REF_1> on <SOURCE>", "reference image on source image"), ("fish &amp; chips", "fish & chips")):
        first, second = values(metric_of("clip_cap:tiny-clip"), [Subject(t, image, caption=t) for t in texts])
        assert first != second


def test_other_folders_are_refused(tmp_path):
    weights = replace(weights_of("tiny-clip"), folder=tmp_path)
    with pytest.raises(WeightsError, match=r"open_clip_config.json does not exist"):
        ClipNetwork(weights)
    for text in ("{}", '{"model_cfg": {"vision_cfg": {"image_size": 64}}}', "[]"):
        (tmp_path / "open_clip_config.json").write_text(text)
        with pytest.raises(WeightsError, match="models fetch tiny-clip"):
            ClipNetwork(weights)


CAPTIONS = [
    CAPTION,
    "  A  Poster\nof THE\thut ",
    "a sign that says \u201cNord\u201d, \u2018south\u2019\u2026",
    "fish &amp; chips, &lt;b&gt;",
    "a cafe\u0301 and a caf\u00e9, na\u00efve \u00c9TOILE",
    "caf\u00c3\u00a9",  # UTF-8 once read as Latin-1
    "\uff26\uff55\uff4c\uff4c width, \ufb01ligature, 12345",
    "\u4e00\u53ea\u7ea2\u8272\u7684\u9774\u5b50\u3002",
    "it's we'll they've don't",
    "\u039f\u0394\u039f\u03a3 \u03a3, \u0130stanbul",  # lower case by character: no final sigma
    " a\u00a0b\u2028c\x85d\x1ce\x1f",
    "word " * 100,
]


def test_captions_are_cut_into_the_tokens_of_transformers_tokenizer():
    """Both with CLIP's own vocabulary, which open_clip ships."""
    ours = open_clip.SimpleTokenizer()
    names = {"<start_of_text>": "<|startoftext|>", "<end_of_text>": "<|endoftext|>"}
    vocabulary = {names.get(token, token): i for token, i in ours.encoder.items()}
    theirs = transformers.CLIPTokenizer(vocab=vocabulary, merges=list(ours.bpe_ranks))
    repaired = [list(ours([text])[0]) for text in CAPTIONS]
    ours.clean_fn = as_clip_reads
    for text in CAPTIONS:
        expected = theirs(text, truncation=True, max_length=77).input_ids
        assert ours([text])[0].tolist() == expected + [0] * (77 - len(expected)), text
    assert sum(list(ours([text])[0]) != shown for text, shown in zip(CAPTIONS, repaired, strict=True)) >= 3


@pytest.mark.parametrize(
    ("text", "limit"),
    [("word " * 75, None), ("word " * 76, 77), ("xqz" * 75, 77), ("", None), ("a\n" * 74, None), ("🦊" * 75, 77)],
    ids=["77-tokens", "78-tokens", "one-long-word", "empty", "lines", "emoji"],
)
def test_a_caption_with_more_tokens_than_clip_reads_is_known(text, limit):
    assert metric_of("clip_cap:tiny-clip").network.tokens_if_cut(text) == limit
