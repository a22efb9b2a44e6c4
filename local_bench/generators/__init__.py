"""Image generation: one module per model and its variants, over a staged pipeline with batches of fixed shape."""
