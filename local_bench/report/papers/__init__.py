"""The tables and figures of the four papers, made from runs or from the benchmarks' own result files."""
