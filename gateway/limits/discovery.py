"""Asks upstreams what their models can hold: one GET of `/v1/models` in the background, now and then.

No request waits for it. Without a key of its own an upstream is asked with the caller's headers, for that
tenant alone; with one, for all, and then nothing of any caller goes with it.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import httpx2 as httpx

from gateway.core.errors import UpstreamFailed
from gateway.headers import RawHeaders, make_upstream_headers
from gateway.limits.book import LimitsBook
from gateway.limits.model_lists import choose_viewer
from gateway.lru import Lru
from gateway.settings import UpstreamSettings
from gateway.upstream.internal_client import CALL_ERRORS, make_internal_headers
from gateway.upstream.target import make_url
from gateway.wire.content_encoding import decode_body
from gateway.wire.model_list import MOST_BYTES, parse_model_list

log = logging.getLogger("gateway.discovery")

# A list that takes longer is of no use to the conversation that asked for it.
_TIMEOUT_SECONDS: Final = 10.0
# Models come and go, and are loaded with other windows.
_REFRESH_SECONDS: Final = 3_600.0
_RETRY_SECONDS: Final = 300.0
# Whoever is not asked now is asked at a later request: a crowd of new callers must not become one of ours.
_MOST_AT_ONCE: Final = 32
# Some 5,000 of them; one that is forgotten is asked again.
_TIMES_BYTES: Final = 1 << 20
_TIME_WEIGHT_BYTES: Final = 200

_PATH: Final = "/v1/models"
# Anthropic's pages hold 20 models unless asked, and its own key goes with a version.
_MESSAGES_QUERY: Final = "?limit=1000"
_MESSAGES_PATH: Final = "/v1/messages"
_MESSAGES_VERSION: Final = (b"anthropic-version", b"2023-06-01")


@dataclass(frozen=True, slots=True)
class _Question:
    """Whose list, of which upstream, and how to ask for it. `headers` hold a credential: never shown."""

    viewer: str
    upstream: str
    url: str
    headers: tuple[tuple[bytes, bytes], ...]


class Discovery:
    def __init__(
        self, limits: LimitsBook, client: httpx.AsyncClient, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits = limits
        self._client = client
        self._clock = clock
        # When each (viewer, upstream) may be asked again.
        self._next_seconds: Lru[tuple[str, str], float] = Lru(_TIMES_BYTES)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_asking(self) -> bool:
        return bool(self._tasks)

    async def close(self) -> None:
        """Whatever is under way is dropped."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def notice(self, owner: str, upstream: UpstreamSettings, model: str, headers: RawHeaders) -> None:
        """A request of this tenant for this model. `headers`: as they came."""
        if not upstream.discover or self._limits.is_configured(upstream.name, model):
            return
        key = (choose_viewer(upstream, owner), upstream.name)
        next_seconds = self._next_seconds.get(key)
        if len(self._tasks) >= _MOST_AT_ONCE or (next_seconds is not None and self._clock() < next_seconds):
            return
        # As after a failure, until the answer says otherwise.
        self._set_next(key, _RETRY_SECONDS)
        question = _make_question(key, upstream, headers)
        task = asyncio.get_running_loop().create_task(self._ask(question), name="discovery")
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    async def _ask(self, question: _Question) -> None:
        key = (question.viewer, question.upstream)
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                body = await self._load(question)
        except (UpstreamFailed, *CALL_ERRORS) as error:
            # Neither the address nor the library's own words: headers stand in those.
            reason = str(error) if isinstance(error, UpstreamFailed) else type(error).__name__
            log.debug("upstream %s gave no model list: %s", question.upstream, reason)
            self._limits.keep_no_list(*key)
            return
        # 30 microseconds a model: not on the loop.
        listed = await asyncio.to_thread(parse_model_list, body)
        self._set_next(key, _REFRESH_SECONDS)
        if self._limits.keep_list(*key, listed) and listed:
            log.info("limits of %d models found at upstream %s", len(listed), question.upstream)

    async def _load(self, question: _Question) -> bytes:
        """The plain body of a 200. Raises UpstreamFailed and CALL_ERRORS."""
        request = self._client.build_request(
            "GET", question.url, headers=list(question.headers), timeout=_TIMEOUT_SECONDS
        )
        response = await self._client.send(request, stream=True)
        try:
            if response.status_code != 200:
                raise UpstreamFailed(f"status {response.status_code}")
            data = bytearray()
            # Undecoded, so that both sizes are bounded.
            async for chunk in response.aiter_raw():
                data += chunk
                if len(data) > MOST_BYTES:
                    raise UpstreamFailed("more than a model list")
        finally:
            await response.aclose()
        return decode_body(bytes(data), response.headers.get("content-encoding", ""), MOST_BYTES)

    def _set_next(self, key: tuple[str, str], pause_seconds: float) -> None:
        self._next_seconds.put(key, self._clock() + pause_seconds, _TIME_WEIGHT_BYTES)

    def _finished(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("discovery failed: %s", type(task.exception()).__name__)


def _make_question(key: tuple[str, str], upstream: UpstreamSettings, received: RawHeaders) -> _Question:
    speaks_messages_only = upstream.formats == {"messages"}
    sent = received if upstream.api_key is None else ()
    headers = make_upstream_headers(sent, upstream, _MESSAGES_PATH if speaks_messages_only else _PATH)
    own = [*make_internal_headers(headers.items()), (b"Accept", b"application/json")]
    if speaks_messages_only and "anthropic-version" not in headers:
        own.append(_MESSAGES_VERSION)
    path = _PATH + _MESSAGES_QUERY if speaks_messages_only else _PATH
    return _Question(*key, str(make_url(upstream, path)), tuple(own))
