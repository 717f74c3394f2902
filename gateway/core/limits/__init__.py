"""How much fits: the limits of models, and the thresholds of a request. Knows no messages."""
