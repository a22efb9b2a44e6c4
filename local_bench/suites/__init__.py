"""What is asked: one module a benchmark."""
