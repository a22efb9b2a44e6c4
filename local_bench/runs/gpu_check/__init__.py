"""Checks of a GPU and the software on it, by running parts of what a run does; see `gpu_check.main`."""
