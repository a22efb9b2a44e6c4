"""Analysis of finished runs: settlement, economics, agreement and comparison. Reads run directories; never imports
torch."""
