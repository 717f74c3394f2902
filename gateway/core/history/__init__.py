"""Conversations and what was done to them before: chains, heads, pivots, marks. Knows no wire format and no
store.
"""
