"""HYPE-EDIT-1: a hundred edits of marketing pictures, tried ten times each (Chan and Allen 2026)."""
