"""Encodings on disk: loaded as stored, shared tensors stored once, and shapes known without reading the tensors."""

import torch

from local_bench.generators.base import EncodedPrompt
from local_bench.runs.worker import PromptEmbeddings


def encoded(seed, tokens):
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        "prompt_embeds": torch.randn(1, tokens, 64, generator=generator).to(torch.bfloat16),
        "negative_prompt_embeds": torch.ones(1, 333, 64, dtype=torch.bfloat16),
        "pooled_prompt_embeds": torch.randn(1, 8, generator=generator),
    }
    return EncodedPrompt(tensors, {"t5": seed})


def test_stored_tensors_are_returned_with_their_shape(tmp_path):
    store = PromptEmbeddings(tmp_path)
    store.put("ab", EncodedPrompt({}))
    assert store.shape("ab") == ((), {})
    for key, seed, tokens in (("aa1", 1, 7), ("bb2", 2, 9)):
        one = encoded(seed, tokens)
        store.put(key, one)
        loaded = PromptEmbeddings(tmp_path).get(key)
        assert set(loaded.tensors) == set(one.tensors)
        assert all(torch.equal(loaded.tensors[name], tensor) for name, tensor in one.tensors.items())
        assert loaded.truncated_tokens == one.truncated_tokens
        assert store.shape(key) == (one.shape, one.truncated_tokens)


def test_a_shared_negative_prompt_is_stored_once(tmp_path):
    store = PromptEmbeddings(tmp_path)
    for i in range(10):
        store.put(f"{i:02}", encoded(i, 4))
    size = sum(path.stat().st_size for path in tmp_path.rglob("*.safetensors"))
    negative, own = 333 * 64 * 2, 4 * 64 * 2 + 8 * 4
    assert negative + 10 * own < size < 2 * negative + 10 * (own + 500)
