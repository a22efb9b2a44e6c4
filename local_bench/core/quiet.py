"""Keeps the libraries' own chatter off the terminal: what they would warn of (cut prompts) we count and report."""


def quiet_libraries() -> None:
    """Leaves only errors of diffusers and transformers, and no progress bars of theirs."""
    import diffusers
    import transformers

    for library in (diffusers.utils.logging, transformers.utils.logging):
        library.set_verbosity_error()
        library.disable_progress_bar()
