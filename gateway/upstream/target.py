"""Where a request goes, and which headers go with it.

The upstream comes from configuration only. End-to-end headers pass as they are; hop-by-hop ones, ours and,
where the upstream has a key of its own, every form of the caller's credential do not.
"""

from functools import lru_cache
from typing import Final
from urllib.parse import unquote

from yarl import URL

from gateway.core.errors import RequestRefused
from gateway.settings import Settings, UpstreamSettings
from gateway.tenants import Tenant
from gateway.wire.formats.registry import guess_format, without_version

_LONGEST_KEPT_PATH: Final = 256


class Upstreams:
    def __init__(self, settings: Settings) -> None:
        self._by_name = settings.upstreams

    def choose(self, tenant: Tenant, path: str) -> UpstreamSettings:
        """The tenant's own, whatever the path; without one the first that speaks what the path asks for."""
        wanted = guess_format(path)
        named = self._by_name.get(tenant.upstream or "")
        if named is not None:
            return named
        candidates = [up for up in self._by_name.values() if wanted is None or wanted in up.formats]
        return candidates[0] if candidates else next(iter(self._by_name.values()))

    def read(self, name: str) -> UpstreamSettings | None:
        return self._by_name.get(name)


def make_url(upstream: UpstreamSettings, path: str) -> URL:
    """base_url + the path after an optional leading /v1, as it was sent. Raises RequestRefused.

    A path that climbs out of base_url could reach another tenant's part of the upstream.
    """
    make = _make_url if len(path) <= _LONGEST_KEPT_PATH else _make_url.__wrapped__
    return make(upstream.base_url, path)


@lru_cache(maxsize=512)
def _make_url(base_url: str, path: str) -> URL:
    if not path.startswith("/") or _climbs(path):
        raise RequestRefused(400, "The request path is not valid.")
    return URL(base_url + without_version(path), encoded=True)


def make_target(upstream: UpstreamSettings, path: str) -> str:
    """The same as the request line names it, to the letter."""
    origin_end = upstream.base_url.find("/", upstream.base_url.index("//") + 2)
    prefix = upstream.base_url[origin_end:] if origin_end >= 0 else ""
    return prefix + without_version(path) or "/"


def _climbs(path: str) -> bool:
    plain = unquote(path.partition("?")[0]).replace("\\", "/")
    return any(segment in (".", "..") for segment in plain.split("/"))
