"""Twelve design tasks written for local-bench, in the form of ServImage's."""
