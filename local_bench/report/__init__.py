"""Presentation of runs: one HTML page per run, a site over several runs, and tables as files. Only reads the ledger."""
