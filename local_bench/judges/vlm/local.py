"""A judge in this process, by transformers and xgrammar: for a laptop, for Windows, for wherever vLLM does not run.

The model reads a system message and pictures once and every question about them from there, so a question costs its
own words only. What is promised, on one machine with one set of libraries and torch's deterministic algorithms:

- `logit` requests, and sampled ones, are read and answered one at a time. Their replies depend on nothing but the
  request, bit for bit, whatever stands beside them.
- greedy `json` requests about the same pictures are written up to `batch_size` at a time. Batches of other sizes round
  otherwise in the last bits, which can change a word where two were all but equally probable; `batch_size=1` makes
  these, too, depend on nothing but the request. On a CPU a batch gains nothing with models of real size.
- vLLM makes the same tokens of a request, and the same pixels where its own limits leave the picture at its size. It
  rounds otherwise: its answers are close, not equal.
"""

import gc
import io
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import torch
import transformers
import xgrammar
from PIL import Image
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor, DynamicCache

from local_bench.core.errors import ConfigError, ServerError, WeightsError
from local_bench.judges.vlm.chat_api import REFUSED, interleaved
from local_bench.judges.vlm.images import Prepared
from local_bench.judges.vlm.prefix_batch import Prefix, PrefixBatch, pick
from local_bench.judges.vlm.protocols import Reply, Request, Shown

K = TypeVar("K")
FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class _Refused(Exception):
    """This request cannot be put to the model; the message says why."""


@dataclass(frozen=True)
class _Pictures:
    """What the image processor makes of the pictures of a request."""

    pixel_values: torch.Tensor | None
    """(patches of all pictures, channels x temporal x patch x patch)."""
    grid_thw: torch.Tensor | None
    """(pictures, 3): patches in time, height and width."""
    tokens: tuple[int, ...]
    """How many tokens each picture takes."""


class Local:
    """A Qwen-VL judge loaded from the folder `weights`; implements `Transport`.

    `load` gives the prepared picture; `device` is as torch names it, `dtype` float32, bfloat16 or float16. Entering
    raises ConfigError for a model of another family or an unknown dtype, WeightsError for files that do not load.
    """

    def __init__(
        self, weights: Path, load: Callable[[Shown], Prepared], device: str, dtype: str, batch_size: int = 8
    ) -> None:
        if dtype not in _DTYPES:
            raise ConfigError(f"the judge's precision {dtype!r} is not known: use {', '.join(_DTYPES)}")
        self._weights = weights
        self._load = load
        self._device = torch.device(device)
        self._dtype = _DTYPES[dtype]
        self._batch_size = batch_size
        self._grammars: dict[str, xgrammar.CompiledGrammar] = {}
        self._prompt_tokens = self._cached_tokens = 0
        self._model: Any = None
        self._processor: Any = None

    def __enter__(self) -> Self:
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        here: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        try:
            config = AutoConfig.from_pretrained(self._weights, **here)
            if config.model_type not in FAMILIES:
                raise ConfigError(
                    f"judge.weights: {self._weights} holds a {config.model_type} model, and a judge in this process is "
                    f"one of {', '.join(FAMILIES)}: choose another or serve it with vLLM"
                )
            self._processor = AutoProcessor.from_pretrained(self._weights, **here)
            self._model = AutoModelForImageTextToText.from_pretrained(
                self._weights,
                dtype=self._dtype,
                device_map={"": self._device},
                attn_implementation="sdpa",
                use_safetensors=True,
                **here,
            ).eval()
        except (OSError, ValueError, KeyError) as e:
            raise WeightsError(
                f"the judge in {self._weights} cannot be loaded ({e}): fetch or give its whole folder"
            ) from e
        except torch.OutOfMemoryError:
            raise self._no_room("to load") from None
        self._tokenizer = self._processor.tokenizer
        self._config = self._model.config
        self._vocabulary = int(self._config.get_text_config().vocab_size)
        self._longest = int(self._config.get_text_config().max_position_embeddings)
        self._compiler = xgrammar.GrammarCompiler(
            xgrammar.TokenizerInfo.from_huggingface(self._tokenizer, vocab_size=self._vocabulary)
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._model = None
        self._free()

    def ask(self, requests: Iterable[tuple[K, Request]], at_once: int | None = None) -> Iterator[tuple[K, Reply]]:
        """Yields (key, reply) as `Transport.ask`; requests with the same pictures should follow one another.

        A prompt that is too long for the model is refused in its reply. ServerError where the memory does not hold a
        single question; batches shrink before that.
        """
        most = min(self._batch_size, at_once or self._batch_size)
        for (_, shown, _), alike in itertools.groupby(
            requests, key=lambda kr: (kr[1].system, kr[1].shown, kr[1].captions)
        ):
            try:
                yield from self._ask_alike(shown, alike, most)
            except torch.OutOfMemoryError:
                raise self._no_room("for one question") from None

    def restart(self) -> None:
        raise ServerError("the judge runs in this process and cannot be restarted: run the same command again")

    def counters(self) -> dict[str, float]:
        """Tokens of all prompts without padding, and those of them that were read for an earlier question."""
        return {"prompt_tokens": self._prompt_tokens, "cached_tokens": self._cached_tokens}

    def _ask_alike(
        self, shown: tuple[Shown, ...], requests: Iterable[tuple[K, Request]], most: int
    ) -> Iterator[tuple[K, Reply]]:
        pictures: _Pictures | None = None
        prefix: Prefix | None = None
        waiting: list[tuple[K, Request, list[int]]] = []
        for key, request in requests:
            try:
                pictures = pictures or self._look(shown)
                ids = self._prompt(request, pictures)
            except _Refused as e:
                yield key, Reply(str(e), refusal=REFUSED)
                continue
            self._prompt_tokens += len(ids)
            if prefix is None:
                prefix = self._begin(ids, pictures)
            else:
                self._cached_tokens += len(prefix.ids)
            assert ids[: len(prefix.ids)] == prefix.ids
            words = ids[len(prefix.ids) :]
            if request.labels:
                yield key, self._choose(prefix, request, words)
            elif request.temperature > 0:
                yield key, self._write(prefix, [request], [words])[0]
            else:
                waiting.append((key, request, words))
            if len(waiting) >= min(most, self._batch_size):  # which memory may have lowered
                yield from self._written(prefix, waiting)
                waiting = []
        if prefix and waiting:
            yield from self._written(prefix, waiting)

    def _written(self, prefix: Prefix, batch: list[tuple[K, Request, list[int]]]) -> Iterator[tuple[K, Reply]]:
        """Answers in one batch, or in smaller ones, now and from now on, where the memory does not hold it."""
        while batch:
            now = batch[: self._batch_size]
            replies: list[Reply] | None = None
            try:
                replies = self._write(prefix, [request for _, request, _ in now], [words for _, _, words in now])
            except torch.OutOfMemoryError:
                if len(now) == 1:
                    raise
            if replies is None:  # here, where the error no longer holds what the batch had filled
                self._batch_size = len(now) // 2
                self._free()
                continue
            yield from zip((key for key, _, _ in now), replies, strict=True)
            batch = batch[len(now) :]

    def _look(self, shown: tuple[Shown, ...]) -> _Pictures:
        """The pictures at the size they have: the processor's own resize is held to do nothing."""
        if not shown:
            return _Pictures(None, None, ())
        processor = self._processor.image_processor
        images = [Image.open(io.BytesIO(self._load(one).png), formats=["PNG"]) for one in shown]
        largest = max(image.width * image.height for image in images)
        size = {"shortest_edge": (processor.patch_size * processor.merge_size) ** 2, "longest_edge": largest}
        try:
            seen = processor(images=images, size=size, return_tensors="pt")
        except ValueError as e:  # sides of more than 200 to 1
            raise _Refused(str(e)) from e
        grid = seen["image_grid_thw"]
        as_prepared = [
            (1, image.height // processor.patch_size, image.width // processor.patch_size) for image in images
        ]
        assert [tuple(row) for row in grid.tolist()] == as_prepared, (grid, size)
        tokens = (grid.prod(dim=1) // processor.merge_size**2).tolist()
        return _Pictures(seen["pixel_values"].to(self._device, self._dtype), grid.to(self._device), tuple(tokens))

    def _prompt(self, request: Request, pictures: _Pictures) -> list[int]:
        """The tokens of the whole prompt by the judge's own chat template, pictures first, each after its caption."""
        pieces = interleaved(request, [{"type": "image"} for _ in pictures.tokens])
        messages = [
            {"role": "system", "content": [{"type": "text", "text": request.system}]},
            {"role": "user", "content": pieces},
        ]
        text = self._processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        ids = list(_with_pictures(ids, self._config.image_token_id, pictures.tokens))
        if len(ids) + request.max_tokens > self._longest:
            raise _Refused(
                f"the prompt has {len(ids)} tokens, with {request.max_tokens} for the answer more than the judge's "
                f"{self._longest}"
            )
        return ids

    @torch.inference_mode()
    def _begin(self, ids: list[int], pictures: _Pictures) -> Prefix:
        """Reads the prompt up to the last picture, or nothing where there is none."""
        if pictures.grid_thw is None:
            return Prefix([], DynamicCache(), 0)
        image = self._config.image_token_id
        marks = [at for at, i in enumerate(ids) if i == image]
        ids = ids[: marks[sum(pictures.tokens) - 1] + 1]
        row = torch.tensor([ids], device=self._device)  # (1, prefix)
        kinds = (row == image).int()
        positions, _ = self._model.model.get_rope_index(
            input_ids=row, mm_token_type_ids=kinds, image_grid_thw=pictures.grid_thw
        )  # (3, 1, prefix)
        out = self._model.model(
            input_ids=row,
            position_ids=positions,
            pixel_values=pictures.pixel_values,
            image_grid_thw=pictures.grid_thw,
            mm_token_type_ids=kinds,
            past_key_values=DynamicCache(),
            use_cache=True,
        )
        return Prefix(ids, out.past_key_values, int(positions.max()) + 1)

    @torch.inference_mode()
    def _choose(self, prefix: Prefix, request: Request, words: list[int]) -> Reply:
        logits = PrefixBatch(self._model, self._device, prefix, [words]).read()[0]
        logprobs = torch.log_softmax(logits, dim=-1)
        tokens = {label: self._tokenizer.encode(label, add_special_tokens=False) for label in request.labels}
        assert all(len(ids) == 1 for ids in tokens.values()), tokens
        found = {label: float(logprobs[ids[0]]) for label, ids in tokens.items()}
        best = max(found, key=lambda label: (found[label], -int(label)))
        return Reply(best, "length", found)

    @torch.inference_mode()
    def _write(self, prefix: Prefix, requests: Sequence[Request], words: Sequence[list[int]]) -> list[Reply]:
        """Lets the model write an answer to each request, token by token, each held to its schema."""
        rows = PrefixBatch(self._model, self._device, prefix, words)
        matchers = [xgrammar.GrammarMatcher(self._grammar(request)) for request in requests]
        allowed = xgrammar.allocate_token_bitmask(len(requests), self._vocabulary)
        generators = [torch.Generator().manual_seed(request.seed) for request in requests]
        written: list[list[int]] = [[] for _ in requests]
        finished: list[str | None] = [None] * len(requests)
        logits = rows.read()  # (rows, vocabulary)
        while True:
            following = [0] * len(requests)  # rows that are done go on with any token; nobody reads what comes of it
            for i, (request, matcher) in enumerate(zip(requests, matchers, strict=True)):
                if finished[i]:
                    continue
                matcher.fill_next_token_bitmask(allowed, i)
                xgrammar.apply_token_bitmask_inplace(logits[i : i + 1], allowed[i : i + 1])
                following[i] = pick(logits[i], request.temperature, generators[i])
                assert matcher.accept_token(following[i])
                written[i].append(following[i])
                if matcher.is_terminated():
                    finished[i] = "stop"
                elif len(written[i]) >= request.max_tokens:
                    finished[i] = "length"
            if all(finished):
                break
            logits = rows.go_on(following)
        texts = [self._tokenizer.decode(ids, skip_special_tokens=True) for ids in written]
        return [Reply(text, reason) for text, reason in zip(texts, finished, strict=True)]

    def _grammar(self, request: Request) -> xgrammar.CompiledGrammar:
        schema = json.dumps(request.schema)  # as it is: the order of its properties is the order of the answer's
        if schema not in self._grammars:
            self._grammars[schema] = self._compiler.compile_json_schema(
                schema, any_whitespace=False, separators=(",", ":")
            )
        return self._grammars[schema]

    def _no_room(self, what: str) -> ServerError:
        return ServerError(
            f"the memory of {self._device} has no room {what} of the judge in {self._weights}: use a smaller judge, or "
            "free the memory, then run the same command again"
        )

    def _free(self) -> None:
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()


def _with_pictures(ids: Iterable[int], mark: int, tokens: Iterable[int]) -> Iterator[int]:
    """The prompt with the first marks spread to as many as each picture takes; a mark in the words is only a word."""
    sizes = iter(tokens)
    for i in ids:
        yield from itertools.repeat(i, next(sizes, 1) if i == mark else 1)
