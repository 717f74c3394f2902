"""Finds the conversation of a request whose client has dropped a part of the history.

Only requests whose history is otherwise unknown are looked at. See `core.history.trimmed` for the proof.
"""

import logging
from typing import NamedTuple

from msgspec.structs import replace

from gateway.conversations.recognizer import Received
from gateway.conversations.turn import Turn
from gateway.core.history.conversation import GONE_WEIGHT_BYTES
from gateway.core.history.trimmed import HistoryEnd, continue_history, find_end_key, find_ends
from gateway.state import State

log = logging.getLogger("gateway.compactor")


class Source(NamedTuple):
    """Where a request goes, and the client's name for its session: requests that differ in one of these never
    share a history.
    """

    upstream: str
    session: str | None


def record(state: State, turn: Turn) -> str | None:
    """Keeps in memory how an answered request ended. Returns the key to save it by, if it is long enough."""
    conversation, source = turn.received.conversation, Source(turn.upstream.name, turn.session)
    key = find_end_key(_make_scope(source, turn.received), conversation)
    if key is not None:
        state.histories.record(turn.owner, turn.conversation_id, key, conversation)
    return key


def find(state: State, received: Received, source: Source) -> Received | None:
    """The request as the continuation of a history in memory; None if there is none, or no proof."""
    for end, key in _list_ends(state, received, source):
        known = state.histories.find(key)
        if known is not None:
            return _continue(known, received, end)
    return None


async def load(state: State, received: Received, source: Source) -> Received | None:
    """The same for a history that an earlier process has recorded."""
    ends = {key: end for end, key in _list_ends(state, received, source)}
    known = await state.histories.load_first(received.owner, list(ends)) if ends else None
    return _continue(known, received, ends[known.key]) if known is not None else None


def _continue(known: HistoryEnd, received: Received, end: int) -> Received | None:
    found = continue_history(known, received.conversation, end)
    if found is None or found.trim is None:
        return None
    gone = len(found.messages) - len(found.trim.positions)
    log.debug("history recognized by its end: %d messages dropped", gone)
    facts_bytes = received.facts_bytes + GONE_WEIGHT_BYTES * gone
    return replace(received, conversation=found, facts_bytes=facts_bytes)


def _list_ends(state: State, received: Received, source: Source) -> list[tuple[int, str]]:
    """The newest first, up to the first where a request is known to have ended.

    This one continues that, even if its history is not kept any more. At an older place another history may
    have ended.
    """
    conversation, ends = received.conversation, []
    scope = _make_scope(source, received)
    for end, key in find_ends(conversation.chain[0], scope, conversation.messages):
        ends.append((end, key))
        if state.histories.has_seen(key):
            break
    return ends


def _make_scope(source: Source, received: Received) -> bytes:
    envelope = received.body.envelope
    names = [*_encode(source.upstream, source.session or "", envelope.model), envelope.tools]
    return b"".join([b"%d:%s" % (len(name), name) for name in names])


def _encode(*names: str) -> list[bytes]:
    """Clients choose some of them, and a header may hold any bytes."""
    return [name.encode("utf-8", "surrogatepass") for name in names]
