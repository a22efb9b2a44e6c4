"""Plans a model's device memory by phase, and from it the batch size and offloading.

A phase needs its weights on the device plus the peak of its live tensors, both from the counts of
`generators.operations`, in decimal GB:

    encode   encoders + one prompt's tensors (and VAE + one image's, if input images are encoded in this phase)
    denoise  transformer + VAE + B x concurrent passes x one pass's tensors (or one input image's in the VAE)
    decode   transformer + VAE + one image's tensors: the images of a batch are decoded one by one

Tensors include the workspaces of convolutions. `RESERVE_GB` stays free for the CUDA context (about 0.5 GB), other
programs (`OTHERS_GB`) and fragmentation of the allocator.

If only decoding does not fit, some of the transformer's blocks leave the device meanwhile (`parked_gb`), which takes a
fraction of a second per image. Weights that do not fit otherwise are offloaded: diffusers' group offloading copies them
layer by layer from pinned host memory (about twice their size there), with two of the largest layers on the device.
That is slower, and an offloaded transformer is not compiled, so its images differ from those of a larger GPU.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from local_bench.generators.operations import Operations, count, usual_size
from local_bench.generators.registry import NEIGHBOURS_MATTER, Sampler, check_lossy, traits
from local_bench.models.cards import ModelCard

RESERVE_GB = 1.5
OTHERS_GB = 0.5
"""Device memory that other programs (a desktop) may use before a run is refused."""
FILLS_GPU_FLOP = 60e12
"""A forward pass with this many operations saturates a large GPU: a batch of two gains 2 to 3 % (Qwen-Image and FLUX.1
at 1024 x 1024), while a batch of one is independent of other images by construction."""
OFFLOADABLE = ("encode", "denoise")
MOST_AT_ONCE = 4
PINNED_COPIES = 2
_GB = 1e9


@dataclass(frozen=True)
class Phase:
    """Device memory of one phase, decimal GB."""

    weights_gb: float
    tensors_gb: float
    fits: bool | None
    """None if the device's memory is not known."""

    @property
    def total_gb(self) -> float:
        return self.weights_gb + self.tensors_gb


@dataclass(frozen=True)
class MemoryPlan:
    """Memory by phase, batch size and offloading of a model on a device."""

    phases: dict[str, Phase]
    """encode, denoise, decode: as they will run, including offloading."""
    all_resident_gb: float
    """All weights together (they are never loaded together)."""
    batch_size: int
    offload: tuple[str, ...]
    """Phases whose weights are offloaded: "encode", "denoise"."""
    streamed_gb: dict[str, float]
    """GB copied to the device by each of these phases, per forward pass (encode: per prompt)."""
    parked_gb: float
    """GB of the transformer's weights that leave the device while an image is decoded."""
    refused: str | None
    """Why the model cannot run on the device and what to do: a sentence to follow the model's name and a colon."""
    sentences: tuple[str, ...]
    """Notes for the user, in the same form."""
    operations: Operations
    """The counts that the plan is based on."""

    @property
    def peak_gb(self) -> float:
        return max(phase.total_gb for phase in self.phases.values())

    @property
    def host_gb(self) -> float:
        """Pinned host memory for offloaded and parked weights."""
        return PINNED_COPIES * max((*self.streamed_gb.values(), self.parked_gb))


def plan_memory(
    card: ModelCard,
    sampler: Sampler,
    batch_size: int | None = None,
    capacity_gb: float | None = None,
    host_gb: float | None = None,
    input_images: int = 0,
    attempts: int = 1,
    lossy: Mapping[str, Any] | None = None,
    offload: Sequence[str] | None = None,
) -> MemoryPlan:
    """Plan one model at one size on a device of `capacity_gb` (None: unknown, so everything fits).

    `batch_size` None selects it: 1 if one pass saturates the GPU, else the largest power of two up to 4 that does not
    saturate it and fits; 1 for a card without an architecture. The family's limit applies in any case, and `attempts`
    is the limit if prompts of different lengths cannot share a batch. `lossy` are the lossy settings
    (`generators.registry`). `offload` None offloads the phases whose weights do not fit, else those given (of
    `OFFLOADABLE`). Raises ConfigError for a lossy setting that the family does not support.
    """
    lossy = lossy or {}
    check_lossy(lossy, card.family)
    counted = count(card, usual_size(card, sampler), input_images)
    need = _Need(card, counted, lossy)
    available = None if capacity_gb is None else capacity_gb - RESERVE_GB
    family = traits(card.family)
    limits = [
        1 if input_images and family.unbatched_with_images else family.max_batch,
        attempts if family.exact_length else None,
    ]
    limits += [1 for key in NEIGHBOURS_MATTER if key in lossy]
    limit = min((most for most in limits if most is not None), default=None)
    requested = batch_size or (_best(counted, need, available, limit) if card.architecture else 1)
    size = min(requested, limit or requested)
    streams = need.streams(available, size, offload)
    parked = 0.0 if available is None or "denoise" in streams else need.parked(available, size)
    phases = {name: need.phase(name, available, size, streams, parked) for name in ("encode", "denoise", "decode")}
    plan = MemoryPlan(
        phases=phases,
        all_resident_gb=need.all_gb,
        batch_size=size,
        offload=streams,
        streamed_gb={name: need.streamed[name] for name in streams},
        parked_gb=parked,
        refused=None,
        sentences=(),
        operations=counted,
    )
    refused = _refusal(phases, capacity_gb, plan.host_gb, host_gb)
    notes = []
    if size < requested:
        notes.append(f"the batch size is limited to {size} here, not {requested}")
    if offload is None and refused is None:
        notes += [_streaming(name, need, size, capacity_gb, family.compiles) for name in streams]
    return replace(plan, refused=refused, sentences=tuple(notes))


def _best(counted: Operations, need: "_Need", available: float | None, limit: int | None) -> int:
    pass_flop = counted.forward_flop * (counted.passes if counted.together else 1)
    size = 1
    while (
        2 * size <= min(MOST_AT_ONCE, limit or MOST_AT_ONCE)
        and 2 * size * pass_flop < FILLS_GPU_FLOP
        and (available is None or need.resident("denoise", 2 * size) <= available)
    ):
        size *= 2
    return size


class _Need:
    """Decimal GB of a model's parts."""

    def __init__(self, card: ModelCard, counted: Operations, lossy: Mapping[str, Any]) -> None:
        early = traits(card.family).encodes_images
        reads = counted.picture_live_bytes / _GB
        self._counted = counted
        self._vae = counted.vae_bytes / _GB
        self._early_vae = self._vae if early else 0.0
        self._encode = max(counted.encode_live_bytes / _GB, reads if early else 0.0)
        self._late_reads = 0.0 if early else reads
        transformer, layer = counted.transformer_bytes / _GB, counted.transformer_layer_bytes / _GB
        if str(lossy.get("weights", "")).startswith("float8"):
            # one byte per parameter, one layer cast at a time
            transformer = counted.transformer_parameters / _GB + layer
        self.streamed = {"encode": counted.encoder_bytes / _GB, "denoise": transformer}
        self._layers = {"encode": counted.encoder_layer_bytes / _GB, "denoise": layer}
        self.all_gb = sum(self.streamed.values()) + self._vae

    def resident(self, name: str, size: int) -> float:
        """A phase's memory with all its weights on the device."""
        return self._weights(name, ()) + self._tensors(name, size)

    def streams(self, available: float | None, size: int, wanted: Sequence[str] | None) -> tuple[str, ...]:
        """Phases that do not fit and are smaller with offloading, or those `wanted`. "denoise" includes decoding, for
        which blocks can be parked."""
        if wanted is not None:
            return tuple(name for name, gb in self.streamed.items() if gb and name in wanted)
        if available is None:
            return ()
        large = {name: self.resident(name, size) for name in ("encode", "denoise")}
        if self.parked(available, size) > self.streamed["denoise"]:
            large["denoise"] = max(large["denoise"], self.resident("decode", size))
        return tuple(n for n, gb in large.items() if gb > available and 2 * self._layers[n] < self.streamed[n])

    def parked(self, available: float, size: int) -> float:
        """GB of the transformer that must leave the device for decoding."""
        return max(0.0, self.resident("decode", size) - available)

    def phase(self, name: str, available: float | None, size: int, streams: tuple[str, ...], parked: float) -> Phase:
        weights = self._weights(name, streams) - (parked if name == "decode" else 0.0)
        tensors = self._tensors(name, size)
        return Phase(weights, tensors, None if available is None else weights + tensors <= available + 1e-9)

    def _weights(self, name: str, streams: tuple[str, ...]) -> float:
        part = "encode" if name == "encode" else "denoise"
        on_device = 2 * self._layers[part] if part in streams else self.streamed[part]
        return on_device + (self._early_vae if name == "encode" else self._vae)

    def _tensors(self, name: str, size: int) -> float:
        if name == "encode":
            return self._encode
        if name == "decode":
            return self._counted.decode_live_bytes / _GB
        counted = self._counted
        at_once = size * (counted.passes if counted.together else 1)
        return max(at_once * counted.forward_live_bytes / _GB, self._late_reads)


def _streaming(name: str, need: _Need, size: int, capacity_gb: float | None, compiles: bool) -> str:
    whole = max(need.resident(phase, size) for phase in (("encode",) if name == "encode" else ("denoise", "decode")))
    batch = f" in batches of {size}" if size > 1 else ""
    host = PINNED_COPIES * need.streamed[name]
    costs = " and its blocks are not compiled, so its images differ from a larger GPU's"
    costs = costs if compiles and name != "encode" else ""
    return (
        f"to {name}{batch} it needs {whole:.1f} GB and the device has {capacity_gb:.1f} GB, so its weights are "
        f"offloaded to host memory (about {host:.0f} GB); this is slower{costs}"
    )


def _refusal(
    phases: dict[str, Phase], capacity_gb: float | None, pinned_gb: float, host_gb: float | None
) -> str | None:
    for name, phase in phases.items():
        if phase.fits is False:
            return (
                f"to {name} it needs {phase.total_gb:.1f} GB and a reserve of {RESERVE_GB:g} GB, and the device has "
                f"{capacity_gb:.1f} GB: use a larger device, a smaller image size or a smaller batch size"
            )
    if host_gb is not None and pinned_gb > host_gb:
        return (
            f"offloading its weights needs {pinned_gb:.0f} GB of pinned host memory, and this machine has "
            f"{host_gb:.0f} GB: use a larger device or more host memory"
        )
    return None
