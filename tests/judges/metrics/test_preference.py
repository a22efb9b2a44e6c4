"""PickScore, HPS v2.1 and ImageReward on small models, against the authors' formulas written out here."""

from dataclasses import replace

import numpy as np
import open_clip
import pytest
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file
from torch.nn import functional

from local_bench.core.errors import WeightsError
from local_bench.judges.metrics import preferences
from local_bench.judges.metrics.base import Subject, Unscorable
from local_bench.judges.metrics.evaluator import cut_captions
from local_bench.models.cards import card
from local_bench.models.convert import convert, converted_name

from .helpers import make_image, metric_of, noise, saved, values, weights_of

PROMPT = "a poster of a mountain hut, 3 suns"
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
NAMES = ("pick_score", "hps_v2.1", "image_reward")
CARDS = dict(zip(NAMES, ("tiny-pick-score", "tiny-hps", "tiny-image-reward"), strict=True))


def tiny(name):
    return metric_of(f"{name}:{CARDS[name]}")


def normalized(pixels):
    """(height, width, 3) in [0, 1] to (1, 3, height, width)."""
    return torch.from_numpy((pixels - np.float32(MEAN)) / np.float32(STD)).permute(2, 0, 1)[None]


def centre(image):
    """Shortest side to 224 px by Pillow, centre crop."""
    width, height = image.size
    size = (224, int(224 * height / width)) if width <= height else (int(224 * width / height), 224)
    image = image.resize(size, Image.Resampling.BICUBIC)
    left, top = (size[0] - 224) // 2, (size[1] - 224) // 2
    return normalized(np.asarray(image.crop((left, top, left + 224, top + 224)), np.float32) / 255)


@torch.no_grad()
def pick_score(image, prompt):
    """The code in PickScore's README with transformers' own tokenizer, whose vocabulary is the one in open_clip."""
    ours = open_clip.SimpleTokenizer()
    names = {"<start_of_text>": "<|startoftext|>", "<end_of_text>": "<|endoftext|>"}
    vocabulary = {names.get(token, token): i for token, i in ours.encoder.items()}
    tokenizer = transformers.CLIPTokenizer(vocab=vocabulary, merges=list(ours.bpe_ranks))
    model = transformers.AutoModel.from_pretrained(weights_of("tiny-pick-score").folder).eval()
    text = tokenizer(prompt, padding=True, truncation=True, max_length=77, return_tensors="pt")
    scores = model(**text, pixel_values=centre(image)).logits_per_image  # logit_scale.exp() times the cosine
    return scores.item()


@torch.no_grad()
def hps_score(image, prompt):
    """`score` of hpsv2: resized with zero padding, open_clip's own tokenizer, the product of the features."""
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].float() / 255
    height, width = (round(side * 224 / max(image.size)) for side in image.size[::-1])
    pixels = functional.interpolate(pixels, (height, width), mode="bicubic", antialias=True)
    canvas = torch.zeros(1, 3, 224, 224)
    top, left = (224 - height) // 2, (224 - width) // 2
    canvas[:, :, top : top + height, left : left + width] = pixels
    canvas = (canvas - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
    vision = {"image_size": 224, "layers": 2, "width": 160, "head_width": 80, "patch_size": 32}
    text = {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 1, "layers": 1}
    model = open_clip.CLIP(32, vision, text, output_dict=True).eval()
    state = load_file(weights_of("tiny-hps").folder / preferences.HPS_FILE)
    model.load_state_dict({name.removeprefix("state_dict."): tensor.float() for name, tensor in state.items()})
    outputs = model(canvas, open_clip.tokenize([prompt]))
    return torch.diagonal(outputs["image_features"] @ outputs["text_features"].T).item()


@torch.no_grad()
def reward(image, prompt):
    """`score` of ImageReward with BLIP's equations, from the names and shapes of the published checkpoint."""
    weights = weights_of("tiny-image-reward")
    state = load_file(weights.folder / preferences.REWARD_FILE)

    def linear(x, name):
        return functional.linear(x, state[f"{name}.weight"], state[f"{name}.bias"])

    def norm(x, name, eps):
        return functional.layer_norm(x, x.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"], eps)

    def attention(q, k, v, mask=None):
        q, k, v = (x.unflatten(-1, (-1, 64)).transpose(1, 2) for x in (q, k, v))
        logits = q @ k.transpose(-1, -2) / 8
        if mask is not None:
            logits = logits.masked_fill(mask[:, None, None, :] == 0, -10000.0)
        return (logits.softmax(-1) @ v).transpose(1, 2).flatten(2)

    at = "blip.visual_encoder"
    patches = functional.conv2d(
        centre(image), state[f"{at}.patch_embed.proj.weight"], state[f"{at}.patch_embed.proj.bias"], stride=32
    )
    x = torch.cat([state[f"{at}.cls_token"], patches.flatten(2).transpose(1, 2)], 1) + state[f"{at}.pos_embed"]
    for i in range(2):
        block = f"{at}.blocks.{i}"
        q, k, v = linear(norm(x, f"{block}.norm1", 1e-6), f"{block}.attn.qkv").chunk(3, -1)
        x = x + linear(attention(q, k, v), f"{block}.attn.proj")
        inner = functional.gelu(linear(norm(x, f"{block}.norm2", 1e-6), f"{block}.mlp.fc1"))
        x = x + linear(inner, f"{block}.mlp.fc2")
    image_embeds = norm(x, f"{at}.norm", 1e-6)

    vocabulary = (weights.parts["tokenizer"] / "vocab.txt").read_text().split("\n")
    letters = [
        c if i == 0 else f"##{c}" for word in prompt.replace(",", " , ").lower().split() for i, c in enumerate(word)
    ]
    ids = [vocabulary.index(token) for token in ("[CLS]", *letters[:33], "[SEP]")]
    mask = torch.tensor([[1] * len(ids) + [0] * (35 - len(ids))])
    tokens = torch.tensor([ids + [0] * (35 - len(ids))])
    at = "blip.text_encoder"
    y = state[f"{at}.embeddings.word_embeddings.weight"][tokens]
    y = y + state[f"{at}.embeddings.position_embeddings.weight"][:35]
    y = norm(y, f"{at}.embeddings.LayerNorm", 1e-12)
    for i in range(2):
        layer = f"{at}.encoder.layer.{i}"
        for part, masked in (("attention", mask), ("crossattention", None)):
            prefix, source = f"{layer}.{part}", y if part == "attention" else image_embeds
            q, k, v = (
                linear(y, f"{prefix}.self.query"),
                linear(source, f"{prefix}.self.key"),
                linear(source, f"{prefix}.self.value"),
            )
            y = norm(
                y + linear(attention(q, k, v, masked), f"{prefix}.output.dense"), f"{prefix}.output.LayerNorm", 1e-12
            )
        inner = linear(functional.gelu(linear(y, f"{layer}.intermediate.dense")), f"{layer}.output.dense")
        y = norm(y + inner, f"{layer}.output.LayerNorm", 1e-12)
    z = y[:, 0]
    for place in (0, 2, 4, 6, 7):
        z = linear(z, f"mlp.layers.{place}")
    return ((z - 0.16717362830052426) / 1.0333394966054072).item()


@pytest.mark.parametrize(("name", "by_hand"), [*zip(NAMES, (pick_score, hps_score, reward), strict=True)])
def test_the_score_is_that_of_the_authors_formula(tmp_path, name, by_hand):
    images = [make_image(tmp_path, i, (96, 80 + 32 * i)) for i in range(3)]
    pairs = [(images[0], f"{PROMPT} 0"), (images[1], f"{PROMPT} 0"), (images[2], PROMPT), (images[0], f"{PROMPT} 9")]
    scores = values(tiny(name), [Subject(str(i), image, caption=text) for i, (image, text) in enumerate(pairs)])
    assert scores == pytest.approx([by_hand(image.load(), text) for image, text in pairs], abs=2e-5, rel=2e-6)
    assert max(scores[:3]) - min(scores[:3]) > 1e-3
    assert len({round(value, 5) for value in scores}) == 4  # the image and the prompt both count


@pytest.mark.parametrize(("name", "limit", "longest"), [(NAMES[0], 77, 75), (NAMES[1], 77, 75), (NAMES[2], 35, 33)])
def test_a_prompt_that_is_cut_is_counted(tmp_path, name, limit, longest):
    image = make_image(tmp_path, 1)
    texts = ["a " * longest, "a " * longest + "hut", "a " * (longest - 1)]
    samples = [Subject(str(i), image, caption=text) for i, text in enumerate(texts)]
    results = values(tiny(name), samples)
    assert results[0] == pytest.approx(results[1], abs=1e-5)
    assert results[0] != pytest.approx(results[2], abs=1e-5)
    cut = cut_captions({name: tiny(name)}, [(subject, (name,)) for subject in samples])
    assert cut == {name: {"n": 3, "n_cut": 1, "max_tokens": limit}}


def test_prompts_are_normalised_as_by_each_authors_tokenizer(tmp_path):
    image = make_image(tmp_path, 1)
    entity, plain = (Subject(text, image, caption=text) for text in ("fish &amp; chips", "fish & chips"))
    repaired = values(tiny("hps_v2.1"), [entity, plain])
    kept = values(tiny("pick_score"), [entity, plain])
    assert repaired[0] == repaired[1]
    assert kept[0] != kept[1]


def test_image_rewards_tokens_are_those_of_transformers_bert(tmp_path):
    """With the small vocabulary; texts with accents, Chinese characters, control characters and too many words."""
    network = tiny("image_reward").network
    theirs = transformers.BertTokenizer.from_pretrained(weights_of("tiny-image-reward").parts["tokenizer"])
    texts = ["Caf\u00e9, na\u00efve \u00c9toile.", "a\u4e00b \u2028 c\x00d\te", "", "[SEP] x", "word " * 9, "abc " * 11]
    for text in texts:
        expected = theirs(text, padding="max_length", truncation=True, max_length=35, return_tensors="pt")
        _, tokens, mask = network.prepare([noise(1)], text)
        assert tokens.tolist() == expected.input_ids[0].tolist(), text
        assert mask.tolist() == expected.attention_mask[0].tolist(), text


@pytest.mark.parametrize("vocabulary", [None, "[PAD]\n[UNK]\n"])
def test_another_vocabulary_is_refused(tmp_path, vocabulary):
    if vocabulary is not None:
        (tmp_path / "vocab.txt").write_text(vocabulary)
    weights = replace(weights_of("tiny-image-reward"), parts={"tokenizer": tmp_path})
    with pytest.raises(WeightsError, match=r"vocab\.txt .*models fetch tiny-image-reward"):
        preferences.RewardNetwork(weights).tokens_if_cut("a hut")


def test_hps_pads_where_the_others_crop(tmp_path):
    wide = noise(1, (400, 100))
    edge = wide.copy()
    edge.paste((255, 0, 0), (0, 0, 40, 100))
    samples = [Subject(n, saved(i, tmp_path / f"{n}.png"), caption=PROMPT) for n, i in (("a", wide), ("b", edge))]
    assert len(set(values(tiny("hps_v2.1"), samples))) == 2
    assert len(set(values(tiny("pick_score"), samples))) == 1
    assert len(set(values(tiny("image_reward"), samples))) == 1
    with pytest.raises(Unscorable, match="too slender"):
        preferences.padded(Image.new("RGB", (1000, 1)))


def test_identities_name_what_decides_the_scores(tmp_path):
    identities = [tiny(name).network.identity for name in NAMES]
    assert all(item["dtype"] == "float32" and "224" in item["preprocessing"] for item in identities)
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n")
    weights = replace(weights_of("tiny-image-reward"), parts={"tokenizer": tmp_path})
    assert preferences.RewardNetwork(weights).identity != identities[2]


@pytest.mark.parametrize(
    ("name", "file", "network"),
    [
        (NAMES[1], preferences.HPS_FILE, preferences.HpsNetwork),
        (NAMES[2], preferences.REWARD_FILE, preferences.RewardNetwork),
    ],
)
@pytest.mark.parametrize("change", ["drop", "add"])
def test_another_checkpoint_is_refused(tmp_path, name, file, network, change):
    weights = weights_of(CARDS[name])
    state = load_file(weights.folder / file)
    if change == "drop":
        del state[max(tensor for tensor in state if tensor.endswith(("norm1.bias", "ln_1.bias")))]
    else:
        prefix = max(state).partition(".")[0] + "." + ("layers." if name == NAMES[2] else "")
        state[f"{prefix}9.weight"] = torch.ones(1, 1)
    save_file(state, tmp_path / file)
    with pytest.raises(WeightsError, match=r"(?s)checkpoint .*models fetch tiny-"):
        network(replace(weights, folder=tmp_path)).load("cpu")


def test_the_published_pickle_of_hps_becomes_the_file_that_is_read(tmp_path):
    weights = weights_of("tiny-hps")
    state = load_file(weights.folder / preferences.HPS_FILE)
    nested = {"epoch": 1, "state_dict": {name.removeprefix("state_dict."): t for name, t in state.items()}}
    (published,) = card("hps-v2-1", "metric").source.files
    torch.save(nested, tmp_path / published)
    convert(tmp_path / published, tmp_path / converted_name(published), published)
    loaded = preferences.HpsNetwork(replace(weights, folder=tmp_path)).load("cpu").state_dict()
    assert all(torch.equal(loaded[name], tensor.float()) for name, tensor in nested["state_dict"].items())
