"""Makes one model's pictures on one device: encode every distinct prompt and picture once, drop the encoders, then
denoise and decode bucket by bucket in batches of one fixed shape. Knows no ledger: what it does, it tells as events."""

import fcntl
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from local_bench.core.errors import LocalBenchError
from local_bench.core.identity import digest
from local_bench.core.images import image_path, load_verified, store_image
from local_bench.core.memory_errors import is_out_of_memory
from local_bench.generators import numerics
from local_bench.generators.base import EncodedPrompt, GenerationRequest, Item, Machine, Picture, picture_key, text_key
from local_bench.generators.batches import batch_is_neutral, deal, padded, warm_up
from local_bench.generators.device import keep_compiled
from local_bench.generators.families import family
from local_bench.generators.masked import pasted_back
from local_bench.generators.memory import plan_memory
from local_bench.generators.sampler import Sampler
from local_bench.runs.device_clock import DeviceClock, Mark
from local_bench.runs.prompt_embeddings import PromptEmbeddings
from local_bench.runs.work import Advanced, Begun, Charged, Event, Job, Made, Noted, Result, Settled, Signed, WorkOrder


def make_pictures(order: WorkOrder, jobs: list[Job]) -> Iterator[Event]:
    """A worker's share of one model's pictures."""
    return Worker(order).make(jobs)


class Worker:
    """One model on one device."""

    def __init__(self, order: WorkOrder) -> None:
        device = torch.device(order.device)
        if device.type == "cuda":
            torch.cuda.set_device(device)  # what is compiled asks for the current one
        self._order = order
        self._machine = Machine(
            device=device,
            dtype=getattr(torch, order.card.dtype),
            attention=order.attention,
            compile=order.compile,
            offload=order.offload,
            lossy=order.lossy,
        )
        self._family = family(order.card.family)
        self._generator = self._family(order.card, order.weights, self._machine, order.parts)
        self._signature = numerics.signature(device, order.attention, order.card.dtype, order.compile)
        kept_for = digest([order.weights_sha256, self._signature])
        self._encodings = PromptEmbeddings(order.encoded / kept_for)
        self._about: dict[str, tuple[Any, dict[str, int]]] = {}
        self._compiled_for: set[str] = set()
        if order.compile:
            keep_compiled(kept_for)

    def make(self, jobs: Sequence[Job]) -> Iterator[Event]:
        """Makes all of `jobs`; every picture is a file before it is told of.

        Where their encodings would take more disk than they may, the jobs are made in windows: some are encoded, made,
        and their encodings removed, then the next.
        """
        yield Signed(self._signature)
        left = list(jobs)
        while left:
            ready = yield from self._encode(left)
            made = {job.work_id for job in ready}
            left = [job for job in left if job.work_id not in made]
            self._load(self._generator.load_denoiser)
            yield self._charge("load")
            yield Begun(f"{self._order.label}: make", len(ready))
            with ThreadPoolExecutor(self._order.io_workers) as pool:
                for bucket, members in self._buckets(ready).items():
                    yield from self._fill(bucket, members, pool)
            self._generator.drop_denoiser()
            if left:
                self._forget(ready, left)

    # ---- encoding

    def _encode(self, jobs: Sequence[Job]) -> Generator[Event, None, list[Job]]:
        """Encodes what `jobs` need, prompt by prompt, until the disk that encodings may take is full. Returns the jobs
        that have all they need, in the order of `jobs`."""
        groups: dict[str, list[Job]] = {}
        for job in jobs:
            groups.setdefault(self._text_key(job), []).append(job)
        n_wanted = len({key for job in jobs for key in self._keys(job) if key not in self._encodings})
        n_encoded, n_bytes, ready = 0, 0, set[str]()
        for text, members in groups.items():
            if n_bytes > self._order.encodings_bytes:
                break
            for key, encode in self._missing(text, members).items():
                if not n_encoded:
                    self._load(self._generator.load_encoder)
                    yield self._charge("load")
                    yield Begun(f"{self._order.label}: encode", n_wanted)
                encoded = encode()
                n_bytes += self._encodings.put(key, encoded)
                self._about[key] = (encoded.shape, encoded.truncated_tokens)
                n_encoded += 1
                yield Advanced(1)
            ready.update(job.work_id for job in members)
        if n_encoded:
            yield self._charge("encode", n_encoded)
            self._generator.drop_encoder()
        texts = {self._text_key(job) for job in jobs if job.work_id in ready}
        cut = sum(any(self._of(key)[1].values()) for key in texts)
        if cut:
            yield Noted(
                f"{self._order.label}: {cut} of {len(texts)} prompts are longer than an encoder reads, and cut there"
            )
        return [job for job in jobs if job.work_id in ready]

    def _missing(self, text: str, jobs: Sequence[Job]) -> dict[str, Callable[[], EncodedPrompt]]:
        """By key, how to encode what is not there yet of jobs with one prompt."""
        found: dict[str, Callable[[], EncodedPrompt]] = {}
        if text not in self._encodings:
            found[text] = partial(self._generator.encode_text, self._brief(jobs[0]))
        for job in jobs:
            for key, sha in zip(self._picture_keys(job), job.pictures, strict=False):  # no keys where none is encoded
                if key not in self._encodings:
                    sampler = Sampler(**job.sampler)
                    found[key] = partial(self._generator.encode_picture, self._picture(sha), sampler)
        return found

    def _forget(self, made: Sequence[Job], left: Sequence[Job]) -> None:
        """Removes the encodings that only `made` needed."""
        kept = {key for job in left for key in self._keys(job)}
        for job in made:
            if job.prompt in self._order.shared:  # another worker may need them
                continue
            for key in self._keys(job):
                if key not in kept:
                    self._encodings.remove(key)

    def _keys(self, job: Job) -> list[str]:
        return [self._text_key(job), *self._picture_keys(job)]

    def _text_key(self, job: Job) -> str:
        seen = self._generator.traits.sees_pictures
        return text_key(self._order.card.family, job.prompt, Sampler(**job.sampler), job.pictures if seen else ())

    def _picture_keys(self, job: Job) -> list[str]:
        if not self._generator.traits.encodes_pictures:
            return []
        sampler = Sampler(**job.sampler)
        return [picture_key(self._order.card.family, sha, sampler) for sha in job.pictures]

    # ---- batches

    def _buckets(self, jobs: Sequence[Job]) -> dict[str, list[Job]]:
        """Jobs of one shape together, by that shape's name, in the order in which they come."""
        buckets: dict[str, list[Job]] = {}
        sizes = {sha: self._picture(sha).pixels.size for sha in sorted({sha for job in jobs for sha in job.pictures})}
        for job in jobs:
            shape = [job.sampler, [sizes[sha] for sha in job.pictures], [self._of(key)[0] for key in self._keys(job)]]
            buckets.setdefault(digest(shape), []).append(job)
        return buckets

    def _fill(self, bucket: str, jobs: list[Job], pool: ThreadPoolExecutor) -> Iterator[Event]:
        """Makes a bucket's images. A batch is given to the device before the one before it is written and committed."""
        size, sentence = self._settle_size(bucket, jobs, self._order.known_sizes.get(bucket))
        if sentence:
            yield Noted(sentence)
        yield self._charge("warm-up")
        yield Settled(bucket, size)
        order = [job for batch in deal(jobs, 1, self._order.batch_order) for job in batch]
        clock = DeviceClock(self._machine.device)
        at, before = 0, None
        coming = pool.submit(self._items, padded(order[:size], size))
        while at < len(order):
            items = coming.result()
            if at + size < len(order):  # read while the device is at work
                coming = pool.submit(self._items, padded(order[at + size : at + 2 * size], size))
            try:
                batch = self._begin(order[at : at + size], items, clock)
            except RuntimeError as e:
                if not is_out_of_memory(e):
                    raise
                yield from self._end(before)
                before = None
                size, sentence = self._settle_size(bucket, order[at:], None, self._halve(size, e))
                yield self._charge("retry")
                yield Noted(sentence or _halved(self._order.label, size))
                yield Settled(bucket, size)
                clock = DeviceClock(self._machine.device)
                coming = pool.submit(self._items, padded(order[at : at + size], size))
                continue
            at += size
            batch.files = [pool.submit(batch.store, self._order.images, i) for i in range(len(batch.jobs))]
            yield from self._end(before)
            before = batch
        yield from self._end(before)

    def _begin(self, jobs: Sequence[Job], items: list[Item], clock: DeviceClock) -> "_Batch":
        """Gives a batch to the device: images, and their way to the host. Nothing here waits for either."""
        latents = self._generator.denoise(items)
        finite = latents.isfinite().flatten(1).all(1)
        denoised = clock.mark()
        pixels = self._generator.pixels(latents, items[0].brief.sampler)
        host = [_to_host(pixels), _to_host(finite)]
        briefs = [item.brief for item in items]
        return _Batch(jobs, briefs, host[0], host[1], denoised, clock.mark(), clock)

    def _end(self, batch: "_Batch | None") -> Iterator[Event]:
        """What a batch took, and its images, once they are files."""
        if batch is None:
            return
        yield Charged("denoise", len(batch.jobs), batch.clock.reached_ns(batch.denoised))
        yield Charged("decode", len(batch.jobs), batch.clock.reached_ns(batch.decoded))
        yield Made(
            [
                Result(job.work_id, file.result(), len(batch.briefs), self._of(self._text_key(job))[1])
                for job, file in zip(batch.jobs, batch.files, strict=True)
            ]
        )

    def _settle_size(
        self, bucket: str, jobs: list[Job], known: int | None, at_most: int | None = None
    ) -> tuple[int, str | None]:
        """The bucket's batch size, proven on this machine, and what a person should know of it. `known` was proven by a
        session with the same numerics; `at_most` is what memory has room for."""
        size, sentence = known or min(self._wanted_size(jobs[0]), at_most or self._wanted_size(jobs[0])), None
        while True:
            try:
                items = self._items(jobs[: 2 * size])
                self._compile(items[0], size)
                if size in (1, known) or batch_is_neutral(self._generator, items, size):
                    return size, sentence
                sentence = f"{self._order.label}: batches of {size} change bytes on this machine; going on one by one"
                size = 1
            except RuntimeError as e:
                if not is_out_of_memory(e):
                    raise
                size = self._halve(size, e)
                sentence = _halved(self._order.label, size)

    def _compile(self, item: Item, size: int) -> None:
        """Compiles for a batch's shape, unless that was done; where prompts have no fixed length, one graph serves
        all."""
        if not self._order.compile:
            return
        text = "any length" if self._family.varying else item.text.shape
        key = digest([list(item.brief.shape), [p.shape for p in item.pictures], text, size])
        if key not in self._compiled_for:
            warm_up(self._generator, item, size)
            self._compiled_for.add(key)

    def _wanted_size(self, job: Job) -> int:
        planned = plan_memory(
            self._order.card,
            Sampler(**job.sampler),
            batch_size=self._order.batch_size,
            capacity_gb=self._order.capacity_gb,
            pictures=len(job.pictures),
            attempts=self._order.attempts,
            lossy=self._order.lossy,
            always_stream=bool(self._order.offload),
        )
        return planned.batch_size

    def _halve(self, size: int, error: RuntimeError) -> int:
        if size == 1:
            raise LocalBenchError(
                f"{self._order.label} does not fit into the device's memory even one by one: set engine.offload=always "
                "or a smaller size; what was made is kept"
            ) from error
        self._give_back()
        return size // 2

    def _load(self, load: Callable[[], None]) -> None:
        """LocalBenchError where the weights do not fit."""
        try:
            with _turn(self._order.load_lock):
                load()
        except (RuntimeError, MemoryError) as e:
            if not is_out_of_memory(e):
                raise
            self._give_back()
            raise LocalBenchError(
                f"{self._order.label}: memory ran out while its weights were loaded on {self._order.device} "
                f"({_first_line(e)}): end what else runs there, set engine.offload=always or fewer engine.workers; "
                "what was made is kept"
            ) from e

    def _give_back(self) -> None:
        if self._machine.device.type == "cuda":
            torch.cuda.empty_cache()

    # ---- small things

    def _items(self, jobs: Sequence[Job]) -> list[Item]:
        return [
            Item(
                self._brief(job),
                self._encodings.get(self._text_key(job)),
                tuple(self._encodings.get(key) for key in self._picture_keys(job)),
                job.seed,
            )
            for job in jobs
        ]

    def _brief(self, job: Job) -> GenerationRequest:
        pictures = tuple(self._picture(sha) for sha in job.pictures)
        return GenerationRequest(
            job.prompt, Sampler(**job.sampler), pictures, None if job.mask is None else self._picture(job.mask)
        )

    def _picture(self, sha256: str) -> Picture:
        return Picture(sha256, load_verified(image_path(self._order.inputs, sha256), sha256))

    def _of(self, key: str) -> tuple[Any, dict[str, int]]:
        """Shape and truncated tokens of an encoding."""
        if key not in self._about:
            self._about[key] = self._encodings.shape(key)
        return self._about[key]

    def _charge(self, phase: str, n_items: int = 0) -> Charged:
        if self._machine.device.type == "cuda":
            torch.cuda.synchronize(self._machine.device)
        return Charged(phase, n_items, time.monotonic_ns())


@dataclass
class _Batch:
    """Images that the device was given to make, on their way to the host."""

    jobs: Sequence[Job]
    briefs: Sequence[GenerationRequest]
    """Of every slot of the batch: `jobs` and, in a batch that is not full, repeated ones."""
    pixels: torch.Tensor
    """uint8 (slots, height, width, 3) on the host; there when `decoded` is reached."""
    finite: torch.Tensor
    """bool (slots,), likewise."""
    denoised: Mark
    decoded: Mark
    clock: DeviceClock
    files: list[Future[str | None]] = field(default_factory=list)

    def store(self, images: Path, i: int) -> str | None:
        """Writes an image; its pixel digest, or None where its numbers were not finite. Runs in the pool."""
        self.clock.reached_ns(self.decoded)
        if not self.finite[i]:
            return None
        image, brief = Image.fromarray(self.pixels[i].numpy()), self.briefs[i]
        return store_image(images, pasted_back(image, brief) if brief.sampler.paste_back else image)


@contextmanager
def _turn(lock: Path | None) -> Iterator[None]:
    """Waits until no other worker holds `lock`; a worker that is killed lets go of it."""
    if lock is None:
        yield
        return
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the host, from a GPU into pinned memory without waiting for it."""
    if tensor.device.type != "cuda":
        return tensor
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _halved(label: str, size: int) -> str:
    return f"{label}: out of memory, going on with batches of {size} for this size"
