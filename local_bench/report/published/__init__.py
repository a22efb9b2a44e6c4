"""What each benchmark publishes, from its own result files: the numbers by name for programs, tables for people."""
