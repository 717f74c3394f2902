"""The metrics for operators, scraped from the admin port (`/metrics`). docs/metrics.md explains each of them.

No label names a conversation, or holds text of one. A label that names a tenant has the name of the settings
file, and is empty for callers without such a name. Clients choose no label's value.
"""

from gateway.reporting.metrics.registry import CONTENT_TYPE, Metrics, SearchResult, SearchWay, SummaryWay

__all__ = ["CONTENT_TYPE", "Metrics", "SearchResult", "SearchWay", "SummaryWay"]
