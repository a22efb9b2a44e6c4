"""local-bench: a benchmark house for open-weight image models on a lab's own GPUs."""

__version__ = "0.1.0"
