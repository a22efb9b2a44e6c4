"""ICE-Bench: 31 image creation and editing tasks, evaluated in six dimensions (Pan et al. 2025)."""
