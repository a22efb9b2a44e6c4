"""Execution of a run: config, plan, store, phases, workers, metering and provenance."""
