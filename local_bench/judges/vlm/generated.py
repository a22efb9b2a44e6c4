"""Answers to single requests with transformers' `generate`, for `local`: any class of `AutoModelForImageTextToText`.

The prompt is made by the model's own processor and chat template. Nothing is shared between questions about the same
images, so it is slower than the prefix batches of the Qwen-VL classes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import xgrammar
from PIL import Image
from transformers import GenerationConfig

from local_bench.judges.vlm.chat_api import interleaved, last_of
from local_bench.judges.vlm.prefix_batch import pick
from local_bench.judges.vlm.protocols import Reply, Request


class TooLong(Exception):
    """The prompt exceeds the model's context; the message has the numbers."""


class _Constrained:
    """A logits processor that picks each token within a grammar."""

    def __init__(self, grammar: xgrammar.CompiledGrammar, labels: list[int], request: Request) -> None:
        self._matcher = xgrammar.GrammarMatcher(grammar)
        self._vocabulary = grammar.tokenizer_info.vocab_size
        self._allowed = xgrammar.allocate_token_bitmask(1, self._vocabulary)
        self._labels = labels
        self._temperature = request.temperature
        self._generator = torch.Generator().manual_seed(request.seed)
        self.tokens: list[int] = []
        """Without the end token."""
        self.logprobs: list[list[float]] = []
        """Log-probabilities of the labels at each token."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """`scores`, (1, vocabulary), with all but the chosen token at -inf."""
        logits = scores[:, : self._vocabulary].float().cpu()
        self.logprobs.append(torch.log_softmax(logits[0], dim=-1)[self._labels].tolist())
        self._matcher.fill_next_token_bitmask(self._allowed)
        xgrammar.apply_token_bitmask_inplace(logits, self._allowed)
        token = pick(logits[0], self._temperature, self._generator)
        assert self._matcher.accept_token(token)
        if not self.ended(input_ids, None):
            self.tokens.append(token)
        chosen = torch.full_like(scores, -torch.inf)
        chosen[0, token] = 0.0
        return chosen

    def ended(self, input_ids: torch.Tensor, _: Any) -> torch.Tensor:
        """The criterion that stops `generate`, (1): the end token was picked."""
        return torch.tensor([self._matcher.is_terminated()], device=input_ids.device)


@torch.inference_mode()
def generated(
    model: Any,
    processor: Any,
    request: Request,
    images: Sequence[Image.Image],
    grammar: xgrammar.CompiledGrammar,
    processor_kwargs: Mapping[str, Any],
) -> tuple[int, Reply]:
    """The number of tokens of the prompt, and the reply. Raises TooLong, and ValueError for images or a text that the
    processor does not take."""
    pieces = interleaved(request, [{"type": "image", "image": image} for image in images])
    messages: list[dict[str, Any]] = [{"role": "user", "content": pieces}]
    if request.system:
        messages.insert(0, {"role": "system", "content": [{"type": "text", "text": request.system}]})
    inputs = processor.apply_chat_template(
        messages,
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        processor_kwargs={**processor_kwargs, "return_tensors": "pt"},
        **dict(request.chat_template_kwargs),
    ).to(model.device, model.dtype)
    n, longest = inputs["input_ids"].shape[1], model.config.get_text_config().max_position_embeddings
    if n + request.max_tokens > longest:
        raise TooLong(
            f"the prompt has {n} tokens, which with {request.max_tokens} for the answer exceeds the judge's maximum of "
            f"{longest}"
        )
    tokenizer = processor.tokenizer
    labels = [tokenizer.encode(label, add_special_tokens=False)[-1] for label in request.labels]
    constrained = _Constrained(grammar, labels, request)
    model.generate(
        **inputs,
        generation_config=GenerationConfig(max_new_tokens=request.max_tokens, pad_token_id=tokenizer.pad_token_id or 0),
        logits_processor=[constrained],
        stopping_criteria=[constrained.ended],
    )
    text = tokenizer.decode(constrained.tokens, skip_special_tokens=not request.thought_end)
    reason = "stop" if constrained.ended(inputs["input_ids"], None) else "length"
    if not labels:
        return n, Reply(text, reason)
    at = last_of(text, [tokenizer.decode([token]) for token in constrained.tokens])
    return n, Reply(text, reason, dict(zip(request.labels, constrained.logprobs[at], strict=True)))
