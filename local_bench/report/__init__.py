"""What people look at: one page a run, and its tables as files. Only reads the ledger."""
