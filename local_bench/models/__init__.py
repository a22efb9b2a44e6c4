"""Model cards, weights on disk, download and verification, conversion, device classes."""
