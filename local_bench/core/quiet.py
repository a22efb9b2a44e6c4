"""Silences warnings and progress bars of the libraries; truncated prompts are counted and reported separately."""

import os
import sys


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
