"""Human annotation of generated images: protocols, queues, and the server of `local-bench annotate`."""
