"""Numbers read off images: one metric a file, named with its preprocessing and direction."""
