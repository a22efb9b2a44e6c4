"""Stage `text`: encoders that have understood a prompt before anything is drawn by it.

A diffusion loss teaches a text encoder slowly which colour belongs to which figure: naming the right things anywhere is
almost as good to it as naming them at the right place, and FLUX gives its text tokens no positions, so all that binds
them is what T5 itself has written into them. So T5 and CLIP are taught first, by words alone: every token of a phrase
about a figure is to tell that figure's shape, colour, size and place; every token of an edit all that is asked; CLIP's
pooled vector the whole scene by its places. That takes minutes. Both are then frozen, and shared by all generators.
"""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from transformers import (
    CLIPTextConfig,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    T5Config,
    T5EncoderModel,
    T5Tokenizer,
)

from examples.miniature.data import Worded, train_edit, train_scene, worded_edit, worded_scene
from examples.miniature.loop import Loss, Machine, Models, Stage, rng_of, save, train
from examples.miniature.vocabulary import CLIP_TOKENS, saved
from local_bench.suites.printshop.phrases import KINDS
from local_bench.suites.printshop.scene import BACKGROUNDS, COLOURS, PLACES, SHAPES, SIZES, Figure

STAGE = Stage("text", seed=11, steps=1200, lr_muon=4e-3, lr_adam=3e-3, ema=0.995, masters=False)
T5_WIDTH, T5_LAYERS = 128, 4
CLIP_WIDTH, CLIP_LAYERS = 64, 2
"""Two of them side by side are as wide as T5, which Stable Diffusion 3 needs."""
TOKENS = 32
"""As many as the cards ask for, and as the longest prompt has."""
_BATCH = 64
_IGNORED = -100
_VALUES: dict[str, tuple[str, ...]] = {
    "kind": ("caption", *KINDS),
    "shape": ("", *SHAPES),
    "colour": ("", *COLOURS),
    "size": ("", *SIZES),
    "place": ("", *PLACES),
    "background": ("", *BACKGROUNDS),
    "new_shape": ("", *SHAPES),
}
_POOLED = {**_VALUES, **{f"{place} {of}": _VALUES[of] for place in PLACES for of in ("shape", "colour", "size")}}


class Heads(nn.Module):
    """One linear reading of a vector for each thing that it is to tell; thrown away after the stage."""

    def __init__(self, width: int, values: dict[str, tuple[str, ...]]) -> None:
        super().__init__()
        self.sizes = [len(of) for of in values.values()]
        self.proj_out = nn.Linear(width, sum(self.sizes))

    def loss(self, vectors: torch.Tensor, wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean cross-entropy, and whether each vector tells all that it should; `wanted` is [n, things]."""
        parts = self.proj_out(vectors).split(self.sizes, -1)
        lost = [F.cross_entropy(p, w, ignore_index=_IGNORED) for p, w in zip(parts, wanted.unbind(-1), strict=True)]
        right = [(p.argmax(-1) == w) | (w == _IGNORED) for p, w in zip(parts, wanted.unbind(-1), strict=True)]
        used = [loss for loss in lost if loss.isfinite()]
        return torch.stack(used).mean(), torch.stack(right).all(0)


def encoders(folder: Path) -> tuple[CLIPTokenizer, T5Tokenizer, CLIPTextModelWithProjection, T5EncoderModel]:
    """Tokenizers as saved in `folder`, and the encoders with the stage's first weights."""
    clip_words, t5_words = saved(folder)
    torch.manual_seed(STAGE.seed)
    clip = CLIPTextModelWithProjection(
        CLIPTextConfig(
            vocab_size=len(clip_words),
            hidden_size=CLIP_WIDTH,
            intermediate_size=2 * CLIP_WIDTH,
            num_hidden_layers=CLIP_LAYERS,
            num_attention_heads=2,
            max_position_embeddings=CLIP_TOKENS,
            projection_dim=CLIP_WIDTH,
            bos_token_id=clip_words.bos_token_id,
            eos_token_id=clip_words.eos_token_id,
            pad_token_id=clip_words.pad_token_id,
        )
    )
    t5 = T5EncoderModel(
        T5Config(
            vocab_size=len(t5_words),
            d_model=T5_WIDTH,
            d_kv=32,
            d_ff=T5_WIDTH,
            num_layers=T5_LAYERS,
            num_heads=4,
            feed_forward_proj="gated-gelu",
            dropout_rate=0.0,
            pad_token_id=0,
            eos_token_id=1,
            decoder_start_token_id=0,
        )
    )
    for name, p in (*clip.named_parameters(), *t5.named_parameters()):
        if p.ndim == 2:
            nn.init.normal_(p, std=0.5 if "shared" in name or "token_embedding" in name else 0.05)
    return clip_words, t5_words, clip, t5


def run(machine: Machine) -> bool:
    """Trains the stage; its outcome is `text.trained.pt`."""
    clip_words, t5_words, clip, t5 = encoders(machine.work)
    heads = {"t5_heads": Heads(T5_WIDTH, _VALUES), "pooled_heads": Heads(CLIP_WIDTH, _POOLED)}
    projected = {"projected_heads": Heads(CLIP_WIDTH, _POOLED)}
    models = Models(STAGE, machine, {"clip": clip, "t5": t5, **heads, **projected})

    def loss(step: int, steps: int) -> Loss:
        rng = rng_of(STAGE, step)
        batch = [_sample(rng) for _ in range(_BATCH)]
        length = TOKENS if rng.random() < 0.8 else int(rng.choice([40, 64, 128]))
        return _loss(models.run, batch, clip_words, t5_words, length, machine.device)

    done = train(models, loss)
    averaged = models.averaged()
    save({name: averaged[name].state_dict() for name in ("clip", "t5")}, machine.work / "text.trained.pt")
    rng = np.random.default_rng(99)
    with torch.no_grad():
        _, told = _loss(averaged, [_sample(rng) for _ in range(500)], clip_words, t5_words, TOKENS, machine.device)
    print(f"text, 500 fresh prompts: { ({name: round(value, 4) for name, value in told.items()}) }", flush=True)
    return done


def trained(machine: Machine) -> tuple[CLIPTokenizer, T5Tokenizer, CLIPTextModelWithProjection, T5EncoderModel]:
    """What the stage made, frozen."""
    clip_words, t5_words, clip, t5 = encoders(machine.work)
    kept = torch.load(machine.work / "text.trained.pt", map_location="cpu", weights_only=True)
    clip.load_state_dict(kept["clip"])
    t5.load_state_dict(kept["t5"])
    frozen = (model.to(machine.device).eval().requires_grad_(False) for model in (clip, t5))
    return clip_words, t5_words, *frozen  # type: ignore[return-value]


def _sample(rng: np.random.Generator) -> Worded:
    if rng.random() < 0.3:
        return worded_edit(train_edit(rng), rng)
    return worded_scene(train_scene(rng, 0.7), rng)


def _loss(
    run: dict[str, nn.Module],
    batch: list[Worded],
    clip_words: CLIPTokenizer,
    t5_words: T5Tokenizer,
    length: int,
    device: torch.device,
) -> Loss:
    texts = [worded.text for worded in batch]
    clip_ids = clip_words(texts, padding=True, truncation=True, return_tensors="pt").input_ids.to(device)
    t5_ids = t5_words(
        texts,
        padding="max_length",
        max_length=length,
        truncation=True,
        return_tensors="pt",
        return_offsets_mapping=True,
    )
    wanted = torch.from_numpy(_wanted(batch, t5_ids.offset_mapping.numpy(), t5_ids.attention_mask.numpy())).to(device)
    hidden = run["t5"](t5_ids.input_ids.to(device))[0]
    asked = (wanted != _IGNORED).any(-1)
    token_loss, token_right = run["t5_heads"].loss(hidden[asked], wanted[asked])
    out = run["clip"](clip_ids)
    whole = torch.from_numpy(np.stack([_whole(worded) for worded in batch])).to(device)
    pooled_loss, pooled_right = run["pooled_heads"].loss(pooled(out.last_hidden_state, clip_ids, clip_words), whole)
    projected_loss, _ = run["projected_heads"].loss(out.text_embeds, whole)
    told = {"tokens": float(token_right.float().mean()), "pooled": float(pooled_right.float().mean())}
    return token_loss + pooled_loss + 0.3 * projected_loss, told


def pooled(hidden: torch.Tensor, ids: torch.Tensor, words: CLIPTokenizer) -> torch.Tensor:
    """CLIP's vector at the first end of text, as its own class pools it: [n, width] of [n, tokens, width]."""
    ends = (ids == words.eos_token_id).int().argmax(-1)
    return hidden[torch.arange(len(ids), device=ids.device), ends]


def _wanted(batch: list[Worded], offsets: np.ndarray, there: np.ndarray) -> np.ndarray:
    """What each T5 token is to tell, int64 [n, tokens, things]; _IGNORED where it may tell anything."""
    wanted = np.full((*there.shape, len(_VALUES)), _IGNORED, np.int64)
    names = list(_VALUES)
    for row, worded in enumerate(batch):
        words = there[row] == 1
        if worded.edit is not None:
            wanted[row, words] = _edit(worded)
            continue
        assert worded.scene is not None
        wanted[row, words, names.index("kind")] = 0
        wanted[row, words, names.index("background")] = _VALUES["background"].index(worded.scene.background)
        for start, end, figure in worded.spans:
            inside = words & (offsets[row, :, 0] >= start) & (offsets[row, :, 1] <= end) & (offsets[row, :, 1] > 0)
            for name in ("shape", "colour", "size", "place"):
                wanted[row, inside, names.index(name)] = _VALUES[name].index(getattr(figure, name))
    return wanted


def _edit(worded: Worded) -> np.ndarray:
    assert worded.edit is not None
    slots = {"kind": worded.edit.kind, **dict(worded.edit.slots)}
    return np.array([of.index(slots.get(name, "")) for name, of in _VALUES.items()])


def _whole(worded: Worded) -> np.ndarray:
    """What the pooled vector is to tell, int64 [things]."""
    rest = [0] * (len(_POOLED) - len(_VALUES))
    if worded.edit is not None:
        return np.concatenate([_edit(worded), np.array(rest)])
    assert worded.scene is not None
    at: dict[str, Figure] = {figure.place: figure for figure in worded.scene.figures}
    slots = [0] * len(_VALUES)
    slots[list(_VALUES).index("background")] = _VALUES["background"].index(worded.scene.background)
    found = [
        _VALUES[of].index(getattr(at[place], of)) if place in at else 0
        for place in PLACES
        for of in ("shape", "colour", "size")
    ]
    return np.array([*slots, *found])
