"""What the process has imported that the tests' workers are forked from."""

import gc

import diffusers  # noqa: F401

import local_bench.runs.worker  # noqa: F401
from tests.small_references import small_references

small_references(setattr)
gc.collect()
gc.freeze()  # no collection in a worker goes through what was imported
