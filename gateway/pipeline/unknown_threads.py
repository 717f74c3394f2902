"""Requests that continue a thread whose history the gateway does not know, because it has not relayed all of
it, or does not keep it any more.

Nothing inside of a thread can be compacted or cut: the upstream holds the rest of it. So such a request
passes as it came. Once it is too large, the client gets the error of the API for a thread that is lost, and
the official SDKs then send their whole history, which can be compacted.
"""

import logging
from functools import partial
from typing import Final

import msgspec

from gateway.conversations.body_reader import BodyReader
from gateway.conversations.recognizer import Received
from gateway.conversations.thread_sizes import ThreadSizes
from gateway.core.errors import RequestRefused, Unreadable
from gateway.http.reply import Reply
from gateway.http.request import ReceivedBody
from gateway.pipeline.admission import Route
from gateway.pipeline.exchange import Outcome
from gateway.pipeline.name_guard import NameGuard, chain
from gateway.pipeline.relay import Relay
from gateway.pipeline.turns import TurnBuilder
from gateway.wire.references import StoredHistory, UsedNames
from gateway.wire.sse import SseEvent

log = logging.getLogger("gateway.proxy")

# A token takes about this many bytes of JSON. Too few of them cost a refusal of the upstream, which ends in
# the same error.
_BYTES_PER_TOKEN: Final = 3.5
# Larger bodies are read in a thread.
_INLINE_BYTES: Final = 64 * 1024
_LOST: Final = (
    "This thread has no room left, and the gateway does not know its beginning, so it cannot compact it. "
    'Send the full conversation with `thread: {"type": "create"}`.'
)


class _Names(msgspec.Struct):
    """Collects the name of a response."""

    history: StoredHistory
    found: set[str] = set()

    def note(self, event: SseEvent) -> None:
        self.found |= self.history.find_given_names(event)


class UnknownThreads:
    def __init__(
        self, reader: BodyReader, turns: TurnBuilder, sizes: ThreadSizes, names: NameGuard, relay: Relay
    ) -> None:
        self._reader = reader
        self._turns = turns
        self._sizes = sizes
        self._names = names
        self._relay = relay

    async def run(self, route: Route, body: ReceivedBody, client: Reply) -> bool:
        """False for any other request, which is still to be sent.

        Raises RequestRefused with the API's own error if the thread is, or would be, too large.
        """
        history = route.format.stored_history if route.format is not None else None
        if route.format is None or history is None or not history.is_replayed:
            return False
        try:
            received, _ = await self._reader.read(
                route.tenant.id, route.format, body.plain, route.upstream.name
            )
        except Unreadable:
            return False
        used = await self._find_names(route, history, body.plain)
        if used is None or used.previous is None:
            return False
        policy, thresholds = await self._turns.find_thresholds(route, received)
        if not policy.auto:
            return False
        tokens = self._estimate(route, received, used.previous)
        if thresholds is not None and tokens is not None and tokens > thresholds.soft:
            log.info("a thread of unknown history reached its threshold: its client is asked for all of it")
            raise RequestRefused(history.unknown_status, _LOST, code=history.unknown_code)
        await self._send(route, body, history, client)
        return True

    async def _find_names(self, route: Route, history: StoredHistory, data: bytes) -> UsedNames | None:
        if len(data) < _INLINE_BYTES:
            return history.find_names(data)
        return await self._reader.lanes.run(route.tenant.id, len(data), history.find_names, data)

    def _estimate(self, route: Route, received: Received, previous: str) -> int | None:
        """Tokens of the whole prompt; None if no response has told them yet."""
        known = self._sizes.find(route.tenant.id, route.upstream.name, previous)
        return None if known is None else known + int(len(received.body.data) / _BYTES_PER_TOKEN)

    async def _send(self, route: Route, body: ReceivedBody, history: StoredHistory, client: Reply) -> None:
        """Raises RequestRefused in place of the upstream's refusal of what is too large."""
        client.answered.more = "a thread of unknown history"
        exchange = self._names.make_exchange(route, route.with_body(body.raw))
        given = _Names(history)
        on_event = given.note if exchange.on_event is None else chain(exchange.on_event, given.note)
        watched = msgspec.structs.replace(
            exchange,
            on_event=on_event,
            on_outcome=partial(self._note_size, route, given),
            probe="start",
        )
        forwarded = await self._relay.forward(watched, client)
        if forwarded.held is not None:
            log.info("a thread of unknown history is too large: its client is asked for all of it")
            raise RequestRefused(history.unknown_status, _LOST, code=history.unknown_code)

    def _note_size(self, route: Route, given: _Names, outcome: Outcome) -> None:
        usage = outcome.reading.usage
        if usage is not None and outcome.reading.is_complete and not outcome.reading.has_error:
            for name in given.found:
                self._sizes.note(route.tenant.id, route.upstream.name, name, usage)
