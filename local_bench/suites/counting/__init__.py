"""A benchmark of counted objects."""
