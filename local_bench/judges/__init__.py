"""Evaluation of images: VLM judges, metrics and hard rules."""
