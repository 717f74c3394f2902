"""OpenTelemetry: a span for each request, its upstream calls, and summaries. Off by default.

Spans hold ids, names and numbers, and no content of a conversation. `tracer` and `spans` use the libraries,
which are an extra: they are imported only where traces are on.
"""
