"""What leaves for the provider: a plan turned into the bytes of a body, and what the gateway adds to it.

Knows how bodies are made, not why: plans come from `core.compaction`.
"""
