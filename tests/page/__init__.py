"""The operators' page: its files, and the page itself in a browser."""
