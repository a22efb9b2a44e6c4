"""Evaluation of images: VLM judges, metrics, hard rules and human annotation."""
