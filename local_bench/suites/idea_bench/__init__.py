"""IDEA-Bench: professional design tasks in five categories, six questions per case (Liang et al. 2024)."""
