"""The way of one request. `proxy` tells it: admission, turns, commands, planning, sender, overflow_retry.

Knows how a request is served, not how summaries are made or where state is stored.
"""
