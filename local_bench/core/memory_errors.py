"""Recognises out-of-memory errors of devices and of the host; imports no torch."""

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
