"""Core types and functions: identities, seeds, money, images, paths, errors. Imports no other part of the package."""
