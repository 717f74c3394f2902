"""Chooses the upstream of a request, and makes the URL there.

The upstream comes from configuration only, never from the request.
"""

from dataclasses import replace
from urllib.parse import unquote, urlsplit

from yarl import URL

from gateway.core.errors import RequestRefused
from gateway.settings import Settings, UpstreamSettings
from gateway.tenants import Tenant, make_tenant_id
from gateway.wire.formats.registry import guess_format, without_version


class Upstreams:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._by_name = settings.upstreams
        # Upstreams of tenants who have a credential of their own there.
        self._own: dict[tuple[str, str], UpstreamSettings] = {}
        for section in settings.tenants:
            if section.upstream is not None and section.api_key is not None:
                owner, shared = make_tenant_id(section.name), settings.upstreams[section.upstream]
                own = replace(shared, api_key=section.api_key, key_owner=owner)
                self._own[owner, section.upstream] = own

    def choose(self, tenant: Tenant, path: str) -> UpstreamSettings:
        """The tenant's upstream, whatever the path; without one the first that serves the path's format."""
        named = self.find(tenant.upstream or "", tenant.id)
        return named if named is not None else self._settings.choose_upstream(guess_format(path))

    def find(self, name: str, owner: str) -> UpstreamSettings | None:
        """The upstream of this name, with the credential that this tenant's requests have there."""
        return self._own.get((owner, name)) or self._by_name.get(name)


def make_url(upstream: UpstreamSettings, path: str) -> URL:
    """base_url and the path after an optional leading /v1, as it was sent. Raises RequestRefused.

    A path with `..` could leave base_url and reach another tenant's part of the upstream.
    """
    if not path.startswith("/") or _has_dot_segments(path):
        raise RequestRefused(400, "The request path is not valid.")
    return URL(upstream.base_url + without_version(path), encoded=True)


def make_target(upstream: UpstreamSettings, path: str) -> str:
    """Path and query of that URL for the request line, byte for byte: a URL would drop an empty query."""
    origin_end = upstream.base_url.find("/", upstream.base_url.index("//") + 2)
    prefix = upstream.base_url[origin_end:] if origin_end >= 0 else ""
    return prefix + without_version(path) or "/"


def find_origin(url: str) -> str:
    """Scheme, host and port of a URL, for messages. User, password, path and query are left out."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _has_dot_segments(path: str) -> bool:
    plain = unquote(path.partition("?")[0]).replace("\\", "/")
    return any(segment in (".", "..") for segment in plain.split("/"))
