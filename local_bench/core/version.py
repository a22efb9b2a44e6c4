"""The release of local-bench, where code and provenance read it; pyproject.toml has the same."""

__version__ = "0.1.0"
