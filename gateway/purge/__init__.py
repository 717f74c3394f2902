"""Deletes everything of one tenant, or of one conversation: from every store, and from the memory of every
process.
"""
