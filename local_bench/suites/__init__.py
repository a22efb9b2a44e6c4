"""Benchmarks: one package per suite, with its tasks, questions, scores and file formats."""
