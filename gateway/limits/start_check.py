"""Asks each upstream once, at the start and in the background, whether its API is where the settings say.

The most frequent mistake is a base URL without the /v1 of a local server, which answers 404 to every request
then. The check only says so: a request is never sent to another address than the configured one.
"""

import asyncio
import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import httpx2 as httpx

from gateway.limits.discovery import make_list_headers
from gateway.settings import UpstreamSettings
from gateway.upstream.failures import describe_failure
from gateway.upstream.internal_client import CALL_ERRORS
from gateway.wire.model_list import MAX_BYTES, parse_model_list

log = logging.getLogger("gateway.start")

# A server that is slower is there, which is all that is asked.
_TIMEOUT_SECONDS: Final = 10.0
_VERSION: Final = "/v1"
LIST_PATH: Final = "/models"
# Without a key, or with a wrong one: but the API is there.
KEY_WANTED: Final = frozenset({401, 403})
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
# What a broken server compresses is not worth the work.
_PLAIN: Final = (b"Accept-Encoding", b"identity")
# Of the place that a redirect names, which the upstream chooses.
SHOWN_CHARS: Final = 200


@dataclass(frozen=True, slots=True)
class _ListResponse:
    status: int
    # "" if there is none.
    content_type: str
    location: str
    # Empty unless it is a plain 200.
    body: bytes

    @property
    def is_from_an_api(self) -> bool:
        """False for a web page."""
        return self.status in KEY_WANTED or (self.status == 200 and "json" in self.content_type)


class StartCheck:
    def __init__(self, upstreams: Collection[UpstreamSettings], client: httpx.AsyncClient) -> None:
        self._upstreams = upstreams
        self._client = client

    async def run(self) -> None:
        """Returns when every upstream has been asked. Logs what it finds, and never raises."""
        await asyncio.gather(*(self._check(upstream) for upstream in self._upstreams))

    async def _check(self, upstream: UpstreamSettings) -> None:
        base_url = upstream.base_url
        try:
            found = await self._ask(upstream, base_url)
            if found.is_from_an_api or found.status in REDIRECTS:
                await _report(upstream, found)
                return
            other_url = find_other_url(base_url)
            other = await self._ask(upstream, other_url)
        except CALL_ERRORS as error:
            reason = describe_failure(error, base_url)
            log.warning("upstream '%s': %s: is it running, and is this its address?", upstream.name, reason)
            return
        if other.is_from_an_api:
            log.warning(
                "upstream '%s' answers at %s, not at %s (status %d): write base_url: %s",
                upstream.name,
                other_url + LIST_PATH,
                base_url + LIST_PATH,
                found.status,
                other_url,
            )
        else:
            log.info(
                "upstream '%s' has no list of models at %s (status %d)", upstream.name, base_url, found.status
            )

    async def _ask(self, upstream: UpstreamSettings, base_url: str) -> _ListResponse:
        """Raises CALL_ERRORS if there is no response."""
        own = [*make_list_headers(upstream, ()), _PLAIN]
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            built = self._client.build_request(
                "GET", base_url + LIST_PATH, headers=own, timeout=_TIMEOUT_SECONDS
            )
            response = await self._client.send(built, stream=True)
            try:
                body = await _read(response)
            finally:
                await response.aclose()
        fields = response.headers
        return _ListResponse(
            response.status_code, fields.get("content-type", ""), fields.get("location", ""), body
        )


async def _read(response: httpx.Response) -> bytes:
    """Empty unless it is a model list."""
    if response.status_code != 200 or response.headers.get("content-encoding"):
        return b""
    data = bytearray()
    async for chunk in response.aiter_raw():
        data += chunk
        if len(data) > MAX_BYTES:
            return b""
    return bytes(data)


async def _report(upstream: UpstreamSettings, found: _ListResponse) -> None:
    name, url = upstream.name, upstream.base_url
    if found.status in REDIRECTS:
        # The upstream chooses this text.
        place = ascii(found.location[:SHOWN_CHARS])
        log.warning(
            "upstream '%s' redirects %s to %s, which is not followed: change base_url",
            name,
            url + LIST_PATH,
            place,
        )
    elif found.status in KEY_WANTED and upstream.api_key is not None:
        log.warning("upstream '%s' refuses its api_key (status %d)", name, found.status)
    elif found.status == 200:
        # 30 microseconds a model is too long for the event loop.
        windows = len(await asyncio.to_thread(parse_model_list, found.body))
        log.info("upstream '%s' answers at %s and names the windows of %d models", name, url, windows)
    else:
        log.info("upstream '%s' answers at %s", name, url)


def find_other_url(base_url: str) -> str:
    """Most often the /v1 of a local server is missing, or there is one too many."""
    return base_url.removesuffix(_VERSION) if base_url.endswith(_VERSION) else base_url + _VERSION
