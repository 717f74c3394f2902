"""A transparent gateway that keeps conversations inside the context window."""

__version__ = "0.1.0"
