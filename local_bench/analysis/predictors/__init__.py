"""Predictors of payment that are trained on annotated runs and used on other runs."""
