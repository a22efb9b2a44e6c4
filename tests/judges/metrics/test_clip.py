"""CLIP's metrics on the small CLIP, whose weights are unchanged since the first metric."""

import functools

import numpy as np
import open_clip
import pytest
import torch
import transformers
from safetensors.torch import load_file

from local_bench.core.errors import WeightsError
from local_bench.judges.metrics.base import FeatureInput, Subject
from local_bench.judges.metrics.clip_network import ClipNetwork, as_clip_reads
from local_bench.judges.metrics.network_metrics import cosine
from local_bench.judges.metrics.registry import Weights, make_metric
from local_bench.models.cards import card
from local_bench.models.weights import resolve

from .helpers import drawn, make_image, noise, read, saved, values

CAPTION = "a poster of a mountain hut"
metric_of = functools.cache(make_metric)


@functools.cache
def card_of():
    return card("tiny-clip", "metric")


@pytest.fixture(scope="module")
def model(cache):
    location = f"local-dir:{resolve(card_of())}"
    clip, _, prepare = open_clip.create_model_and_transforms(location)
    return clip.eval(), prepare, open_clip.get_tokenizer(location)


def subjects(folder, n):
    return [
        Subject(
            str(i),
            make_image(folder, i, (96, 80)),
            make_image(folder, 100 + i, (64, 120)),
            references=(make_image(folder, 200 + i, (72, 72)), make_image(folder, 300 + i)),
            caption=f"{CAPTION} {i}",
        )
        for i in range(n)
    ]


def test_the_small_clip_is_unchanged(cache):
    with torch.random.fork_rng():
        torch.manual_seed(20260103)
        first = open_clip.CLIP(
            embed_dim=64,
            vision_cfg={"image_size": 64, "layers": 2, "width": 64, "head_width": 32, "patch_size": 16},
            text_cfg={"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 2},
        ).state_dict()
    loaded = load_file(resolve(card_of()) / "open_clip_model.safetensors")
    assert loaded.keys() == first.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in first.items())


@pytest.mark.parametrize("name", ["clip_cap", "clip_src", "clip_ref"])
def test_it_is_open_clips_own_cosine(tmp_path, model, name):
    clip, prepare, tokenizer = model
    subject = subjects(tmp_path, 1)[0]

    @torch.no_grad()
    def embedding(image):
        return clip.encode_image(prepare(image.load()).unsqueeze(0))

    with torch.no_grad():
        other = {
            "clip_cap": lambda: clip.encode_text(tokenizer([subject.caption])),
            "clip_src": lambda: embedding(subject.source),
            "clip_ref": lambda: embedding(subject.references[0]),
        }[name]()
    expected = torch.nn.functional.cosine_similarity(embedding(subject.image), other).item()
    metric = metric_of(f"{name}:tiny-clip")
    assert metric.spec.name == f"{name}:tiny-clip"
    assert values(metric, [subject]) == [pytest.approx(expected, abs=1e-6)]
    turned = Subject("t", subject.source, subject.image, references=subject.references[::-1], caption="another one")
    assert values(metric, [turned]) != [pytest.approx(expected, abs=1e-6)] or name == "clip_src"  # it is symmetric


def test_the_preprocessing_is_open_clips_and_known_before_the_weights_are_read(model):
    network = metric_of("clip_src:tiny-clip").network
    assert str(network.transform) == str(model[1])
    assert "shortest side to 64 px (PIL bicubic, antialiased), centre crop 64x64" in network.description
    assert network.identity["dtype"] == "float32"


def test_texts_follow_the_order_of_inputs():
    network = metric_of("clip_src:tiny-clip").network
    network.open("cpu")
    texts = [network.prepare([], "word " * i) for i in range(5)]
    np.testing.assert_allclose(network.run(texts), network.run(texts[::-1])[::-1], atol=1e-5)
    network.close()


def test_an_embedding_is_float32_of_length_1_for_text_and_images(tmp_path):
    network = metric_of("clip_cap:tiny-clip").network
    inputs = [
        FeatureInput((make_image(tmp_path, 1),)),
        FeatureInput(text=CAPTION),
        FeatureInput((make_image(tmp_path, 2),)),
        FeatureInput(text=""),
    ]
    arrays = read(network, inputs, 2)
    for array, alone in zip(arrays, read(network, inputs, 1), strict=True):
        assert array.dtype == np.float32
        assert array.shape == (64,)
        assert np.linalg.norm(array) == pytest.approx(1, abs=1e-6)
        np.testing.assert_allclose(array, alone, atol=1e-5)


def test_the_three_share_one_network():
    keys = {metric_of(f"{name}:tiny-clip").network.key for name in ("clip_cap", "clip_src", "clip_ref")}
    assert len(keys) == 1
    assert metric_of("laion_aes:tiny-laion").network.key not in keys


def test_rounding_never_leaves_the_range():
    third = np.full(3, 1 / 3**0.5, np.float32)
    assert cosine([np.nextafter(third, np.float32(2))] * 2) == 1


def test_the_first_reference_counts(tmp_path):
    one, other = make_image(tmp_path, 1), make_image(tmp_path, 2)
    first, second = values(
        metric_of("clip_ref:tiny-clip"),
        [Subject("a", one, references=(one, other)), Subject("b", one, references=(other, one))],
    )
    assert first == pytest.approx(1, abs=1e-6)
    assert second < 0.999


def test_special_characters_in_a_caption_are_not_escaped(tmp_path):
    metric = metric_of("clip_cap:tiny-clip")
    image = make_image(tmp_path, 1)
    texts = ("<REF_1> on <SOURCE>", "reference image on source image")
    marked, worded = values(metric, [Subject(text, image, caption=text) for text in texts])
    assert marked != worded


def test_a_caption_is_cut_at_77_tokens(tmp_path):
    metric = metric_of("clip_cap:tiny-clip")
    long = " ".join(["hut"] * 75)
    image = make_image(tmp_path, 1)
    found = values(metric, [Subject(text, image, caption=text) for text in (long, f"{long} hill", "hut " * 74)])
    assert found[0] == found[1] != found[2]


def test_other_folders_are_refused(tmp_path):
    described = card_of()
    with pytest.raises(WeightsError, match=r"open_clip_config.json does not exist"):
        ClipNetwork(Weights(described, tmp_path, {}))
    for text in ("{}", '{"model_cfg": {"vision_cfg": {"image_size": 64}}}', "[]"):
        (tmp_path / "open_clip_config.json").write_text(text)
        with pytest.raises(WeightsError, match="models fetch tiny-clip"):
            ClipNetwork(Weights(described, tmp_path, {}))


def test_golden_values(tmp_path):
    one, other = drawn(tmp_path / "a.png"), saved(noise(7), tmp_path / "b.png")
    subject = Subject("a", one, other, references=(other,), caption=CAPTION)
    found = {name: values(metric_of(f"{name}:tiny-clip"), [subject])[0] for name in GOLDEN}
    assert found == pytest.approx(GOLDEN, abs=1e-4)


GOLDEN = {"clip_cap": -0.040087, "clip_src": 0.971108}


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
    "word " * 100,
]


def test_captions_are_cut_into_the_tokens_of_transformers_tokenizer():
    """Both with CLIP's own vocabulary, which open_clip ships."""
    ours = open_clip.SimpleTokenizer()
    merges = [list(pair) for pair in ours.bpe_ranks]
    vocabulary = {token.replace("<start_of_text>", "<|startoftext|>"): i for token, i in ours.encoder.items()}
    vocabulary = {token.replace("<end_of_text>", "<|endoftext|>"): i for token, i in vocabulary.items()}
    theirs = transformers.CLIPTokenizer(vocab=vocabulary, merges=[tuple(pair) for pair in merges])
    repaired = [list(ours([text])[0]) for text in CAPTIONS]
    ours.clean_fn = as_clip_reads
    for text in CAPTIONS:
        expected = theirs(text, truncation=True, max_length=77).input_ids
        tokens = ours([text])[0].tolist()
        assert tokens == expected + [0] * (77 - len(expected)), text
    assert sum(list(ours([text])[0]) != of for text, of in zip(CAPTIONS, repaired, strict=True)) >= 3


def test_the_network_uses_this_tokenizer(cache):
    network = ClipNetwork(Weights(card_of(), resolve(card_of()), {}))
    network.open("cpu")
    entity, plain = network.prepare([], "fish &amp; chips"), network.prepare([], "fish & chips")
    assert entity.tolist() != plain.tolist()
    network.close()


@pytest.mark.parametrize(
    ("text", "limit"),
    [("word " * 75, None), ("word " * 76, 77), ("xqz" * 75, 77), ("", None), ("a\n" * 74, None), ("🦊" * 75, 77)],
    ids=["77-tokens", "78-tokens", "one-long-word", "empty", "lines", "emoji"],
)
def test_a_caption_with_more_tokens_than_clip_reads_is_known(text, limit):
    assert metric_of("clip_cap:tiny-clip").network.tokens_if_cut(text) == limit
