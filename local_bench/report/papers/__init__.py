"""The tables and figures of the four papers, created from runs or from the benchmarks' own result files."""
