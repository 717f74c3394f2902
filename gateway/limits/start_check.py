"""Asks each upstream once, at the start and in the background, whether its API is where the settings say.

The most frequent mistake is a base URL without the /v1 of a local server, which answers 404 to every request
then. The check only says so: a request is never sent to another address than the configured one.
"""

import asyncio
import logging
from collections.abc import Collection
from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit

from gateway.http.client import Client, Fetched, OwnCall
from gateway.http.failures import CALL_ERRORS, describe_failure
from gateway.http.target import make_url
from gateway.limits.discovery import make_list_headers
from gateway.settings import UpstreamSettings
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
_PLAIN: Final = ("Accept-Encoding", "identity")
# Longest part of the place that a redirect names which is shown. The upstream chooses it.
_SHOWN_CHARS: Final = 200


class StartCheck:
    def __init__(self, upstreams: Collection[UpstreamSettings], client: Client) -> None:
        self._upstreams = upstreams
        self._client = client

    async def run(self) -> None:
        """Returns when every upstream has been asked. Logs what it finds, and never raises."""
        await asyncio.gather(*(self._check(upstream) for upstream in self._upstreams))

    async def _check(self, upstream: UpstreamSettings) -> None:
        base_url = upstream.base_url
        try:
            found = await ask_for_list(self._client, upstream, base_url)
            if is_from_an_api(found) or found.status in REDIRECTS:
                await _report(upstream, found)
                return
            other_url = find_other_url(base_url)
            other = await ask_for_list(self._client, upstream, other_url)
        except CALL_ERRORS as error:
            reason = describe_failure(error, base_url)
            log.warning("upstream '%s': %s: is it running, and is this its address?", upstream.name, reason)
            return
        if is_from_an_api(other):
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


async def ask_for_list(client: Client, upstream: UpstreamSettings, base_url: str) -> Fetched:
    """The list of models at this base URL. Raises CALL_ERRORS if there is no response."""
    asked = replace(upstream, base_url=base_url)
    headers = [*make_list_headers(asked, ()), _PLAIN]
    call = OwnCall(upstream, "GET", str(make_url(asked, LIST_PATH)), headers)
    return await client.fetch(call, _TIMEOUT_SECONDS, MAX_BYTES)


def is_from_an_api(found: Fetched) -> bool:
    """False for a web page."""
    is_json = "json" in found.headers.get("content-type", "")
    return found.status in KEY_WANTED or (found.status == 200 and is_json)


def describe_place(found: Fetched) -> str:
    """Scheme, host and path that a redirect names; its query may hold a key."""
    try:
        parts = urlsplit(found.headers.get("location", ""))
    except ValueError:
        return ""
    scheme = f"{parts.scheme}://" if parts.netloc else ""
    return f"{scheme}{parts.netloc.rpartition('@')[2]}{parts.path}"[:_SHOWN_CHARS]


async def _report(upstream: UpstreamSettings, found: Fetched) -> None:
    name, url = upstream.name, upstream.base_url
    if found.status in REDIRECTS:
        # The upstream chooses this text.
        place = ascii(describe_place(found))
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
        windows = len(await asyncio.to_thread(parse_model_list, found.body or b""))
        log.info("upstream '%s' answers at %s and names the windows of %d models", name, url, windows)
    else:
        log.info("upstream '%s' answers at %s", name, url)


def find_other_url(base_url: str) -> str:
    """Most often the /v1 of a local server is missing, or there is one too many."""
    return base_url.removesuffix(_VERSION) if base_url.endswith(_VERSION) else base_url + _VERSION
