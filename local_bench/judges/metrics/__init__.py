"""Image metrics: one file per metric, each identified by name, preprocessing and direction."""
