"""Reads the responses of all wire formats: usage, finish reasons, errors, the text of a reply."""
