"""Digests and lists of facts, made from messages without a model. Knows messages and a size in characters."""
