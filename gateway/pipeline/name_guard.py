"""Refuses names of stored responses and threads that another tenant made, where one key of an upstream
serves them all.

Only what was made through this gateway is known. Anything else that such a request names is refused, unless
`allow` of the upstream opens it (docs/configuration.md).
"""

from collections.abc import Mapping
from functools import partial
from typing import Final

from aiohttp import hdrs
from msgspec.structs import replace

from gateway.bounds.lanes import Lanes
from gateway.conversations.turn import Turn, chain
from gateway.core.errors import RequestRefused, Unreadable
from gateway.http.allow import is_granted
from gateway.http.client import UpstreamCall
from gateway.http.request import ReceivedBody
from gateway.pipeline.admission import Route
from gateway.pipeline.relay import NO_HEADERS, Exchange
from gateway.state.owned_names import OwnedNames
from gateway.store.interface import Unknown
from gateway.wire.body import BodyBounds
from gateway.wire.reading import ResponseDocument
from gateway.wire.references import StoredHistory
from gateway.wire.sse import SseEvent

# Larger bodies are read in a thread.
_INLINE_BYTES: Final = 64 * 1024
_NOT_YOURS: Final = (
    "No response, thread, conversation or item with this id was made through the gateway with these "
    "credentials. "
    "(This upstream's key is shared; `allow` in its settings can open stored responses to all callers.)"
)

_UNKNOWN: Final = "The gateway cannot look up now who made what this request names. Try again."


class NameGuard:
    def __init__(self, owned: OwnedNames, lanes: Lanes, bounds: BodyBounds) -> None:
        """bounds: a body beyond them is refused if it may name something."""
        self._bounds = bounds
        self._owned = owned
        self._lanes = lanes

    async def check(self, route: Route, name: str) -> None:
        """Raises RequestRefused (404) if this tenant did not make the response that the path is about."""
        if not await self._owns(route, name):
            raise RequestRefused(404, _NOT_YOURS, code="response_not_found")

    async def check_body(self, route: Route, naming: StoredHistory, body: ReceivedBody) -> None:
        """Raises RequestRefused if the body names what this tenant did not make, or may do so."""
        try:
            paths = await self._find_paths(route, naming, body)
        except Unreadable:
            raise RequestRefused(
                400, "The gateway cannot read which stored responses this request names."
            ) from None
        for path in paths:
            if is_granted(route.upstream, hdrs.METH_GET, path):
                continue
            if not await self._owns(route, path.partition("/")[2]):
                raise RequestRefused(naming.unknown_status, _NOT_YOURS, code=naming.unknown_code)

    def watch(self, route: Route, turn: Turn) -> Turn:
        """The turn; the names in its response will belong to its tenant, if the upstream stores any."""
        if route.naming is None or not turn.received.body.envelope.is_kept:
            return turn
        return replace(turn, on_event=chain(turn.on_event, partial(self._record, route, route.naming)))

    def make_exchange(
        self, route: Route, call: UpstreamCall, headers: Mapping[str, str] = NO_HEADERS
    ) -> Exchange:
        """For a request that is relayed as it came. headers: added to the response."""
        if route.naming is None:
            return Exchange(call=call, headers=headers)
        record = partial(self._record, route, route.naming)
        return Exchange(call=call, headers=headers, on_end=_ignore, on_event=record)

    async def _find_paths(self, route: Route, naming: StoredHistory, body: ReceivedBody) -> set[str]:
        encoding = route.head.headers.get(hdrs.CONTENT_ENCODING, "")
        if body.plain is body.raw and encoding not in ("", "identity"):
            raise Unreadable("the content encoding is unknown")
        if len(body.plain) < _INLINE_BYTES:
            return naming.find_used_paths(body.plain, self._bounds)
        size_bytes, find = len(body.plain), naming.find_used_paths
        return await self._lanes.run(route.tenant.id, size_bytes, find, body.plain, self._bounds)

    async def _owns(self, route: Route, name: str) -> bool:
        """Raises RequestRefused (503) if the store does not say."""
        try:
            return await self._owned.owns(route.tenant.id, route.upstream.name, name)
        except Unknown:
            raise RequestRefused(503, _UNKNOWN) from None

    def _record(
        self, route: Route, naming: StoredHistory, _: SseEvent, documents: list[ResponseDocument]
    ) -> None:
        self._owned.record(route.tenant.id, route.upstream.name, naming.find_given_names(documents))


def _ignore(*_: object) -> None:
    """Only the events of such a response are read."""
