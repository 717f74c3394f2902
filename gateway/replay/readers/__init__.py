"""Readers of recorded sessions, one file for each form. Each makes the requests that its client sent."""
