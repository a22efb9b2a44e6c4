"""ICE-Bench: 31 creating and editing tasks, measured along six dimensions (Pan et al. 2025)."""
