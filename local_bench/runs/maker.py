"""Makes one model's pictures on one device: encode every distinct prompt and picture once, drop the encoders, then
denoise and decode bucket by bucket in batches of one fixed shape. Knows no ledger: what it does, it tells as events."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from local_bench.core.errors import LocalBenchError
from local_bench.core.identity import digest
from local_bench.core.images import image_path, load_image, store_image
from local_bench.generators import numerics
from local_bench.generators.base import Brief, Item, Machine, Picture, Sampler, picture_key, text_key
from local_bench.generators.batches import batch_is_neutral, deal, padded, warm_up
from local_bench.generators.memory import plan_memory
from local_bench.generators.placement import keep_compiled
from local_bench.generators.registry import family
from local_bench.runs.encodings import Encodings
from local_bench.runs.jobs import Advanced, Begun, Charged, Event, Job, Made, Noted, Order, Result, Settled, Signed

_OUT_OF_MEMORY = torch.OutOfMemoryError


def make_pictures(order: Order, jobs: list[Job]) -> Iterator[Event]:
    """A worker's share of one model's pictures."""
    return Maker(order).make(jobs)


class Maker:
    """One model on one device."""

    def __init__(self, order: Order) -> None:
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
        self._encodings = Encodings(order.encoded / kept_for)
        self._about: dict[str, tuple[Any, dict[str, int]]] = {}
        if order.compile:
            keep_compiled(kept_for)

    def make(self, jobs: Sequence[Job]) -> Iterator[Event]:
        """Makes all of `jobs`; every picture is a file before it is told of."""
        yield Signed(self._signature)
        yield from self._encode(jobs)
        self._generator.load_denoiser()
        yield self._charge("load")
        yield Begun(f"{self._order.label}: make", len(jobs))
        with ThreadPoolExecutor(self._order.io_workers) as pool:
            for bucket, members in self._buckets(jobs).items():
                yield from self._fill(bucket, members, pool)
        self._generator.drop_denoiser()

    # ---- encoding

    def _encode(self, jobs: Sequence[Job]) -> Iterator[Event]:
        texts = {self._text_key(job): job for job in jobs}
        pictures = {
            key: (sha, job)
            for job in jobs
            for key, sha in zip(self._picture_keys(job), job.pictures, strict=False)  # no keys where none is encoded
        }
        wanted = [key for key in sorted({*texts, *pictures}) if key not in self._encodings]
        if wanted:
            self._generator.load_encoder()
            yield self._charge("load")
            yield Begun(f"{self._order.label}: encode", len(wanted))
            for key in wanted:
                if key in texts:
                    encoded = self._generator.encode_text(self._brief(texts[key]))
                else:
                    sha, job = pictures[key]
                    encoded = self._generator.encode_picture(self._picture(sha), Sampler(**job.sampler))
                self._encodings.put(key, encoded)
                self._about[key] = (encoded.shape, encoded.truncated_tokens)
                yield Advanced(1)
            yield self._charge("encode", len(wanted))
            self._generator.drop_encoder()
        cut = sum(any(self._of(key)[1].values()) for key in texts)
        if cut:
            yield Noted(
                f"{self._order.label}: {cut} of {len(texts)} prompts are longer than an encoder reads, and cut there"
            )

    def _text_key(self, job: Job) -> str:
        seen = self._family.sees_pictures
        return text_key(self._order.card.family, job.prompt, Sampler(**job.sampler), job.pictures if seen else ())

    def _picture_keys(self, job: Job) -> list[str]:
        if not self._family.encodes_pictures:
            return []
        sampler = Sampler(**job.sampler)
        return [picture_key(self._order.card.family, sha, sampler) for sha in job.pictures]

    # ---- batches

    def _buckets(self, jobs: Sequence[Job]) -> dict[str, list[Job]]:
        """Jobs of one shape together, by that shape's name, in the order in which they come."""
        buckets: dict[str, list[Job]] = {}
        sizes = {sha: self._picture(sha).pixels.size for sha in sorted({sha for job in jobs for sha in job.pictures})}
        for job in jobs:
            keys = [self._text_key(job), *self._picture_keys(job)]
            shape = [job.sampler, [sizes[sha] for sha in job.pictures], [self._of(key)[0] for key in keys]]
            buckets.setdefault(digest(shape), []).append(job)
        return buckets

    def _fill(self, bucket: str, jobs: list[Job], pool: ThreadPoolExecutor) -> Iterator[Event]:
        size, sentence = self._settle_size(bucket, jobs)
        if sentence:
            yield Noted(sentence)
        yield self._charge("warm-up")
        yield Settled(bucket, size)
        order = [job for batch in deal(jobs, 1, self._order.batch_order) for job in batch]
        at, stored = 0, _Stored([], 0)
        coming = pool.submit(self._items, padded(order[:size], size))
        while at < len(order):
            batch, items = order[at : at + size], coming.result()
            if at + size < len(order):  # read while the device is at work
                coming = pool.submit(self._items, padded(order[at + size : at + 2 * size], size))
            try:
                latents = self._generator.denoise(items)
                finite = [bool(x.isfinite().all()) for x in latents]
                yield self._charge("denoise", len(batch))
                images = self._generator.decode(latents, items[0].brief.sampler)
                yield self._charge("decode", len(batch))
            except _OUT_OF_MEMORY as e:
                size = self._halve(size, e)
                yield self._charge("retry")
                yield Noted(_halved(self._order.label, size))
                yield Settled(bucket, size)
                coming = pool.submit(self._items, padded(order[at : at + size], size))
                continue
            at += size
            files = [
                pool.submit(store_image, self._order.images, image) if ok else None
                for image, ok in zip(images, finite, strict=True)
            ]
            yield self._made(stored)  # its files were written while this batch was made
            stored = _Stored(list(zip(batch, files, strict=False)), size)
        yield self._made(stored)

    def _settle_size(self, bucket: str, jobs: list[Job]) -> tuple[int, str | None]:
        """The bucket's batch size, proven on this machine, and what a person should know of it."""
        known = self._order.known_sizes.get(bucket)  # proven by a session with the same numerics
        size, sentence = known or self._wanted_size(jobs[0]), None
        while True:
            try:
                items = self._items(jobs[: 2 * size])
                if size in (1, known):
                    if self._order.compile:
                        warm_up(self._generator, items[0], size)
                    return size, sentence
                if batch_is_neutral(self._generator, items, size):
                    return size, sentence
                sentence = f"{self._order.label}: batches of {size} change bytes on this machine; going on one by one"
                size = 1
            except _OUT_OF_MEMORY as e:
                size = self._halve(size, e)
                sentence = _halved(self._order.label, size)

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

    def _halve(self, size: int, error: torch.OutOfMemoryError) -> int:
        if size == 1:
            raise LocalBenchError(
                f"{self._order.label} does not fit into the device's memory even one by one: set engine.offload=always "
                "or a smaller size; what was made is kept"
            ) from error
        if self._machine.device.type == "cuda":
            torch.cuda.empty_cache()
        return size // 2

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

    def _brief(self, job: Job) -> Brief:
        return Brief(job.prompt, Sampler(**job.sampler), tuple(self._picture(sha) for sha in job.pictures))

    def _picture(self, sha256: str) -> Picture:
        return Picture(sha256, load_image(image_path(self._order.inputs, sha256)))

    def _made(self, stored: "_Stored") -> Made:
        return Made(
            [
                Result(
                    job.work_id,
                    None if file is None else file.result(),
                    stored.batch_size,
                    self._of(self._text_key(job))[1],
                )
                for job, file in stored.files
            ]
        )

    def _of(self, key: str) -> tuple[Any, dict[str, int]]:
        """Shape and truncated tokens of an encoding."""
        if key not in self._about:
            encoded = self._encodings.get(key)
            self._about[key] = (encoded.shape, encoded.truncated_tokens)
        return self._about[key]

    def _charge(self, phase: str, n_items: int = 0) -> Charged:
        if self._machine.device.type == "cuda":
            torch.cuda.synchronize(self._machine.device)
        return Charged(phase, n_items, time.monotonic_ns())


@dataclass(frozen=True)
class _Stored:
    """A batch whose files are being written."""

    files: list[tuple[Job, Future[str] | None]]
    batch_size: int


def _halved(label: str, size: int) -> str:
    return f"{label}: out of memory, going on with batches of {size} for this size"
