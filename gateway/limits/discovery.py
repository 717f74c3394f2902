"""Asks upstreams for their lists of models: the one prober for limits, start check and doctor.

For limits it is one GET in the background, now and then, and no request waits for it. If the settings give no
key for the upstream, it is asked with the client's headers, and the list holds for that tenant alone. With a
key, the request has nothing of the client's, and the list holds for all tenants, or for the one whose own key
it is.

At the start it finds the most frequent mistake: a base URL without the /v1 of a local server, which answers
404 to every request then. It only says so: nothing is ever sent to another address than the configured one.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit

import msgspec

from gateway.bounds.background import BackgroundTasks
from gateway.core.limits.model_limits import Limits
from gateway.headers import RawHeaders, make_internal_headers, make_upstream_headers
from gateway.http.client import Client, Fetched, OwnCall
from gateway.http.failures import CALL_ERRORS, describe_failure
from gateway.http.target import make_url
from gateway.limits.book import LimitsBook, choose_viewer
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru
from gateway.settings import UpstreamSettings
from gateway.wire.content_encoding import decode_body
from gateway.wire.model_list import MAX_BYTES, parse_model_list

log = logging.getLogger("gateway.discovery")
_start: Final = logging.getLogger("gateway.start")

# A list that takes longer does not help the conversation that caused the request.
_TIMEOUT_SECONDS: Final = 10.0
# Models come and go, and local servers load them with other windows.
_REFRESH_SECONDS: Final = 3_600.0
_RETRY_SECONDS: Final = 300.0
# Many new clients at once must not become many requests at once. The others cause one later.
_MAX_AT_ONCE: Final = 32
# Some 5,000 of them; one that is dropped is asked again.
_TIMES_BYTES: Final = 1 << 20
_TIME_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 250

_VERSION: Final = "/v1"
LIST_PATH: Final = "/models"
# By default a page of Anthropic's list holds 20 models. Its key needs a version header.
_MESSAGES_QUERY: Final = "?limit=1000"
_MESSAGES_VERSION: Final = ("anthropic-version", "2023-06-01")
# Without a key, or with a wrong one: but the API is there.
KEY_WANTED: Final = frozenset({401, 403})
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
# Longest part of the place that a redirect names which is shown. The upstream chooses it.
_SHOWN_CHARS: Final = 200


class ListAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What came of asking for the list of models.

    limits: of the models that a list says them of; None if there is no list: then `reason` says why, in plain
    words. body: of a list, without its content encoding. status: 0 if no response came: then `error` says
    why. is_api: whether an API has answered; False for a web page. date: of the response, empty if it has
    none. place: scheme, host and path that a redirect names; its query may hold a key.
    """

    limits: dict[str, Limits] | None = None
    body: bytes = b""
    reason: str = ""
    status: int = 0
    is_api: bool = False
    date: str = ""
    place: str = ""
    error: BaseException | None = None


async def list_models(
    upstream: UpstreamSettings, client: Client, received: RawHeaders = (), base_url: str | None = None
) -> ListAnswer:
    """received: headers of a client, used where we have no key. base_url: None for that of the settings."""
    asked = upstream if base_url is None else replace(upstream, base_url=base_url)
    path = LIST_PATH + _MESSAGES_QUERY if _speaks_messages_only(upstream) else LIST_PATH
    call = OwnCall(upstream, "GET", str(make_url(asked, path)), make_list_headers(asked, received))
    body, limits = b"", None
    try:
        found = await client.fetch(call, _TIMEOUT_SECONDS, MAX_BYTES)
        if found.status == 200 and found.body is not None:
            encoding = found.headers.get("content-encoding", "")
            # A few bytes may decode to megabytes, and 30 microseconds a model is too long for the event loop.
            body, limits = await asyncio.to_thread(_parse, found.body, encoding)
    except CALL_ERRORS as error:
        return ListAnswer(reason=describe_failure(error, call.url), error=error)
    is_json = "json" in found.headers.get("content-type", "")
    return ListAnswer(
        limits=limits,
        body=body,
        reason="larger than a model list" if found.status == 200 else f"status {found.status}",
        status=found.status,
        is_api=found.status in KEY_WANTED or (found.status == 200 and is_json),
        date=found.headers.get("date", ""),
        place=_read_place(found),
    )


def make_list_headers(upstream: UpstreamSettings, received: RawHeaders) -> list[tuple[str, str]]:
    """Those of a request for the list of models. received: of a client, used where we have no key."""
    sent = received if upstream.api_key is None else ()
    headers = make_upstream_headers(sent, upstream, _VERSION + LIST_PATH)
    own = [*make_internal_headers(headers.items()), ("Accept", "application/json")]
    if _speaks_messages_only(upstream) and "anthropic-version" not in headers:
        own.append(_MESSAGES_VERSION)
    return own


async def probe(upstream: UpstreamSettings, client: Client) -> tuple[ListAnswer, ListAnswer | None]:
    """What the configured address answers, and the likely other one where that is no API, or None."""
    found = await list_models(upstream, client)
    if found.error is not None or found.is_api or found.status in REDIRECTS:
        return found, None
    return found, await list_models(upstream, client, base_url=find_other_url(upstream.base_url))


def find_other_url(base_url: str) -> str:
    """Most often the /v1 of a local server is missing, or there is one too many."""
    return base_url.removesuffix(_VERSION) if base_url.endswith(_VERSION) else base_url + _VERSION


class Discovery:
    def __init__(
        self,
        limits: LimitsBook,
        client: Client,
        tasks: BackgroundTasks,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """tasks: all that ask upstreams in the background."""
        self._limits = limits
        self._client = client
        self._clock = clock
        # When each (viewer, upstream) may be asked again, by the clock.
        self._next_seconds: Lru[tuple[str, str], float] = Lru(_TIMES_BYTES)
        self._tasks = tasks
        # What has been logged: names of upstreams, each with a status or one of few reasons.
        self._failures: set[tuple[str, str]] = set()

    def notice(self, owner: str, upstream: UpstreamSettings, model: str, headers: RawHeaders) -> None:
        """A request of this tenant for this model. `headers`: as they were received."""
        key = (choose_viewer(upstream, owner), upstream.name)
        if not upstream.discover or self._clock() < (self._next_seconds.get(key) or 0.0):
            return
        if len(self._tasks) >= _MAX_AT_ONCE or self._limits.is_configured(owner, upstream.name, model):
            return
        # Until the response has come, the next request is as far away as after a failure.
        self._set_next(key, _RETRY_SECONDS)
        self._tasks.spawn(self._ask(key, upstream, headers))

    async def _ask(self, key: tuple[str, str], upstream: UpstreamSettings, headers: RawHeaders) -> None:
        """key: viewer and upstream."""
        found = await list_models(upstream, self._client, headers)
        if found.limits is None:
            self._log_failure(upstream.name, found.reason)
            self._limits.keep_no_list(*key)
            return
        self._set_next(key, _REFRESH_SECONDS)
        if self._limits.keep_list(*key, found.limits):
            log.info("limits of %d models found at upstream %s", len(found.limits), upstream.name)

    def _log_failure(self, upstream: str, reason: str) -> None:
        """Once for each reason: each caller with a wrong key would have its own line otherwise."""
        if (upstream, reason) not in self._failures:
            self._failures.add((upstream, reason))
            log.info(
                "upstream %s gave no model list (%s): windows come from the models rules, its errors and the "
                "bundled table",
                upstream,
                reason,
            )

    def _set_next(self, key: tuple[str, str], pause_seconds: float) -> None:
        self._next_seconds.put(key, self._clock() + pause_seconds, _TIME_WEIGHT_BYTES)


async def check_upstreams(upstreams: Collection[UpstreamSettings], client: Client) -> None:
    """Returns when every upstream has been asked. Logs what it finds, and never raises."""
    await asyncio.gather(*(_check(upstream, client) for upstream in upstreams))


async def _check(upstream: UpstreamSettings, client: Client) -> None:
    name, url = upstream.name, upstream.base_url
    found, other = await probe(upstream, client)
    failed = other or found
    if failed.error is not None:
        _start.warning("upstream '%s': %s: is it running, and is this its address?", name, failed.reason)
    elif other is not None and other.is_api:
        other_url = find_other_url(url)
        _start.warning(
            "upstream '%s' answers at %s, not at %s (status %d): write base_url: %s",
            *(name, other_url + LIST_PATH, url + LIST_PATH, found.status, other_url),
        )
    elif other is not None:
        _start.info("upstream '%s' has no list of models at %s (status %d)", name, url, found.status)
    elif found.limits is not None:
        windows = len(found.limits)
        _start.info("upstream '%s' answers at %s and names the windows of %d models", name, url, windows)
    elif found.status in REDIRECTS:
        _start.warning(
            "upstream '%s' redirects %s to %s, which is not followed: change base_url",
            # The upstream chooses this text.
            *(name, url + LIST_PATH, ascii(found.place)),
        )
    elif found.status in KEY_WANTED and upstream.api_key is not None:
        _start.warning("upstream '%s' refuses its api_key (status %d)", name, found.status)
    else:
        _start.info("upstream '%s' answers at %s", name, url)


def _parse(data: bytes, encoding: str) -> tuple[bytes, dict[str, Limits]]:
    body = decode_body(data, encoding, MAX_BYTES)
    return body, parse_model_list(body)


def _read_place(found: Fetched) -> str:
    try:
        parts = urlsplit(found.headers.get("location", ""))
    except ValueError:
        return ""
    scheme = f"{parts.scheme}://" if parts.netloc else ""
    return f"{scheme}{parts.netloc.rpartition('@')[2]}{parts.path}"[:_SHOWN_CHARS]


def _speaks_messages_only(upstream: UpstreamSettings) -> bool:
    return upstream.formats == {"messages"}
