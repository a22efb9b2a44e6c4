"""The payment model in the print shop's miniature, with simulated clients: see `__main__`."""
