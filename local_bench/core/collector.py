"""Python's garbage collector in processes that import large libraries."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_modules = 0
"""Number of imported modules when objects were last left out."""


def collect() -> None:
    """Free unreachable objects.

    What modules imported since the last call made stays alive to the end of the process: it is left out of later
    collections, each of which would take 0.3 s with diffusers and transformers (half of the time of a small model).
    """
    global _modules  # noqa: PLW0603  # one collector per process
    gc.collect()
    if len(sys.modules) > _modules:
        _modules = len(sys.modules)
        gc.freeze()


def collect_rarely() -> None:
    """Collect after 50,000 new objects instead of 700: importing torch and diffusers takes an eighth less time."""
    gc.set_threshold(50_000, 20, 20)


@contextmanager
def paused() -> Iterator[None]:
    """No collections within this context: importing thousands of modules makes no garbage, but a fifth of its time is
    collections."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
