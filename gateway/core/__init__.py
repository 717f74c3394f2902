"""Decisions: from values to values. Knows no socket, file, clock, environment, log or random number."""
