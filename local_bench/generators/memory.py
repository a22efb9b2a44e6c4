"""What a model needs of the device's memory, phase by phase, and what follows: images at once, what streams in.

A phase's need is the weights that lie on the device plus the most that lives beside them, both counted on the real
modules (`generators.arithmetic`), in decimal GB:

    encode   encoders + one prompt's tensors (and the VAE with one picture's, where it reads pictures before)
    denoise  transformer + VAE + B x passes-that-run-together x one pass's tensors (or one picture's in the VAE)
    decode   transformer + VAE + one image's tensors: images of a batch are decoded one by one

Besides, `RESERVE_GB` is kept free: the CUDA context (about 0.5), workspaces of the kernels and what the allocator holds
in pieces. Published peaks lie 0.9 to 2.8 GB above FLUX.1's and SD3.5's weights and counted tensors.

What does not fit streams in layer by layer from pinned host memory (diffusers' group offloading, which needs about
twice the weights there): on the device lie then two of the largest layers. It is slower and changes no bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from local_bench.generators.arithmetic import count, usual_size
from local_bench.generators.lossy import NEIGHBOURS_MATTER, check_lossy
from local_bench.generators.operations import Operations
from local_bench.generators.registry import traits
from local_bench.generators.sampler import Sampler
from local_bench.models.cards import ModelCard

RESERVE_GB = 1.5
FILLS_GPU_FLOP = 60e12
"""One forward pass of so many operations keeps a large GPU busy: two images in it gain 2 to 3 % (Qwen-Image and FLUX.1
at 1024 x 1024), and one alone depends on no neighbour."""
MOST_AT_ONCE = 4
PINNED_COPIES = 2
_GB = 1e9


@dataclass(frozen=True)
class Phase:
    """What one phase holds on the device, decimal GB."""

    weights_gb: float
    tensors_gb: float
    fits: bool | None
    """None where the device's memory is not known."""

    @property
    def total_gb(self) -> float:
        return self.weights_gb + self.tensors_gb


@dataclass(frozen=True)
class MemoryPlan:
    """How a model goes onto a device."""

    phases: dict[str, Phase]
    """encode, denoise, decode: as they will run, what streams in counted so."""
    all_resident_gb: float
    """All weights at once, which we never load together."""
    batch_size: int
    offload: tuple[str, ...]
    """Phases whose weights stream in: "encode", "denoise"."""
    streamed_gb: dict[str, float]
    """What each of these brings to the device, once a forward pass (encoding: once a prompt)."""
    refused: str | None
    """Why it cannot run there and what to do: the rest of a sentence that begins with the model's name and a colon."""
    sentences: tuple[str, ...]
    """What a person should know; in the same form."""
    operations: Operations
    """What it was planned from."""

    @property
    def peak_gb(self) -> float:
        return max(phase.total_gb for phase in self.phases.values())

    @property
    def host_gb(self) -> float:
        """Pinned host memory that streaming takes."""
        return PINNED_COPIES * max(self.streamed_gb.values(), default=0.0)


def plan_memory(
    card: ModelCard,
    sampler: Sampler,
    batch_size: int | None = None,
    capacity_gb: float | None = None,
    host_gb: float | None = None,
    pictures: int = 0,
    attempts: int = 1,
    lossy: Mapping[str, Any] | None = None,
    always_stream: bool = False,
) -> MemoryPlan:
    """Plans one model at one size on a device of `capacity_gb` (None: not known, so everything fits).

    `batch_size` None chooses: 1 where one pass fills the GPU, else the largest power of two up to 4 that stays below
    that and fits; 1 for a card without an architecture. A family's own limit comes before both; where prompts of
    other lengths cannot share a batch, so do the `attempts` at one. `lossy` are a system's settings
    (`generators.lossy`); `always_stream` lets weights stream in that would fit. ConfigError for a lossy way that its
    family does not have.
    """
    lossy = lossy or {}
    check_lossy(lossy, card.family, traits(card.family).lossy_ways)
    counted = count(card, usual_size(card, sampler), pictures)
    need = _Need(card, counted, lossy)
    room = None if capacity_gb is None else capacity_gb - RESERVE_GB
    limit = _limit(card, pictures, attempts, lossy)
    asked = batch_size or (_best(counted, need, room, limit) if card.architecture else 1)
    size = min(asked, limit or asked)
    streams = need.streams(room, size, always_stream)
    phases = {name: need.phase(name, room, size, streams) for name in ("encode", "denoise", "decode")}
    streamed = {name: need.streamed[name] for name in streams}
    refused = _refusal(phases, capacity_gb, PINNED_COPIES * max(streamed.values(), default=0.0), host_gb)
    said = []
    if size < asked:
        said.append(f"it makes at most {size} image{'s' * (size > 1)} at once here, not {asked}")
    if not always_stream and refused is None:
        said += [_streaming(name, need, size, capacity_gb) for name in streams]
    return MemoryPlan(
        phases=phases,
        all_resident_gb=need.all_gb,
        batch_size=size,
        offload=streams,
        streamed_gb=streamed,
        refused=refused,
        sentences=tuple(said),
        operations=counted,
    )


def _limit(card: ModelCard, pictures: int, attempts: int, lossy: Mapping[str, Any]) -> int | None:
    own = traits(card.family)
    limits = [own.largest_batch(pictures > 0), attempts if own.exact_length else None]
    limits += [1 for key in NEIGHBOURS_MATTER if key in lossy]
    return min((limit for limit in limits if limit is not None), default=None)


def _best(counted: Operations, need: "_Need", room: float | None, limit: int | None) -> int:
    pass_flop = counted.forward_flop * (counted.passes if counted.together else 1)
    size = 1
    while (
        2 * size <= min(MOST_AT_ONCE, limit or MOST_AT_ONCE)
        and 2 * size * pass_flop < FILLS_GPU_FLOP
        and (room is None or need.resident("denoise", 2 * size) <= room)
    ):
        size *= 2
    return size


class _Need:
    """Decimal GB of a model's parts."""

    def __init__(self, card: ModelCard, counted: Operations, lossy: Mapping[str, Any]) -> None:
        early = traits(card.family).encodes_pictures
        reads = counted.picture_live_bytes / _GB
        self._counted = counted
        self._vae = counted.vae_bytes / _GB
        self._early_vae = self._vae if early else 0.0
        self._encode = max(counted.encode_live_bytes / _GB, reads if early else 0.0)
        self._late_reads = 0.0 if early else reads
        transformer, layer = counted.transformer_bytes / _GB, counted.transformer_layer_bytes / _GB
        if str(lossy.get("weights", "")).startswith("float8"):
            transformer = counted.transformer_parameters / _GB + layer  # one byte each, one layer cast back at a time
        self.streamed = {"encode": counted.encoder_bytes / _GB, "denoise": transformer}
        self._layers = {"encode": counted.encoder_layer_bytes / _GB, "denoise": layer}
        self.all_gb = sum(self.streamed.values()) + self._vae

    def resident(self, name: str, size: int) -> float:
        """A phase with all its weights on the device."""
        return self._weights(name, ()) + self._tensors(name, size)

    def streams(self, room: float | None, size: int, always: bool) -> tuple[str, ...]:
        """Which phases do not fit and gain by streaming; decoding follows denoising."""
        if always:
            return tuple(name for name, gb in self.streamed.items() if gb)
        if room is None:
            return ()
        large = {"encode": self.resident("encode", size)}
        large["denoise"] = max(self.resident("denoise", size), self.resident("decode", size))
        return tuple(n for n, gb in large.items() if gb > room and 2 * self._layers[n] < self.streamed[n])

    def phase(self, name: str, room: float | None, size: int, streams: tuple[str, ...]) -> Phase:
        weights, tensors = self._weights(name, streams), self._tensors(name, size)
        return Phase(weights, tensors, None if room is None else weights + tensors <= room)

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


def _streaming(name: str, need: _Need, size: int, capacity_gb: float | None) -> str:
    whole = max(need.resident(phase, size) for phase in (("encode",) if name == "encode" else ("denoise", "decode")))
    batch = f" in batches of {size}" if size > 1 else ""
    host = PINNED_COPIES * need.streamed[name]
    return (
        f"to {name}{batch} it would take {whole:.1f} GB and the device has {capacity_gb:.1f} GB, so its weights stream "
        f"in from host memory (about {host:.0f} GB there); that is slower and changes no bytes"
    )


def _refusal(
    phases: dict[str, Phase], capacity_gb: float | None, pinned_gb: float, host_gb: float | None
) -> str | None:
    for name, phase in phases.items():
        if phase.fits is False:
            return (
                f"to {name} it needs {phase.total_gb:.1f} GB and {RESERVE_GB:g} GB to spare, and the device has "
                f"{capacity_gb:.1f} GB: take a larger device, a smaller size or fewer images at once"
            )
    if host_gb is not None and pinned_gb > host_gb:
        return (
            f"its weights would stream in from {pinned_gb:.0f} GB of pinned host memory, and this machine has "
            f"{host_gb:.0f} GB: take a larger device or more host memory"
        )
    return None
