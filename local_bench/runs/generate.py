"""The generation phases: encode every distinct prompt once, drop the encoders, denoise and decode batch by batch."""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import torch
from PIL import Image

from local_bench.core.errors import LedgerError, LocalBenchError
from local_bench.core.identity import full_identity
from local_bench.core.images import store_image
from local_bench.core.nouns import NOT_FINITE
from local_bench.core.quiet import quiet_libraries
from local_bench.generators import numerics
from local_bench.generators.base import Conditioning, Generator, Machine, Sampler
from local_bench.generators.batches import batch_is_neutral, deal, padded
from local_bench.generators.registry import family
from local_bench.runs.meter import Meter
from local_bench.runs.plan import ModelPlan
from local_bench.runs.progress import Progress
from local_bench.runs.rundir import RunDir


def generate(run: RunDir, models: Sequence[ModelPlan], meter: Meter, progress: Progress) -> None:
    """Makes every candidate that is still planned. Ends with every one done or unscored, unless an error is raised."""
    device = numerics.choose_device(run.config.engine.device)
    with ThreadPoolExecutor(run.config.engine.io_workers) as pool:
        for model in models:
            pending = _pending(run, model.label)
            if pending:
                attention = numerics.attention_backend(run.config.engine.attention_backend, device, model.card.dtype)
                machine = Machine(device, getattr(torch, model.card.dtype), attention)
                quiet_libraries()
                generator = family(model.card.family)(model.weights, machine)
                with _explained(model.label):
                    _Session(run, model, generator, machine, meter, progress, pool).make(pending)


def _pending(run: RunDir, model: str) -> list[sqlite3.Row]:
    """Candidates of a model that are not done, or whose image has gone from the run directory."""
    rows = run.ledger.rows("SELECT * FROM candidates WHERE model = ? AND state <> 'unscored' ORDER BY work_id", model)
    return [row for row in rows if row["state"] == "planned" or not run.image(row["pixels_sha256"]).exists()]


class _Session:
    """One model's work in one go."""

    def __init__(
        self,
        run: RunDir,
        model: ModelPlan,
        generator: Generator,
        machine: Machine,
        meter: Meter,
        progress: Progress,
        pool: ThreadPoolExecutor,
    ) -> None:
        self._run = run
        self._model = model
        self._generator = generator
        self._machine = machine
        self._meter = meter
        self._progress = progress
        self._pool = pool
        self._sampler = Sampler(**model.sampler)  # type: ignore[arg-type]  # the card's types hold

    def make(self, pending: list[sqlite3.Row]) -> None:
        conditionings = self._encode(sorted({row["prompt"] for row in pending}))
        self._generator.load_denoiser()
        self._charge("load")
        size = self._batch_size(list(conditionings.values()))
        self._charge("warm-up")
        signature = numerics.signature(self._machine.device, self._machine.attention, self._model.card.dtype, size)
        self._same_numerics(signature)
        self._progress.begin(f"{self._model.label}: make", len(pending))
        committing: list[tuple[sqlite3.Row, Future[str] | None]] = []
        for batch in deal(pending, size, self._run.config.engine.batch_order):
            images = self._batch(padded(batch, size), conditionings)
            stored = [(row, self._store(image)) for row, image in zip(batch, images, strict=False)]
            self._commit(committing, signature)  # the last batch's files were written while this one was made
            committing = stored
        self._commit(committing, signature)
        self._generator.drop_denoiser()

    def _encode(self, prompts: list[str]) -> dict[str, Conditioning]:
        self._generator.load_encoder()
        self._charge("load")
        self._progress.begin(f"{self._model.label}: encode", len(prompts))
        conditionings = {}
        for prompt in prompts:
            conditionings[prompt] = self._generator.encode(prompt, self._sampler)
            self._progress.advance()
        self._charge("encode", len(prompts))
        self._generator.drop_encoder()
        cut = sum(any(c.truncated_tokens.values()) for c in conditionings.values())
        if cut:
            self._progress.note(
                f"{self._model.label}: {cut} of {len(prompts)} prompts are longer than an encoder reads and cut"
            )
        return conditionings

    def _batch_size(self, conditionings: list[Conditioning]) -> int:
        size = self._model.batch_size
        if batch_is_neutral(self._generator, conditionings, self._sampler, size):
            return size
        self._progress.note(f"{self._model.label}: batches of {size} change bytes on this machine; going on one by one")
        return 1

    def _batch(self, rows: list[sqlite3.Row], conditionings: dict[str, Conditioning]) -> list[Image.Image | None]:
        noise = torch.cat([self._generator.noise(row["seed"], self._sampler) for row in rows])
        latents = self._generator.denoise([conditionings[row["prompt"]] for row in rows], noise, self._sampler)
        finite = [bool(x.isfinite().all()) for x in latents]
        self._charge("denoise", len({row["work_id"] for row in rows}))
        images = self._generator.decode(latents, self._sampler)
        self._charge("decode", len({row["work_id"] for row in rows}))
        return [image if ok else None for image, ok in zip(images, finite, strict=True)]

    def _store(self, image: Image.Image | None) -> "Future[str] | None":
        return None if image is None else self._pool.submit(store_image, self._run.images, image)

    def _commit(self, stored: list[tuple[sqlite3.Row, "Future[str] | None"]], signature: dict[str, object]) -> None:
        digests = [None if future is None else future.result() for _, future in stored]
        with self._run.ledger.transaction():
            for (row, _), sha256 in zip(stored, digests, strict=True):
                if row["pixels_sha256"] and row["pixels_sha256"] != sha256:
                    raise LedgerError(
                        f"{self._run.path}: made again, {row['task_id']} image {row['deliverable']} by {row['model']} "
                        "has other bytes than before: this machine does not repeat itself"
                    )
                # a picture that is made anew is measured anew where its lost file could not be
                self._run.ledger.write(
                    "DELETE FROM scores WHERE work_id = ? AND kind = 'metric' AND unscored IS NOT NULL", row["work_id"]
                )
                self._run.ledger.write(
                    "UPDATE candidates SET state = ?, identity = ?, pixels_sha256 = ?, unscored = ? WHERE work_id = ?",
                    "unscored" if sha256 is None else "done",
                    full_identity(row["work_id"], signature),
                    sha256,
                    NOT_FINITE if sha256 is None else None,
                    row["work_id"],
                )
        self._progress.advance(len(stored))

    def _same_numerics(self, signature: dict[str, object]) -> None:
        """Notes the signature of the run's first session; later ones must have the same (law 1). LedgerError if not."""
        key = f"numerics:{self._model.label}"
        there = self._run.ledger.json_meta(key)
        if there is None:
            self._run.ledger.set_meta(key, json.dumps(signature, sort_keys=True))
            return
        changed = next((k for k in sorted({*there, *signature}) if there.get(k) != signature.get(k)), None)
        if changed:
            raise LedgerError(
                f"{self._run.path} was begun with other numerics ({changed}: {there.get(changed)} then, "
                f"{signature.get(changed)} now), so the same bytes cannot be promised: give a new --run-dir"
            )

    def _charge(self, phase: str, n_items: int = 0) -> None:
        self._meter.charge(phase, n_items, self._model.label)


@contextmanager
def _explained(label: str) -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError as e:
        raise LocalBenchError(
            f"{label} does not fit into the device's memory: lower its batch_size or its size, what was made is kept"
        ) from e
