"""Where a run's work is executed: on this machine, or on the nodes of a Ray cluster."""
