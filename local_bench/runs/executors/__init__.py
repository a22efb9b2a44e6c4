"""Execution of a run's work on this machine, or on the nodes of a Ray cluster."""
