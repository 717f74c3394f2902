"""The way of one request. `proxy` tells it: admission, turns, asks, plan, sender, retry.

Knows how a request is served, not how summaries are made or where state is stored.
"""
