"""The release of local-bench, for code and provenance; equal to that in pyproject.toml."""

__version__ = "0.1.0"
