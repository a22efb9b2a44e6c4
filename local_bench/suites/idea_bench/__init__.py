"""IDEA-Bench: professional design tasks in five categories, six questions a case (Liang et al. 2024)."""
