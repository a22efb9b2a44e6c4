"""Image generation: one module per model family, over a staged pipeline with batches of fixed shape."""
