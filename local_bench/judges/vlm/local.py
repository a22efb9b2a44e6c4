"""A judge in this process, with transformers and xgrammar, for machines on which vLLM does not run.

For the Qwen-VL classes (`BATCHED`) the KV cache of the system message and the images is computed once and shared by all
questions about them; other classes, and answers after a thought, are generated one request at a time.
Guarantees, on one machine with fixed library versions and torch's deterministic algorithms:

- `logit` requests and sampled requests are processed one at a time. Their replies depend only on the request, bit for
  bit.
- Greedy `json` requests about the same images are processed in batches of up to `batch_size`. Other batch sizes change
  the rounding, which can change a token if two are almost equally probable; with `batch_size=1` these replies also
  depend only on the request. On a CPU, batching does not speed up models of realistic size.
- vLLM gets the same tokens for a request, and the same pixels unless a processor's own limits resize the image. Its
  rounding differs, so its answers are close but not equal.
"""

import inspect
import io
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, TypeVar

import torch
import transformers
import xgrammar
from PIL import Image
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor, DynamicCache, GenerationConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from local_bench.core.environment import collect
from local_bench.core.errors import ConfigError, ServerError, WeightsError
from local_bench.judges.vlm.protocols import (
    REFUSED,
    Prepared,
    Reply,
    Request,
    Shown,
    after_thought,
    failed,
    interleaved,
    last_of,
)
from local_bench.models.tensors import complete

K = TypeVar("K")
BATCHED = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Prefix:
    """The KV cache after the system message and the images, shared by all questions about these images."""

    ids: list[int]
    cache: DynamicCache
    next_position: int
    """Position of the first token after the prefix; less than its length, because an image has few positions."""


def _with_cache(model: Any, cache: DynamicCache) -> dict[str, DynamicCache]:
    """The argument of `forward` that has the cache; its name differs between versions of transformers."""
    return {"cache" if "cache" in inspect.signature(type(model).forward).parameters else "past_key_values": cache}


class PrefixBatch:
    """A left-padded batch of questions after one prefix, each with its own positions."""

    def __init__(self, model: Any, device: torch.device, prefix: Prefix, suffixes: Sequence[list[int]]) -> None:
        self._model, self._device = model, device
        width = max(map(len, suffixes))
        blank = [width - len(ids) for ids in suffixes]
        self._next = [[0] * n + ids for n, ids in zip(blank, suffixes, strict=True)]
        self._positions = torch.arange(width) + prefix.next_position - torch.tensor(blank)[:, None]  # (rows, width)
        self._mask: torch.Tensor | None = None
        if any(blank):
            seen = torch.arange(width) >= torch.tensor(blank)[:, None]
            self._mask = torch.cat([torch.ones(len(suffixes), len(prefix.ids), dtype=torch.bool), seen], dim=1).long()
        self._cache = DynamicCache()
        for i, layer in enumerate(prefix.cache.layers):
            spread = (layer.keys.expand(len(suffixes), -1, -1, -1), layer.values.expand(len(suffixes), -1, -1, -1))
            self._cache.update(*spread, i)

    def read(self) -> torch.Tensor:
        """Logits for the token after each row, (rows, vocabulary), float32 on the CPU."""
        out = self._model(
            input_ids=torch.tensor(self._next, device=self._device),
            position_ids=self._positions.clamp(min=0).expand(3, -1, -1).to(self._device),
            attention_mask=None if self._mask is None else self._mask.to(self._device),
            use_cache=True,
            logits_to_keep=1,
            **_with_cache(self._model, self._cache),
        )
        return out.logits[:, -1].float().cpu()  # type: ignore[no-any-return]

    def step(self, tokens: Sequence[int]) -> torch.Tensor:
        """As `read`, after one more token in each row."""
        self._next = [[token] for token in tokens]
        self._positions = self._positions[:, -1:] + 1
        if self._mask is not None:
            self._mask = torch.nn.functional.pad(self._mask, (0, 1), value=1)
        return self.read()


def pick(logits: torch.Tensor, temperature: float, generator: torch.Generator) -> int:
    """The most probable token (ties: the lowest id), or a token sampled with the generator. `logits`: (vocabulary)."""
    if temperature == 0:
        return int(logits.argmax())
    return int(torch.multinomial(torch.softmax(logits / temperature, dim=-1), 1, generator=generator))


class _Refused(Exception):
    """The model cannot process the request; the message is the reason."""


class _Constrained:
    """The answer to one request, each token picked within a grammar; also a logits processor of `generate`."""

    def __init__(self, grammar: xgrammar.CompiledGrammar, request: Request, labels: Sequence[int] = ()) -> None:
        self._matcher = xgrammar.GrammarMatcher(grammar)
        self._vocabulary = grammar.tokenizer_info.vocab_size
        self._allowed = xgrammar.allocate_token_bitmask(1, self._vocabulary)
        self._request, self._labels = request, list(labels)
        self._generator = torch.Generator().manual_seed(request.seed)
        self.finished: str | None = None
        """The finish reason: the end token was picked (`stop`), or as many tokens as are allowed (`length`)."""
        self.tokens: list[int] = []
        """Without the end token."""
        self.logprobs: list[list[float]] = []
        """Log-probabilities of the labels at each token, if there are labels."""

    def next_token(self, logits: torch.Tensor) -> int:
        """`logits`: (1, vocabulary), float32 on the CPU, which are overwritten."""
        if self._labels:
            self.logprobs.append(torch.log_softmax(logits[0], dim=-1)[self._labels].tolist())
        self._matcher.fill_next_token_bitmask(self._allowed)
        xgrammar.apply_token_bitmask_inplace(logits, self._allowed)
        token = pick(logits[0], self._request.temperature, self._generator)
        accepted = self._matcher.accept_token(token)
        assert accepted, token
        if self._matcher.is_terminated():
            self.finished = "stop"
            return token
        self.tokens.append(token)
        self.finished = "length" if len(self.tokens) >= self._request.max_tokens else None
        return token

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """`scores`, (1, vocabulary), with all but the chosen token at -inf."""
        chosen = torch.full_like(scores, -torch.inf)
        chosen[0, self.next_token(scores[:, : self._vocabulary].float().cpu())] = 0.0
        return chosen

    def ended(self, input_ids: torch.Tensor, _: Any) -> torch.Tensor:
        """The criterion that stops `generate`, (1)."""
        return torch.tensor([self.finished is not None], device=input_ids.device)


@dataclass(frozen=True)
class _ImageInputs:
    pixel_values: torch.Tensor | None
    """(patches of all images, channels x temporal x patch x patch)."""
    grid_thw: torch.Tensor | None
    """(images, 3): patches in time, height and width."""
    tokens: tuple[int, ...]
    """Number of tokens per image."""


class Local:
    """A judge loaded from the folder `weights`; implements `Transport`.

    `load` returns the prepared image; `device` is a torch device string, `dtype` float32, bfloat16 or float16;
    `processor_kwargs` are a card's `mm_processor_kwargs`, and `max_model_len` is as vLLM's. Raises ConfigError for an
    unknown dtype; entering raises ConfigError for a model that transformers has no class for or whose image processor
    has no such argument, and WeightsError for files that cannot be loaded.
    """

    def __init__(
        self,
        weights: Path,
        load: Callable[[Shown], Prepared],
        device: str,
        dtype: str,
        batch_size: int = 8,
        processor_kwargs: Mapping[str, Any] = MappingProxyType({}),
        max_model_len: int = 2**30,
    ) -> None:
        if dtype not in _DTYPES:
            raise ConfigError(f"the judge's precision {dtype!r} is unknown: use {', '.join(_DTYPES)}")
        self._weights = weights
        self._load = load
        self._device = torch.device(device)
        self._dtype = _DTYPES[dtype]
        self._batch_size = batch_size
        self._processor_kwargs = processor_kwargs
        self._longest = max_model_len
        self._grammars: dict[str, xgrammar.CompiledGrammar] = {}
        self._prompt_tokens = self._cached_tokens = 0
        self._model: Any = None
        self._processor: Any = None

    def __enter__(self) -> Self:
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        offline: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        try:
            kind = AutoConfig.from_pretrained(self._weights, **offline).model_type
            if kind not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
                raise ConfigError(
                    f"judge.weights: {self._weights} is a {kind} model, for which transformers has no class that takes "
                    "images and text: choose another model or serve it with vLLM"
                )
            self._processor = AutoProcessor.from_pretrained(self._weights, **offline)
            known = getattr(self._processor.image_processor, "valid_kwargs", None)
            unknown = next((key for key in self._processor_kwargs if known and key not in known.__annotations__), None)
            if unknown is not None:
                kind = type(self._processor.image_processor).__name__
                raise ConfigError(f"mm_processor_kwargs: {kind} has no {unknown!r}: correct the judge's card")
            with complete():
                self._model = AutoModelForImageTextToText.from_pretrained(
                    self._weights,
                    dtype=self._dtype,
                    device_map={"": self._device},
                    attn_implementation="sdpa",
                    use_safetensors=True,
                    **offline,
                ).eval()
        except (OSError, ValueError, KeyError) as e:
            raise WeightsError(
                f"the judge in {self._weights} cannot be loaded ({e}): fetch it or give its complete folder"
            ) from e
        except torch.OutOfMemoryError:
            raise self._out_of_memory("loading") from None
        self._tokenizer = self._processor.tokenizer
        self._config = self._model.config
        # The penalties and limits of the model's own file would change its answers, as in vLLM.
        self._model.generation_config = GenerationConfig()
        self._vocabulary = int(self._config.get_text_config().vocab_size)
        self._longest = min(self._longest, int(self._config.get_text_config().max_position_embeddings))
        self._compiler = xgrammar.GrammarCompiler(
            xgrammar.TokenizerInfo.from_huggingface(self._tokenizer, vocab_size=self._vocabulary)
        )
        return self

    def __exit__(self, *error: Any) -> None:
        self._model = None
        self._free()

    def complete(self, requests: Iterable[tuple[K, Request]], at_once: int | None = None) -> Iterator[tuple[K, Reply]]:
        """Yield (key, reply) as `Transport.complete`; requests with the same images should be consecutive.

        The reply to a prompt that is too long has `refusal` set. When memory runs out, the batch size is halved;
        raises ServerError if a single question does not fit.
        """
        most = min(self._batch_size, at_once or self._batch_size)
        for (thinks, _, shown, _), group in itertools.groupby(
            requests, key=lambda kr: (kr[1].thought_end, kr[1].system, kr[1].shown, kr[1].captions)
        ):
            try:
                if self._config.model_type in BATCHED and not thinks:
                    yield from self._answer_group(shown, group, most)
                else:
                    yield from ((key, self._one(request)) for key, request in group)
            except torch.OutOfMemoryError:
                raise self._out_of_memory("one question") from None

    def restart(self) -> None:
        raise ServerError("the judge runs in this process and cannot be restarted: run the same command again")

    def counters(self) -> dict[str, float]:
        """Tokens of all prompts without padding, and those served from the prefix cache."""
        return {"prompt_tokens": self._prompt_tokens, "cached_tokens": self._cached_tokens}

    def _answer_group(
        self, shown: tuple[Shown, ...], requests: Iterable[tuple[K, Request]], most: int
    ) -> Iterator[tuple[K, Reply]]:
        inputs: _ImageInputs | None = None
        prefix: Prefix | None = None
        waiting: list[tuple[K, Request, list[int]]] = []
        for key, request in requests:
            reply: Reply | None = None
            try:
                inputs = inputs or self._preprocess(shown)
                ids = self._prompt(request, inputs)
                self._prompt_tokens += len(ids)
                if prefix is None:
                    prefix = self._prefill(ids, inputs)
                else:
                    self._cached_tokens += len(prefix.ids)
                assert ids[: len(prefix.ids)] == prefix.ids
                suffix = ids[len(prefix.ids) :]
                if request.labels:
                    reply = self._choose(prefix, request, suffix)
                elif request.temperature > 0:
                    reply = self._generate(prefix, [request], [suffix])[0]
                else:
                    waiting.append((key, request, suffix))
            except _Refused as e:
                reply = Reply(str(e), refusal=REFUSED)
            except Exception as e:  # noqa: BLE001  # raised again if it is not of this request
                reply = failed(e)
            if reply is not None:
                yield key, reply
            if prefix and len(waiting) >= min(most, self._batch_size):  # may have been halved
                yield from self._generate_all(prefix, waiting)
                waiting = []
        if prefix and waiting:
            yield from self._generate_all(prefix, waiting)

    def _one(self, request: Request) -> Reply:
        try:
            return self._generated(request)
        except (_Refused, ValueError) as e:
            return Reply(str(e)[:2000], refusal=REFUSED)
        except Exception as e:  # noqa: BLE001  # raised again if it is not of this request
            return failed(e)

    @torch.inference_mode()
    def _generated(self, request: Request) -> Reply:
        """The reply by transformers' `generate`.

        Nothing is shared between questions about the same images, so it is slower than the prefix batches of the
        Qwen-VL classes. Raises _Refused, and ValueError for images or a text that the processor does not take.
        """
        images = [{"type": "image", "image": self._decoded(image)} for image in request.shown]
        grammar = self._grammar(request)
        inputs = self._processor.apply_chat_template(
            _messages(request, images),
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            processor_kwargs={**self._processor_kwargs, "return_tensors": "pt"},
            **dict(request.chat_template_kwargs),
        ).to(self._model.device, self._model.dtype)
        n = inputs["input_ids"].shape[1]
        self._check_length(n, request)
        labels = [self._tokenizer.encode(label, add_special_tokens=False)[-1] for label in request.labels]
        constrained = _Constrained(grammar, request, labels)
        padding = self._tokenizer.pad_token_id or 0
        self._model.generate(
            **inputs,
            generation_config=GenerationConfig(max_new_tokens=request.max_tokens, pad_token_id=padding),
            logits_processor=[constrained],
            stopping_criteria=[constrained.ended],
        )
        self._prompt_tokens += n
        text = self._tokenizer.decode(constrained.tokens, skip_special_tokens=not request.thought_end)
        if not labels:
            return Reply(text, constrained.finished)
        at = last_of(text, [self._tokenizer.decode([token]) for token in constrained.tokens])
        return Reply(text, constrained.finished, dict(zip(request.labels, constrained.logprobs[at], strict=True)))

    def _decoded(self, shown: Shown) -> Image.Image:
        return Image.open(io.BytesIO(self._load(shown).png), formats=["PNG"])

    def _generate_all(self, prefix: Prefix, batch: list[tuple[K, Request, list[int]]]) -> Iterator[tuple[K, Reply]]:
        """Answer the requests in one batch; halve the batch size permanently when memory runs out."""
        while batch:
            now = batch[: self._batch_size]
            replies: list[Reply] | None = None
            try:
                replies = self._generate(prefix, [request for _, request, _ in now], [suffix for _, _, suffix in now])
            except torch.OutOfMemoryError:
                if len(now) == 1:
                    raise
            except Exception as e:  # noqa: BLE001  # raised again if it is not of one request
                replies = [failed(e)]
                if len(now) > 1:
                    replies = [reply for entry in now for _, reply in self._generate_all(prefix, [entry])]
            if replies is None:  # outside of `except`, so that the traceback no longer references the batch's tensors
                self._batch_size = len(now) // 2
                self._free()
                continue
            yield from zip((key for key, _, _ in now), replies, strict=True)
            batch = batch[len(now) :]

    def _preprocess(self, shown: tuple[Shown, ...]) -> _ImageInputs:
        """Preprocess the images at their given sizes, if the card's arguments of the processor do not change them."""
        if not shown:
            return _ImageInputs(None, None, ())
        processor = self._processor.image_processor
        images = [self._decoded(picture) for picture in shown]
        largest = max(image.width * image.height for image in images)
        size = {"shortest_edge": (processor.patch_size * processor.merge_size) ** 2, "longest_edge": largest}
        try:
            inputs = processor(images=images, size=size, return_tensors="pt", **self._processor_kwargs)
        except ValueError as e:  # an aspect ratio of more than 200:1
            raise _Refused(str(e)) from e
        grid = inputs["image_grid_thw"]
        expected = [(1, image.height // processor.patch_size, image.width // processor.patch_size) for image in images]
        assert self._processor_kwargs or [tuple(row) for row in grid.tolist()] == expected, (grid, size)
        tokens = (grid.prod(dim=1) // processor.merge_size**2).tolist()
        return _ImageInputs(inputs["pixel_values"].to(self._device, self._dtype), grid.to(self._device), tuple(tokens))

    def _prompt(self, request: Request, inputs: _ImageInputs) -> list[int]:
        """The token ids of the prompt with the judge's chat template: images first, each after its caption."""
        messages = _messages(request, [{"type": "image"} for _ in inputs.tokens])
        text = self._processor.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False, **dict(request.chat_template_kwargs)
        )
        image, sizes = self._config.image_token_id, iter(inputs.tokens)
        ids: list[int] = []
        for token in self._tokenizer(text, add_special_tokens=False)["input_ids"]:
            # The first image tokens are those of the images; later ones are part of the text.
            ids += [token] * (next(sizes, 1) if token == image else 1)
        self._check_length(len(ids), request)
        return ids

    def _check_length(self, n_tokens: int, request: Request) -> None:
        if n_tokens + request.max_tokens > self._longest:
            raise _Refused(
                f"the prompt has {n_tokens} tokens, which with {request.max_tokens} for the answer exceeds the judge's "
                f"maximum of {self._longest}"
            )

    @torch.inference_mode()
    def _prefill(self, ids: list[int], inputs: _ImageInputs) -> Prefix:
        """Prefill the prompt up to the last image; without images the prefix is empty."""
        if inputs.grid_thw is None:
            return Prefix([], DynamicCache(), 0)
        image = self._config.image_token_id
        marks = [at for at, i in enumerate(ids) if i == image]
        ids = ids[: marks[sum(inputs.tokens) - 1] + 1]
        row = torch.tensor([ids], device=self._device)  # (1, prefix)
        kinds = (row == image).int()
        positions, _ = self._model.model.get_rope_index(
            input_ids=row, mm_token_type_ids=kinds, image_grid_thw=inputs.grid_thw
        )  # (3, 1, prefix)
        self._model.model(
            input_ids=row,
            position_ids=positions,
            pixel_values=inputs.pixel_values,
            image_grid_thw=inputs.grid_thw,
            mm_token_type_ids=kinds,
            use_cache=True,
            **_with_cache(self._model, cache := DynamicCache()),
        )
        return Prefix(ids, cache, int(positions.max()) + 1)

    @torch.inference_mode()
    def _choose(self, prefix: Prefix, request: Request, suffix: list[int]) -> Reply:
        logits = PrefixBatch(self._model, self._device, prefix, [suffix]).read()[0]
        logprobs = torch.log_softmax(logits, dim=-1)
        tokens = {label: self._tokenizer.encode(label, add_special_tokens=False) for label in request.labels}
        assert all(len(ids) == 1 for ids in tokens.values()), tokens
        scores = {label: float(logprobs[ids[0]]) for label, ids in tokens.items()}
        return Reply(max(sorted(scores), key=scores.__getitem__), "length", scores)

    @torch.inference_mode()
    def _generate(self, prefix: Prefix, requests: Sequence[Request], suffixes: Sequence[list[int]]) -> list[Reply]:
        rows = PrefixBatch(self._model, self._device, prefix, suffixes)
        answers = [_Constrained(self._grammar(request), request) for request in requests]
        logits = rows.read()  # (rows, vocabulary)
        while True:  # finished rows continue with an arbitrary token, which is ignored
            following = [0 if a.finished else a.next_token(logits[i : i + 1]) for i, a in enumerate(answers)]
            if all(answer.finished for answer in answers):
                break
            logits = rows.step(following)
        decode = self._tokenizer.decode
        return [Reply(decode(answer.tokens, skip_special_tokens=True), answer.finished) for answer in answers]

    def _grammar(self, request: Request) -> xgrammar.CompiledGrammar:
        """The grammar of the answer, after a thought if the judge writes one."""
        # The schema unsorted: the order of its properties is their order in the answer.
        key = json.dumps([request.thought_end, request.labels, request.schema])
        if key in self._grammars:
            return self._grammars[key]
        if request.thought_end:
            grammar = self._compiler.compile_structural_tag(after_thought(request))
        elif request.labels:
            grammar = self._compiler.compile_grammar("root ::= " + " | ".join(map(json.dumps, request.labels)))
        else:
            schema = json.dumps(request.schema)
            grammar = self._compiler.compile_json_schema(schema, any_whitespace=False, separators=(",", ":"))
        self._grammars[key] = grammar
        return grammar

    def _out_of_memory(self, step: str) -> ServerError:
        return ServerError(
            f"{self._device} has too little free memory for {step} with the judge in {self._weights}: use a smaller "
            "judge, or free memory, then run the same command again"
        )

    def _free(self) -> None:
        collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()


def _messages(request: Request, images: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    system = [{"role": "system", "content": [{"type": "text", "text": request.system}]}] if request.system else []
    return [*system, {"role": "user", "content": interleaved(request, images)}]
