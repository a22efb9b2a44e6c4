"""What finished runs say: settlement, economics, agreement, comparison. Reads run directories, never imports torch."""
