"""What one process may use at once: threads for heavy work, and memory for bodies under way."""
