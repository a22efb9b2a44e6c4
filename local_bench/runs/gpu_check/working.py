"""Images made by the worker of a run, with its own settings for this device."""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

from local_bench.core.errors import LocalBenchError
from local_bench.core.images import store_image
from local_bench.core.item_errors import is_failure
from local_bench.generators import numerics
from local_bench.generators.arithmetic import usual_input_images
from local_bench.generators.families import family
from local_bench.generators.masked import half_mask
from local_bench.generators.sampler import Sampler
from local_bench.models.cards import ModelCard
from local_bench.runs.gpu_check.attention import KernelCounter
from local_bench.runs.gpu_check.checks import Session
from local_bench.runs.gpu_check.models import PROMPTS, input_image
from local_bench.runs.work import (
    BatchSizeChosen,
    ImagesFinished,
    Job,
    Message,
    PhaseStarted,
    TimeCharged,
    WorkOrder,
)
from local_bench.runs.worker import Worker


@dataclass
class Made:
    """What a worker made, and how."""

    pixels: dict[str, str | None] = field(default_factory=dict)
    """Pixel digests by job; None if an output was not finite."""
    batch_sizes: list[int] = field(default_factory=list)
    """The batch sizes that were chosen, in order."""
    notes: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Time by phase."""
    kernels: dict[str, int] = field(default_factory=dict)
    """Runs of each attention kernel in the transformer, for the first batch."""


def order_of(
    session: Session,
    of: ModelCard,
    batch_size: int = 1,
    compiled: bool | None = None,
    offload: tuple[str, ...] = (),
) -> WorkOrder:
    """A work order for this card with random weights, in the session's folder. As in a run, blocks are compiled on a
    GPU, and the attention kernel follows the device; on a CPU the precision is float32."""
    dtype = of.dtype if session.on_gpu else "float32"
    folders = [session.scratch / name for name in ("images", "inputs", "encoded")]
    for folder in folders:
        folder.mkdir(exist_ok=True)
    images, inputs, encoded = folders
    return WorkOrder(
        label=of.name,
        card=of.model_copy(update={"dtype": dtype}),
        weights=None,
        parts={},
        weights_sha256="random",
        lossy={},
        device=str(session.device),
        attention=numerics.attention_backend("auto", session.device, dtype, of.attention, family(of.family).masks),
        compile=numerics.compiles(compiled, session.device, offload),
        offload=offload,
        threads=1,
        io_workers=2,
        batch_order="plan",
        batch_size=batch_size,
        attempts=batch_size,
        capacity_gb=None,
        images=images,
        inputs=inputs,
        encoded=encoded,
    )


def jobs_of(order: WorkOrder, samplers: Sequence[Sampler]) -> list[Job]:
    """One job per element of `samplers`, with input images for editing models."""
    jobs = []
    for i, sampler in enumerate(samplers):
        images = [input_image(k, sampler) for k in range(usual_input_images(order.card))]
        mask = store_image(order.inputs, half_mask(sampler).pixels) if order.card.takes.mask else None
        shas = tuple(store_image(order.inputs, image) for image in images)
        jobs.append(Job(f"{i}", PROMPTS[i % len(PROMPTS)], i, asdict(sampler), shas, mask))
    return jobs


def make(
    order: WorkOrder,
    jobs: Sequence[Job],
    counter: KernelCounter | None = None,
    loaded: Callable[[], None] | None = None,
) -> Made:
    """Generate `jobs`. `counter` counts the kernels of the first batch, after compilation and the batch invariance
    probe; `loaded` is called once the transformer is on the device."""
    made, at_ns = Made(), time.monotonic_ns()
    for event in Worker(order).make(jobs):
        match event:
            case Message(sentence):
                made.notes.append(sentence)
            case PhaseStarted(what) if loaded and what.endswith(": make"):
                loaded()
            case TimeCharged(phase, _, now_ns):
                made.seconds[phase] += (now_ns - at_ns) / 1e9
                at_ns = now_ns
            case BatchSizeChosen(_, size):
                made.batch_sizes.append(size)
                if counter:
                    counter.start()
            case ImagesFinished(results):
                for result in results:
                    if result.unscored and is_failure(result.unscored):  # of a run's item; here of the check
                        raise LocalBenchError(result.unscored)
                made.pixels.update({result.work_id: result.pixels_sha256 for result in results})
                if counter:
                    counter.stop()
                    made.kernels = counter.counts
    return made
