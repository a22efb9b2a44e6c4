"""Settings of a process that imports large libraries: less logging, fewer garbage collections."""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def quiet_transformers() -> None:
    """As `quiet_libraries`, only for transformers and without importing it."""
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    if "transformers" in sys.modules:
        logging = sys.modules["transformers"].utils.logging
        logging.set_verbosity_error()
        logging.disable_progress_bar()


def quiet_libraries() -> None:
    """Limit the logging of diffusers and transformers to errors and disable their progress bars."""
    import diffusers
    import transformers

    for library in (diffusers.utils.logging, transformers.utils.logging):
        library.set_verbosity_error()
        library.disable_progress_bar()


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
