"""One definition of "out of memory", for a device and for the host; imports no torch."""

_SAYS_SO = (
    "out of memory",  # torch's allocator, the CUDA driver, Triton's launcher
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLASLT_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "can't allocate memory",  # torch's allocator for the host
    "not enough memory: you tried to allocate",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that an allocation failed: torch.OutOfMemoryError, or what libraries raise in its place."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _SAYS_SO)
