"""ServImage: paid design orders in three categories (Ji et al.)."""
