"""Both sides of HTTP."""
