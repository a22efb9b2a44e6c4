"""Keeps the libraries' own chatter off the terminal: what they would warn of (cut prompts) we count and report."""

import os
import sys


def quiet_transformers() -> None:
    """As `quiet_libraries` for transformers alone, which is not imported for it."""
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    if "transformers" in sys.modules:
        logging = sys.modules["transformers"].utils.logging
        logging.set_verbosity_error()
        logging.disable_progress_bar()


def quiet_libraries() -> None:
    """Leaves only errors of diffusers and transformers, and no progress bars of theirs."""
    import diffusers
    import transformers

    for library in (diffusers.utils.logging, transformers.utils.logging):
        library.set_verbosity_error()
        library.disable_progress_bar()
