"""The way of one request: admission, turns, commands, planning_step, sender, overflow_retry. `proxy` tells it.

Knows how a request is served, not how summaries are made or where state is stored.
"""
