"""Small seeded models in the libraries' own classes, for tests and for trying local-bench out."""
