"""Generates one model's images on one device: encodes every distinct prompt and input image once, drops the
encoders, then denoises and decodes bucket by bucket in batches of a fixed shape. It does not access the store; it
yields events."""

import fcntl
import hashlib
import json
import socket
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from PIL import Image
from safetensors.torch import save

from local_bench.core import strictjson
from local_bench.core.environment import collect
from local_bench.core.errors import FirstFailures, LocalBenchError, PartFailed, failure, is_of_item, is_out_of_memory
from local_bench.core.files import write_atomic
from local_bench.core.images import image_path, load_verified, store_image
from local_bench.core.types import NOT_FINITE, Message, PhaseAdvanced, PhaseStarted, TimeCharged, digest
from local_bench.generators import numerics
from local_bench.generators.base import (
    EncodedPrompt,
    GenerationRequest,
    InputImage,
    Item,
    Machine,
    image_key,
    pasted_back,
    text_key,
)
from local_bench.generators.capacity import failed_allocations
from local_bench.generators.device import keep_compiled
from local_bench.generators.registry import traits
from local_bench.generators.staged import Staged, batch_is_neutral, deal, family, padded, warm_up
from local_bench.models.tensors import open_tensors
from local_bench.models.weights import weights_digest
from local_bench.runs.config import EngineConfig
from local_bench.runs.store import Candidate
from local_bench.runs.store.rows import ImageResult
from local_bench.runs.work import BatchSizeChosen, Event, ImagesFinished, ModelPlan, NumericsSignature, WorkOrder

T = TypeVar("T")


class OutOfDeviceMemory(Exception):
    """Memory ran out in a call, whose tensors have been released since."""


class DeviceCalls:
    """Calls on one device.

    OutOfDeviceMemory if memory runs out in a call. That includes failures that it does not see: if the workspace of a
    convolution does not fit, torch tries cuDNN's other algorithms, whose results differ in the last bits, and keeps the
    one that fits for all later convolutions of that shape in the same thread (`benchmark_cache` in ATen's Conv_v8.cpp;
    seen on an H100). After a failure, calls therefore run in a new thread, in the context of the first one: torch's
    settings of compilation are context variables.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._thread: ThreadPoolExecutor | None = None
        self._context: Context | None = None

    def __call__(self, call: Callable[..., T], *arguments: Any) -> T:
        before, failure = failed_allocations(self._device), ""
        try:
            if self._thread is None or self._context is None:
                result = call(*arguments)
            else:
                result = self._thread.submit(self._context.run, call, *arguments).result()
        except (RuntimeError, MemoryError) as e:
            if not is_out_of_memory(e):
                raise
            failure = (str(e).splitlines() or [type(e).__name__])[0][:200]
        if not failure:
            if failed_allocations(self._device) == before:
                return result
            del result
            failure = "the workspace of a convolution did not fit"
        # outside of `except`, where the exception still holds the frames of the failed call and their tensors
        on_gpu = self._device.type == "cuda"
        use_device = partial(torch.cuda.set_device, self._device) if on_gpu else None
        self._thread = ThreadPoolExecutor(1, initializer=use_device)
        self._context = self._context or copy_context()
        collect()
        if on_gpu:
            torch.cuda.empty_cache()
        raise OutOfDeviceMemory(failure)


class DeviceClock:
    """Records marks in the current stream and returns when they were reached (in ns of `time.monotonic_ns`).

    A mark on a CPU is that time, when the preceding work has ended. On a GPU it is a CUDA event, whose time is relative
    to a moment at which the device was idle. Use one clock for minutes of work at
    most: `elapsed_time` is a 32-bit number of milliseconds.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._zero = self.mark()
        if device.type == "cuda":
            self._zero.synchronize()
        self.begun_ns = time.monotonic_ns()

    def reached_ns(self, mark: Any) -> int:
        """Wait until the work before `mark` is done; return when that was."""
        if isinstance(mark, int):
            return mark
        mark.synchronize()
        return self.begun_ns + int(self._zero.elapsed_time(mark) * 1e6)

    def mark(self) -> Any:
        if self._device.type != "cuda":
            return time.monotonic_ns()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event


@dataclass
class LaunchedBatch:
    """A launched batch."""

    jobs: Sequence[Candidate]
    requests: Sequence[GenerationRequest]
    """One per slot of the batch: those of `jobs`, repeated to fill the batch."""
    pixels: torch.Tensor
    """uint8 (slots, height, width, 3) on the host; valid once `decoded` is reached."""
    finite: torch.Tensor
    """bool (slots,), valid once `decoded` is reached."""
    denoised: Any
    """A mark of `clock`."""
    decoded: Any
    clock: DeviceClock
    files: list[Future[str | None]] = field(default_factory=list)

    def store(self, images: Path, i: int) -> str | None:
        """Write an image in a pool thread; return its pixel digest, or None if the output was not finite."""
        self.clock.reached_ns(self.decoded)
        if not self.finite[i]:
            return None
        image, request = Image.fromarray(self.pixels[i].numpy()), self.requests[i]
        return store_image(images, pasted_back(image, request) if request.sampler.paste_back else image)


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Copy to the host, from a GPU asynchronously into pinned memory."""
    if tensor.device.type != "cuda":
        return tensor
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


# ---- encodings

_SHARED = "negative_"
"""Prefix of the tensors of the negative prompt, which many prompts share; they are stored once."""


class PromptEmbeddings:
    """A folder of encodings by key, for one model under one numerics signature."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __contains__(self, key: str) -> bool:
        return self._path(key).exists()

    def put(self, key: str, encoded: EncodedPrompt) -> int:
        """Store one encoding atomically; return the bytes written. Raises StorageError."""
        unshared = {name: t.contiguous() for name, t in encoded.tensors.items() if not name.startswith(_SHARED)}
        shared, written = {}, 0
        for name, tensor in encoded.tensors.items():
            if name.startswith(_SHARED):
                data = save({name: tensor.contiguous()})
                shared[name] = hashlib.sha256(data).hexdigest()
                if shared[name] not in self:
                    write_atomic(self._path(shared[name]), data)
                    written += len(data)
        about = {"truncated": json.dumps(encoded.truncated_tokens), "shared": json.dumps(shared)}
        data = save(unshared, metadata=about)
        write_atomic(self._path(key), data)
        return written + len(data)

    def remove(self, key: str) -> None:
        """Remove one encoding, but not its shared tensors."""
        self._path(key).unlink(missing_ok=True)

    def get(self, key: str) -> EncodedPrompt:
        return EncodedPrompt(*self._read(key, lambda file, name: file.get_tensor(name)))

    def shape(self, key: str) -> tuple[Any, dict[str, int]]:
        """An encoding's `shape` and truncated tokens, read from the headers of its files."""
        sizes, truncated = self._read(key, lambda file, name: file.get_slice(name).get_shape())
        return tuple((name, *size) for name, size in sorted(sizes.items())), truncated

    def _read(self, key: str, read: Callable[[Any, str], T]) -> tuple[dict[str, T], dict[str, int]]:
        """What `read` returns of each tensor of an encoding, and its truncated tokens."""
        with open_tensors(self._path(key)) as file:
            found = {name: read(file, name) for name in file.keys()}  # noqa: SIM118  # not a mapping
            about = {name: strictjson.stored(text) for name, text in (file.metadata() or {}).items()}
        for name, other in about.get("shared", {}).items():
            with open_tensors(self._path(other)) as file:
                found[name] = read(file, name)
        return found, about.get("truncated", {})

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.safetensors"


def order_on(
    device: torch.device, model: ModelPlan, engine: EngineConfig, offload: tuple[str, ...], **more: Any
) -> WorkOrder:
    """The order for a model on a device, with the attention kernels of a run, and compiled as in a run; `more` are
    further fields, or replace those."""
    card, lossy = model.card, model.config.lossy.settings
    assert card is not None
    kind, possible = family(card.family), traits(card.family).compiles
    attention = numerics.attention_backend(
        engine.attention_backend, device, card.dtype, card.attention, kind.masks, kind.attention
    )
    compiled = numerics.compiles(engine.compile, device, offload, lossy, possible)
    decided: dict[str, Any] = {"device": str(device), "attention": attention, "compile": compiled, "offload": offload}
    return WorkOrder(model=model, engine=engine, **(decided | more))


def generator_of(order: WorkOrder) -> Staged:
    """The order's model on its device; nothing is loaded."""
    device, card, model = torch.device(order.device), order.card, order.model
    dtype, lossy = getattr(torch, card.dtype), model.config.lossy.settings
    machine = Machine(device, dtype, order.attention, order.compile, order.offload, order.parked_gb, lossy)
    return family(card.family)(card, model.weights, machine, model.parts)


def generate_images(order: WorkOrder, jobs: list[Candidate]) -> Iterator[Event]:
    """Generate a worker's share of one model's images. LocalBenchError if a node has other weights than the order's."""
    weights, parts, sha256 = order.model.weights, order.model.parts, order.model.weights_sha256
    if order.on_node and weights and (not weights.is_dir() or weights_digest(weights, parts) != sha256):
        raise LocalBenchError(
            f"{order.label}: the weights in {weights} are missing or different on the node {socket.gethostname()}: "
            "fetch them there (`local-bench models fetch CONFIG --on-nodes ADDRESS`) or use a shared folder"
        )
    return Worker(order).make(jobs)


class Worker:
    """One model on one device."""

    def __init__(self, order: WorkOrder) -> None:
        device = torch.device(order.device)
        if device.type == "cuda":
            torch.cuda.set_device(device)  # compiled code uses the current device
        self._order = order
        self._generator = generator_of(order)
        self._machine = self._generator.machine
        self._signature = numerics.signature(device, order.attention, order.card.dtype, order.compile)
        self._encodings = PromptEmbeddings(order.encoded / digest([order.model.weights_sha256, self._signature]))
        self._about: dict[str, tuple[Any, dict[str, int]]] = {}
        self._device = DeviceCalls(device)
        self._compiled_for: set[str] = set()
        self._other_size = False
        advice = "check the model's card, its settings (dtype) and its files"
        begun = bool(order.known_sizes)  # an earlier session has generated images
        self._encoded = FirstFailures[ImageResult](f"prompts of {order.label}", advice, begun)
        self._made = FirstFailures[ImageResult](f"images of {order.label}", advice, begun)
        if sampler := order.model.sampler:
            self._generator.compiled_size = (sampler["height"], sampler["width"])
        if order.compile:
            keep_compiled(digest([self._signature, order.card.family, self._generator.compiled_size]))

    def make(self, jobs: Sequence[Candidate]) -> Iterator[Event]:
        """Generate all `jobs`; an image's file is written before its event is yielded.

        If the encodings would exceed their disk limit, the jobs are processed in windows: some are encoded and
        generated, their encodings are removed, then the next.
        """
        yield NumericsSignature(self._signature)
        left = list(jobs)
        while left:
            ready, failed = yield from self._encode(left)
            done = {job.work_id for job in ready} | failed
            left = [job for job in left if job.work_id not in done]
            if not ready:
                continue
            self._load(self._generator.load_denoiser)
            yield self._charge("load")
            yield PhaseStarted(f"{self._order.label}: make", len(ready))
            shas = sorted({sha for job in ready for sha in job.input_images})
            sizes = {sha: self._input_image(sha).pixels.size for sha in shas}
            buckets: dict[str, list[Candidate]] = {}
            for job in ready:
                seen = () if self._generator.traits.encodes_images else [sizes[sha] for sha in job.input_images]
                shape = [job.sampler.settings, seen, [self._encoding_info(key)[0] for key in self._keys(job)]]
                buckets.setdefault(digest(shape), []).append(job)
            with ThreadPoolExecutor(self._order.engine.io_workers) as pool:
                for bucket, members in buckets.items():
                    yield from self._run_bucket(bucket, members, pool)
            self._generator.drop_denoiser()
            kept = {key for job in left for key in self._keys(job)}
            for job in ready if left else ():
                if job.prompt not in self._order.shared:  # another worker may need those
                    for key in {*self._keys(job)} - kept:
                        self._encodings.remove(key)
        yield from _images(self._made.released())

    # ---- encoding

    def _encode(self, jobs: Sequence[Candidate]) -> Generator[Event, None, tuple[list[Candidate], set[str]]]:
        """Encode the inputs of `jobs`, prompt by prompt, until the disk limit of encodings is reached. Returns the jobs
        whose inputs are encoded, in the order of `jobs`, and the work ids of those for which that failed."""
        groups: dict[str, list[Candidate]] = {}
        for job in jobs:
            groups.setdefault(self._text_key(job), []).append(job)
        n_missing = len({key for job in jobs for key in self._keys(job) if key not in self._encodings})
        most_bytes = self._order.engine.encodings_gb * 1e9 / self._order.workers
        n_encoded, n_bytes, ready, faults, failed = 0, 0, set[str](), dict[str, str](), set[str]()
        for text, members in groups.items():
            if n_bytes > most_bytes:
                break
            for key, encode in self._missing(text, members).items():
                if key in faults:
                    continue
                if not (n_encoded or faults):
                    self._load(self._generator.load_encoder)
                    yield self._charge("load")
                    yield PhaseStarted(f"{self._order.label}: encode", n_missing)
                yield PhaseAdvanced(1)
                try:
                    encoded = yield from self._encode_one(encode)
                except (Exception, SystemExit) as e:  # noqa: BLE001  # raised again if it is not of this prompt
                    faults[key] = failure("encoding", e)
                    continue
                n_bytes += self._encodings.put(key, encoded)
                self._about[key] = (encoded.shape, encoded.truncated_tokens)
                n_encoded += 1
            bad = {job.work_id: faults[key] for job in members for key in self._keys(job) if key in faults}
            ready.update(job.work_id for job in members if job.work_id not in bad)
            results = [ImageResult(work_id, None, None, {}, reason) for work_id, reason in bad.items()]
            storable = self._encoded.failed(next(iter(bad.values())), *results) if bad else self._encoded.succeeded()
            failed.update(bad)
            yield from _images(storable)
        if n_encoded or faults:
            yield self._charge("encode", n_encoded)
            self._generator.drop_encoder()
        yield from _images(self._encoded.released())
        texts = {self._text_key(job) for job in jobs if job.work_id in ready}
        cut = Counter(name for key in texts for name, n in self._encoding_info(key)[1].items() if n)
        if cut:
            encoders = dict.fromkeys(name for key in texts for name in self._encoding_info(key)[1])
            whole = [name for name in encoders if not cut[name]]
            parts = ", ".join(f"{n} of {len(texts)} by {name}" for name, n in sorted(cut.items()))
            rest = f"; {' and '.join(whole)} read all of them whole" if whole else ""
            yield Message(f"{self._order.label}: prompts truncated: {parts}{rest}")
        return [job for job in jobs if job.work_id in ready], failed

    def _encode_one(self, encode: Callable[[], EncodedPrompt]) -> Generator[Event, None, EncodedPrompt]:
        """The result of `encode`; if memory runs out, with the encoders' weights offloaded, which changes no bytes."""
        try:
            return self._device(encode)
        except OutOfDeviceMemory as e:
            if "encode" in self._generator.machine.offload:
                raise PartFailed(
                    f"{self._order.label}: memory of {self._order.device} ran out while a prompt was encoded ({e}): "
                    "end other processes that use it, and run the same command again; finished images are kept",
                    self._order.label,
                ) from None
        self._generator.drop_encoder()
        machine = self._generator.machine
        self._generator.machine = replace(machine, offload=(*machine.offload, "encode"))
        self._load(self._generator.load_encoder)
        yield Message(f"{self._order.label}: out of memory, continuing with offloaded text encoders")
        return (yield from self._encode_one(encode))

    def _missing(self, text: str, jobs: Sequence[Candidate]) -> dict[str, Callable[[], EncodedPrompt]]:
        """Encoders of the missing inputs of jobs with one prompt, by key."""
        missing: dict[str, Callable[[], EncodedPrompt]] = {}
        if text not in self._encodings:
            missing[text] = partial(self._generator.encode_text, self._request(jobs[0]))
        for job in jobs:
            # no keys if the family does not encode images
            for key, sha in zip(self._image_keys(job), job.input_images, strict=False):
                if key not in self._encodings:
                    missing[key] = partial(self._generator.encode_image, self._input_image(sha), job.sampler)
        return missing

    def _keys(self, job: Candidate) -> list[str]:
        return [self._text_key(job), *self._image_keys(job)]

    def _text_key(self, job: Candidate) -> str:
        input_images = job.input_images if self._generator.traits.images_in_prompt else ()
        return text_key(self._order.card.family, job.prompt, job.sampler, input_images)

    def _image_keys(self, job: Candidate) -> list[str]:
        if not self._generator.traits.encodes_images:
            return []
        return [image_key(self._order.card.family, sha, job.sampler) for sha in job.input_images]

    # ---- batches

    def _run_bucket(self, bucket: str, jobs: list[Candidate], pool: ThreadPoolExecutor) -> Iterator[Event]:
        """Generate a bucket's images. A batch is launched before the previous one is written and committed."""
        size, jobs = yield from self._choose(bucket, jobs, "warm-up", self._order.known_sizes.get(bucket))
        if not jobs:
            return
        order = [job for batch in deal(jobs, 1, self._order.engine.batch_order) for job in batch]
        clock = DeviceClock(self._machine.device)
        at, before = 0, None
        coming = pool.submit(self._items, padded(order[:size], size))
        while at < len(order):
            items = coming.result()
            if at + size < len(order):  # loaded while the device computes
                coming = pool.submit(self._items, padded(order[at + size : at + 2 * size], size))
            try:
                batch = self._device(self._launch, order[at : at + size], items, clock)
            except OutOfDeviceMemory as e:
                yield from self._finish(before)
                before = None
                size, left = yield from self._choose(bucket, order[at:], "retry", at_most=self._halve(size, e))
                order[at:] = left
                clock = DeviceClock(self._machine.device)
                coming = pool.submit(self._items, padded(order[at : at + size], size)) if left else coming
                continue
            except (Exception, SystemExit) as e:
                if not is_of_item(e):
                    raise
                yield from self._finish(before)
                before = None
                for job in order[at : at + size]:
                    yield from self._run_alone(job, size, clock, pool)
                at += size
                continue
            at += size
            batch.files = [pool.submit(batch.store, self._order.images, i) for i in range(len(batch.jobs))]
            yield from self._finish(before)
            before = batch
        yield from self._finish(before)

    def _run_alone(self, job: Candidate, size: int, clock: DeviceClock, pool: ThreadPoolExecutor) -> Iterator[Event]:
        """Generate one image of a batch that failed, in a batch of the same shape; its bytes are the same."""
        try:
            batch = self._device(self._launch, [job], padded(self._items([job]), size), clock)
        except OutOfDeviceMemory as e:
            self._halve(1, e)
            raise
        except (Exception, SystemExit) as e:  # noqa: BLE001  # raised again if it is not of this image
            yield from self._failed(job, e)
            return
        batch.files = [pool.submit(batch.store, self._order.images, 0)]
        yield from self._finish(batch)

    def _failed(self, job: Candidate, error: Exception | SystemExit) -> Iterator[Event]:
        reason = failure("generating", error)
        yield from _images(self._made.failed(reason, ImageResult(job.work_id, None, None, {}, reason)))

    def _launch(self, jobs: Sequence[Candidate], items: list[Item], clock: DeviceClock) -> "LaunchedBatch":
        """Launch a batch and its copy to the host, without waiting."""
        latents = self._generator.denoise(items)
        denoised = clock.mark()
        pixels = self._generator.pixels(latents, items[0].request.sampler)
        finite = latents.isfinite().flatten(1).all(1)
        if self._generator.finite is not None:
            finite &= self._generator.finite
        host = [to_host(pixels), to_host(finite)]
        requests = [item.request for item in items]
        return LaunchedBatch(jobs, requests, host[0], host[1], denoised, clock.mark(), clock)

    def _finish(self, batch: "LaunchedBatch | None") -> Iterator[Event]:
        """Yield a batch's times and, once its files are written, its images."""
        if batch is None:
            return
        yield TimeCharged("denoise", len(batch.jobs), batch.clock.reached_ns(batch.denoised))
        yield TimeCharged("decode", len(batch.jobs), batch.clock.reached_ns(batch.decoded))
        planned, (height, width) = batch.jobs[0].sampler, batch.pixels.shape[1:3]
        if (planned.height, planned.width) != (height, width) and not self._other_size:
            self._other_size = True
            sizes = f"of {width} x {height} pixels, not {planned.width} x {planned.height} as planned"
            yield Message(f"{self._order.label}: the pipeline makes images of a size of its own ({sizes})")
        results: list[ImageResult] = []
        for job, file in zip(batch.jobs, batch.files, strict=True):
            truncated, sha256, reason = self._encoding_info(self._text_key(job))[1], None, NOT_FINITE
            try:
                sha256 = file.result()
            except (Exception, SystemExit) as e:  # noqa: BLE001  # raised again if it is not of this image
                reason = failure("storing", e)
            result = ImageResult(job.work_id, sha256, len(batch.requests), truncated, None if sha256 else reason)
            results += self._made.succeeded(result) if sha256 else self._made.failed(reason, result)
        yield from _images(results)

    def _choose(
        self,
        bucket: str,
        jobs: list[Candidate],
        phase: str,
        checked_size: int | None = None,
        at_most: int | None = None,
    ) -> Generator[Event, None, tuple[int, list[Candidate]]]:
        """The bucket's batch size, and `jobs` without those that fail in its check; its time is that of `phase`."""
        size, sentence, left = 1, None, []
        for i in range(-1, len(jobs)):  # all jobs, and if one of them fails, one after another
            try:
                size, sentence = self._choose_batch_size(jobs if i < 0 else [jobs[i]], checked_size, at_most)
                left = jobs[max(i, 0) :]
                break
            except (Exception, SystemExit) as e:
                if not is_of_item(e):
                    raise
                if i >= 0:
                    yield from self._failed(jobs[i], e)
        yield self._charge(phase)
        if sentence:
            yield Message(sentence)
        if left:
            yield BatchSizeChosen(bucket, size)
        return size, left

    def _choose_batch_size(
        self, jobs: list[Candidate], checked_size: int | None, at_most: int | None
    ) -> tuple[int, str | None]:
        """The batch size, checked for memory and batch invariance on this machine, and a note for the user.
        `checked_size` was checked by a session with the same numerics; `at_most` is the largest size that fits into
        memory."""
        order, inputs = self._order, len(jobs[0].input_images)
        on_device: dict[str, Any] = {"capacity_gb": order.capacity_gb, "offload": order.offload}
        planned = order.model.memory(order.engine, jobs[0].sampler, inputs, **on_device).batch_size
        size = checked_size or min(planned, at_most or planned)
        sentence = None if at_most is None else _halved_note(self._order.label, size)
        while True:
            items = self._items(jobs[: 2 * size])
            try:
                self._compile(items[0], size)
                if size in (1, checked_size) or self._device(batch_is_neutral, self._generator, items, size):
                    return size, sentence
                sentence = (
                    f"{self._order.label}: batches of {size} change output bytes on this machine; continuing with "
                    "batch size 1"
                )
                size = 1
            except OutOfDeviceMemory as e:
                size = self._halve(size, e)
                sentence = _halved_note(self._order.label, size)

    def _compile(self, item: Item, size: int) -> None:
        """Compile for a batch size, once for all image sizes and prompt lengths."""
        if not self._order.compile:
            return
        key = digest([self._generator.canonical(item).shape, size])
        if key not in self._compiled_for:
            self._device(warm_up, self._generator, item, size)
            self._compiled_for.add(key)

    def _halve(self, size: int, error: OutOfDeviceMemory) -> int:
        if size == 1:
            raise PartFailed(
                f"{self._order.label}: memory of {self._order.device} ran out with a batch of one image ({error}): end "
                "other processes that use it and run the same command again, or start another run with a smaller size "
                "or engine.offload=always; finished images are kept",
                self._order.label,
            ) from None
        return size // 2

    def _load(self, load: Callable[[], None]) -> None:
        """Load weights. PartFailed if they do not fit."""
        try:
            with _exclusive(self._order.load_lock):
                self._device(load)
        except OutOfDeviceMemory as e:
            raise PartFailed(
                f"{self._order.label}: memory ran out while its weights were loaded on {self._order.device} "
                f"({e}): end other processes there, set engine.offload=always or fewer engine.workers; "
                "finished images are kept",
                self._order.label,
            ) from None

    # ---- inputs

    def _items(self, jobs: Sequence[Candidate]) -> list[Item]:
        return [
            Item(
                self._request(job),
                self._encodings.get(self._text_key(job)),
                tuple(self._encodings.get(key) for key in self._image_keys(job)),
                job.seed,
            )
            for job in jobs
        ]

    def _request(self, job: Candidate) -> GenerationRequest:
        input_images = tuple(self._input_image(sha) for sha in job.input_images)
        mask = None if job.mask is None else self._input_image(job.mask)
        return GenerationRequest(job.prompt, job.sampler, input_images, mask)

    def _input_image(self, sha256: str) -> InputImage:
        return InputImage(sha256, load_verified(image_path(self._order.inputs, sha256), sha256))

    def _encoding_info(self, key: str) -> tuple[Any, dict[str, int]]:
        if key not in self._about:
            self._about[key] = self._encodings.shape(key)
        return self._about[key]

    def _charge(self, phase: str, n_items: int = 0) -> TimeCharged:
        if self._machine.device.type == "cuda":
            torch.cuda.synchronize(self._machine.device)
        return TimeCharged(phase, n_items, time.monotonic_ns())


def _images(results: list[ImageResult]) -> Iterator[Event]:
    if results:
        yield ImagesFinished(results)


@contextmanager
def _exclusive(lock: Path | None) -> Iterator[None]:
    """Hold `lock` exclusively among workers; it is released if the worker is killed."""
    if lock is None:
        yield
        return
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _halved_note(label: str, size: int) -> str:
    return f"{label}: out of memory, continuing with batches of {size} for this size"
