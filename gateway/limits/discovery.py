"""Asks upstreams what their models can hold: one GET of `/v1/models` in the background, now and then.

No request waits for it. If the settings give no key for the upstream, it is asked with the client's headers,
and the list holds for that tenant alone. With a key, the request has nothing of the client's, and the list
holds for all tenants, or for the one whose own key it is.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from gateway.core.errors import UpstreamFailed
from gateway.core.limits.model_limits import Limits
from gateway.headers import RawHeaders, make_internal_headers, make_upstream_headers
from gateway.http.client import Client, OwnCall
from gateway.http.failures import CALL_ERRORS, describe_failure
from gateway.http.target import make_url
from gateway.limits.book import LimitsBook
from gateway.limits.model_lists import choose_viewer
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru
from gateway.settings import UpstreamSettings
from gateway.wire.content_encoding import decode_body
from gateway.wire.model_list import MAX_BYTES, parse_model_list

log = logging.getLogger("gateway.discovery")

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

_PATH: Final = "/v1/models"
# By default a page of Anthropic's list holds 20 models. Its key needs a version header.
_MESSAGES_QUERY: Final = "?limit=1000"
_MESSAGES_VERSION: Final = ("anthropic-version", "2023-06-01")


class Discovery:
    def __init__(
        self, limits: LimitsBook, client: Client, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits = limits
        self._client = client
        self._clock = clock
        # When each (viewer, upstream) may be asked again, by the clock.
        self._next_seconds: Lru[tuple[str, str], float] = Lru(_TIMES_BYTES)
        self._tasks: set[asyncio.Task[None]] = set()
        # What has been logged: names of upstreams, each with a status or one of few reasons.
        self._failures: set[tuple[str, str]] = set()

    async def finish(self) -> None:
        """Returns once the open requests have ended."""
        await asyncio.gather(*self._tasks)

    async def close(self) -> None:
        """Cancels open requests."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def notice(self, owner: str, upstream: UpstreamSettings, model: str, headers: RawHeaders) -> None:
        """A request of this tenant for this model. `headers`: as they were received."""
        key = (choose_viewer(upstream, owner), upstream.name)
        if not upstream.discover or self._clock() < (self._next_seconds.get(key) or 0.0):
            return
        if len(self._tasks) >= _MAX_AT_ONCE or self._limits.is_configured(owner, upstream.name, model):
            return
        # Until the response has come, the next request is as far away as after a failure.
        self._set_next(key, _RETRY_SECONDS)
        path = _PATH + _MESSAGES_QUERY if _speaks_messages_only(upstream) else _PATH
        call = OwnCall(upstream, "GET", str(make_url(upstream, path)), make_list_headers(upstream, headers))
        task = asyncio.get_running_loop().create_task(self._ask(key, call), name="discovery")
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    async def _ask(self, key: tuple[str, str], call: OwnCall) -> None:
        """key: viewer and upstream."""
        try:
            listed = await self._load(call)
        except (UpstreamFailed, *CALL_ERRORS) as error:
            is_ours = isinstance(error, UpstreamFailed)
            reason = str(error) if is_ours else describe_failure(error, call.url)
            self._log_failure(key[1], reason)
            self._limits.keep_no_list(*key)
            return
        self._set_next(key, _REFRESH_SECONDS)
        if self._limits.keep_list(*key, listed):
            log.info("limits of %d models found at upstream %s", len(listed), key[1])

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

    async def _load(self, call: OwnCall) -> dict[str, Limits]:
        """The list of a 200. Raises UpstreamFailed and CALL_ERRORS."""
        found = await self._client.fetch(call, _TIMEOUT_SECONDS, MAX_BYTES)
        if found.status != 200:
            raise UpstreamFailed(f"status {found.status}")
        if found.body is None:
            raise UpstreamFailed("larger than a model list")
        encoding = found.headers.get("content-encoding", "")
        # A few bytes may decode to megabytes, and 30 microseconds a model is too long for the event loop.
        return await asyncio.to_thread(_parse, found.body, encoding)

    def _set_next(self, key: tuple[str, str], pause_seconds: float) -> None:
        self._next_seconds.put(key, self._clock() + pause_seconds, _TIME_WEIGHT_BYTES)

    def _finished(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("discovery failed: %s", type(task.exception()).__name__)


def _parse(data: bytes, encoding: str) -> dict[str, Limits]:
    return parse_model_list(decode_body(data, encoding, MAX_BYTES))


def make_list_headers(upstream: UpstreamSettings, received: RawHeaders) -> list[tuple[str, str]]:
    """Those of a request for the list of models. received: of a client, used where we have no key."""
    sent = received if upstream.api_key is None else ()
    headers = make_upstream_headers(sent, upstream, _PATH)
    own = [*make_internal_headers(headers.items()), ("Accept", "application/json")]
    if _speaks_messages_only(upstream) and "anthropic-version" not in headers:
        own.append(_MESSAGES_VERSION)
    return own


def _speaks_messages_only(upstream: UpstreamSettings) -> bool:
    return upstream.formats == {"messages"}
