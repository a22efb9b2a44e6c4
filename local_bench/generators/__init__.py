"""What is made: one module a model family, in stages and fixed batches."""
