"""Deletes everything of one tenant: from every store, and from the memory of every process."""
