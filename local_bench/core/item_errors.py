"""Exceptions of one item (a prompt, an image, a question), which make that item unscored and end nothing else."""

from typing import Generic, TypeVar

from local_bench.core.errors import LocalBenchError

_MESSAGES = (
    "out of memory",  # torch's allocator, the CUDA driver, Triton's launcher
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",  # cublasCreate without memory for its workspace
    "CUBLASLT_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "CUDNN_STATUS_NOT_INITIALIZED",
    "was unable to find an engine to execute this computation",  # torch tries each engine of cuDNN, and none had memory
    "No execution plans support the graph",
    "can't allocate memory",  # torch's allocator for the host
    "not enough memory: you tried to allocate",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` is a failed allocation: torch.OutOfMemoryError, or a library's equivalent."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(message in str(error) for message in _MESSAGES)


T = TypeVar("T")
FAILED = "failed while "
"""Prefix of the reason of an item for which an exception was raised; the next session processes it again."""
MAX_EQUAL = 32
"""Equal failures at the start of a phase after which it stops."""
_DEVICE = ("CUDA error", "CUDA driver error", "CUBLAS_STATUS", "CUDNN_STATUS", "cuDNN error", "device-side assert")
_MAX_CHARACTERS = 200


def is_of_item(error: BaseException) -> bool:
    """Whether an exception can concern the processed item alone: no lack of memory or disk space, no fault of the
    device, and no error that has a message for the user."""
    if isinstance(error, LocalBenchError) or not isinstance(error, Exception) or is_out_of_memory(error):
        return False
    if isinstance(error, OSError) and error.errno is not None:  # Pillow's errors for an image have no number
        return False
    if type(error).__name__ in ("AcceleratorError", "OutOfDeviceMemory", "EngineDeadError"):  # torch's, ours, vLLM's
        return False
    return not any(name in str(error) for name in _DEVICE)


def failure(step: str, error: Exception) -> str:
    """The reason of an item for which `error` was raised: `failed while encoding (ValueError: …)`. Raises `error` if it
    is not of the item alone."""
    if not is_of_item(error):
        raise error
    first = (str(error).strip().splitlines() or [""])[0][:_MAX_CHARACTERS]
    return f"{FAILED}{step} ({type(error).__name__}{': ' if first else ''}{first})"


def is_failure(reason: str | None) -> bool:
    return reason is not None and reason.startswith(FAILED)


class FirstFailures(Generic[T]):
    """Holds back what failed until something succeeds: what fails in the same way for every item is no fault of the
    items, and must not be stored as theirs."""

    def __init__(self, what: str, advice: str, begun: bool = False) -> None:
        """`what` names the items in the message (`images of flux`); with `begun`, something has succeeded before."""
        self._what, self._advice, self._begun = what, advice, begun
        self._held: list[tuple[str, tuple[T, ...]]] = []

    def failed(self, reason: str, *results: T) -> list[T]:
        """Add a failed item with its results; return what may be stored. LocalBenchError after `MAX_EQUAL` equal ones
        from the start."""
        self._held.append((reason, results))
        if not self._begun and len(self._held) >= MAX_EQUAL and len({held for held, _ in self._held}) == 1:
            raise LocalBenchError(
                f"none of the first {len(self._held)} {self._what} has a result, all for one reason ({reason}): "
                f"{self._advice}, and run the same command again; nothing of these is stored"
            )
        return self.released() if self._begun else []

    def succeeded(self, *results: T) -> list[T]:
        """Add a result; return it with what was held back."""
        self._begun = True
        return [*self.released(), *results]

    def released(self) -> list[T]:
        """What is held back, at the end of the phase."""
        held, self._held = [result for _, results in self._held for result in results], []
        return held
