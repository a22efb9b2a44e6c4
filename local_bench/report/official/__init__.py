"""A run in each benchmark's own words: its result files, and the published numbers that follow from them."""
