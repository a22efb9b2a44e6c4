"""Who would pay, by a rule or by a model that people's labels have taught: probabilities and decisions, never mixed."""
