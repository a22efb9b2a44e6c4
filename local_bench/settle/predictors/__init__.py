"""Acceptance predictors: threshold rules and models fitted to annotations; probabilities and decisions are separate."""
