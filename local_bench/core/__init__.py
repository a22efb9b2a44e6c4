"""The nouns and the laws: identities, seeds, money, images, paths and errors. Imports nothing of ours."""
