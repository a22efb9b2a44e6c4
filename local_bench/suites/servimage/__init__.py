"""ServImage: paid design tasks in three categories (Ji et al.)."""
