"""Core types and functions: identities, seeds, money, images, paths, errors. Imports no other part of the package."""

__version__ = "0.1.0"
"""The release of local-bench, for code and provenance; equal to that in pyproject.toml."""
