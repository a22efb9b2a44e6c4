"""HYPE-EDIT-1: one hundred edits of marketing images with ten attempts each (Chan and Allen 2026)."""
