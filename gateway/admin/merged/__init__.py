"""One admin port for all workers of a gateway. It asks each worker at a Unix socket and merges the answers.

Knows nothing of conversations but the JSON of the pages.
"""
