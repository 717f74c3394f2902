"""Settings of one upstream."""

from typing import Any

from gateway.settings import WIRE_FORMATS, UpstreamSettings


def make_upstream(base_url: str = "https://api.test/v1", **changes: Any) -> UpstreamSettings:
    """changes: further fields of UpstreamSettings."""
    fields: dict[str, Any] = {
        "name": "default",
        "api_key": None,
        "allow": (),
        "formats": frozenset(WIRE_FORMATS),
        "include_usage": True,
        "discover": False,
        "max_body_bytes": None,
        "max_images": None,
        "connect_seconds": 1,
        "idle_seconds": 1,
    }
    return UpstreamSettings(base_url=base_url, **fields | changes)
