"""Chooses the upstream of a request, and makes the URL there.

The upstream comes from configuration only; the request says which of the configured ones. A caller's key goes
to its own provider or nowhere.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final
from urllib.parse import quote, quote_plus, unquote, unquote_plus, urlsplit

from multidict import CIMultiDictProxy
from pydantic import SecretStr
from yarl import URL

from gateway.core.errors import RequestRefused
from gateway.headers import Identity, read_identity
from gateway.settings import Settings, UpstreamSettings, list_reached, name_provider
from gateway.tenants import Tenant, make_tenant_id
from gateway.wire.registry import guess_format, without_version

_OPENAI, _ANTHROPIC = "api.openai.com", "api.anthropic.com"
# How keys begin. Other providers' keys begin with `sk-`, too.
_ANTHROPICS_KEY: Final = "sk-ant-"
_OPENAIS_KEYS: Final = ("sk-proj-", "sk-svcacct-", "sk-admin-")
_MANY_PROVIDERS_KEY: Final = "sk-"
# Every request of Anthropic's SDKs and of Claude Code has it.
_ANTHROPICS_HEADER: Final = "anthropic-version"
_ANTHROPICS_FORM: Final = "x-api-key"
_OPENAIS_FORMATS: Final = frozenset({"chat", "responses"})
_ANTHROPICS_FORMATS: Final = frozenset({"messages"})
# The first segments of paths that only one of the two APIs has. Both have files, models and skills.
_FORMATS_BY_SEGMENT: Final = {
    **dict.fromkeys(("audio", "batches", "completions", "embeddings", "images"), _OPENAIS_FORMATS),
    **dict.fromkeys(("moderations", "conversations", "vector_stores"), _OPENAIS_FORMATS),
    **dict.fromkeys(("complete", "organizations"), _ANTHROPICS_FORMATS),
}
# URLs lose these.
_DROPPED: Final = re.compile(r"[\t\r\n]")
# A fragment, and bytes that are not UTF-8.
_QUOTED: Final = re.compile(r"[#\ud800-\udfff]")
_FOREIGN: Final = (
    "The gateway did not send this request on: its key is one of another provider than that of upstream {}, "
    "which the path belongs to."
)
_UNDECIDED: Final = (
    "The gateway did not send this request on: neither its path nor its key says which of several upstreams "
    "the key is for. In the settings, an upstream can have an `api_key`, or a tenant its `upstream`."
)


class Upstreams:
    def __init__(self, settings: Settings) -> None:
        self._by_name = settings.upstreams
        reached = list_reached({name: each.formats for name, each in self._by_name.items()})
        self._reached = [self._by_name[name] for name in reached]
        self._is_one_provider = len({name_provider(each.base_url) for each in self._reached}) == 1
        # Upstreams of tenants who have a credential of their own there.
        self._own: dict[tuple[str, str], UpstreamSettings] = {}
        for section in settings.tenants:
            if section.upstream is not None and section.api_key is not None:
                owner, shared = make_tenant_id(section.name), settings.upstreams[section.upstream]
                own = replace(shared, api_key=section.api_key, key_owner=owner)
                self._own[owner, section.upstream] = own

    def choose(self, tenant: Tenant, path: str, headers: CIMultiDictProxy[str]) -> UpstreamSettings:
        """The tenant's upstream, whatever the path. Without one the first of these:

        1. the one that serves the path's format;
        2. where all upstreams are of one provider, the first;
        3. the first that speaks the API of the path, of the caller's key, or of `anthropic-version`.

        Raises RequestRefused where a key of the caller would go to another provider than its own, or could be
        meant for several.
        """
        named = self.find(tenant.upstream or "", tenant.id)
        if named is not None:
            return named
        serving = [each for each in self._reached if guess_format(path) in each.formats][:1]
        if self._is_one_provider:
            return (serving or self._reached)[0]
        identity = read_identity(headers, path)
        open_to = serving or self._reached
        fitting: Sequence[UpstreamSettings] = [each for each in open_to if _may_receive(each, identity)]
        if not serving:
            fitting = _list_speaking(fitting, path, identity, headers)
        takers = {name_provider(each.base_url) for each in fitting if each.api_key is None}
        if fitting and (fitting[0].api_key is not None or len(takers) == 1 or identity == Identity()):
            return fitting[0]
        message = _FOREIGN.format(f"'{serving[0].name}'") if serving else _UNDECIDED
        raise RequestRefused(400, message, code="foreign_key" if serving else "undecided_upstream")

    def find(self, name: str, owner: str) -> UpstreamSettings | None:
        """The upstream of this name, with the credential that this tenant's requests have there."""
        return self._own.get((owner, name)) or self._by_name.get(name)


def _may_receive(upstream: UpstreamSettings, identity: Identity) -> bool:
    """False if a key of the caller is certainly another provider's, and would be forwarded."""
    return upstream.api_key is not None or not any(_is_foreign(key, upstream) for key in identity.credentials)


def _is_foreign(key: str, upstream: UpstreamSettings) -> bool:
    host = urlsplit(upstream.base_url).hostname
    if key.startswith(_ANTHROPICS_KEY):
        return host == _OPENAI or upstream.formats <= _OPENAIS_FORMATS
    if key.startswith(_OPENAIS_KEYS):
        return host == _ANTHROPIC or upstream.formats <= _ANTHROPICS_FORMATS
    return host == _ANTHROPIC and key.startswith(_MANY_PROVIDERS_KEY)


def _list_speaking(
    upstreams: Sequence[UpstreamSettings], path: str, identity: Identity, headers: CIMultiDictProxy[str]
) -> Sequence[UpstreamSettings]:
    """Those that speak the API of a path which is of no wire format; all if none does, or nothing tells."""
    segment = without_version(path).partition("?")[0].strip("/").partition("/")[0]
    formats = _FORMATS_BY_SEGMENT.get(segment) or _guess_formats(identity, headers)
    return [each for each in upstreams if each.formats & formats] or upstreams


def _guess_formats(identity: Identity, headers: CIMultiDictProxy[str]) -> frozenset[str]:
    """By the caller's keys and how they are sent. Of both APIs if these say different things."""
    formats: set[str] = set()
    if _ANTHROPICS_HEADER in headers or _ANTHROPICS_FORM in headers:
        formats |= _ANTHROPICS_FORMATS
    for key in set(identity.credentials) - set(headers.getall(_ANTHROPICS_FORM, ())):
        if key.startswith(_ANTHROPICS_KEY):
            formats |= _ANTHROPICS_FORMATS
        elif key.startswith(_MANY_PROVIDERS_KEY):
            formats |= _OPENAIS_FORMATS
    return frozenset(formats)


def make_url(upstream: UpstreamSettings, path: str) -> URL:
    """base_url and the path after an optional leading /v1, as it was sent, with the settings' query. Raises
    RequestRefused.

    A path with `..` could leave base_url and reach another tenant's part of the upstream. What a URL would
    drop from a path is quoted, so that the path that was checked is the path that is sent.
    """
    if not path.startswith("/") or _has_dot_segments(path) or _DROPPED.search(path):
        raise RequestRefused(400, "The request path is not valid.")
    if not path.isascii() or "#" in path:
        path = _QUOTED.sub(lambda found: quote(found[0].encode("utf-8", "surrogateescape")), path)
    if upstream.query:
        path = _with_query(path, upstream.query)
    return URL(upstream.base_url + without_version(path), encoded=True)


def _with_query(path: str, query: Mapping[str, SecretStr]) -> str:
    """Those of the settings take the place of the caller's."""
    path, _, sent = path.partition("?")
    kept = [
        field for field in sent.split("&") if field and unquote_plus(field.partition("=")[0]) not in query
    ]
    own = [f"{quote_plus(name)}={quote_plus(value.get_secret_value())}" for name, value in query.items()]
    return f"{path}?{'&'.join([*kept, *own])}"


def _has_dot_segments(path: str) -> bool:
    plain = unquote(path.partition("?")[0]).replace("\\", "/")
    return any(segment in (".", "..") for segment in plain.split("/"))
