"""Finds the conversation of a request whose client has dropped or cleared a part of the history.

Only requests whose history is otherwise unknown are looked at. See `core.history.ends` for the proofs. A part
of each is that no other history has ended alike. This process knows that of the requests that it has served
itself. Where others serve some, too, and the client does not name its session, only the complete one counts.
"""

import hashlib
import logging

from msgspec.structs import replace

from gateway.conversations.reading import Received
from gateway.conversations.turn import Turn
from gateway.core.history.conversation import GONE_WEIGHT_BYTES
from gateway.core.history.ends import (
    HistoryEnd,
    HistorySource,
    continue_history,
    find_end_key,
    find_ends,
    find_placeholders,
)
from gateway.core.history.head import Head
from gateway.state import State

log = logging.getLogger("gateway.compactor")


def make_source(
    upstream: str, session: str | None, model: str, tools: bytes, *, is_alone: bool
) -> HistorySource:
    """session: the client's name for it. is_alone: no other process serves its requests."""
    # Clients choose some of the names, and a header may hold any bytes.
    texts = [name.encode("utf-8", "surrogatepass") for name in (upstream, session or "", model)]
    digest = hashlib.sha256(b"".join([b"%d:%s" % (len(name), name) for name in (*texts, tools)])).digest()
    return HistorySource(digest, bool(session), is_proof=session is not None or is_alone)


def record(state: State, turn: Turn, head: Head) -> str | None:
    """Keeps in memory how an answered request ended. Returns the key to save it by, if it is long enough."""
    conversation = turn.received.conversation
    key = find_end_key(turn.source, conversation)
    if key is not None:
        state.histories.record(head, key, conversation)
    return key


def find(
    state: State,
    received: Received,
    source: HistorySource,
    placeholder: str,
    stored: HistoryEnd | None = None,
) -> Received | None:
    """The request as the continuation of a history; None if there is none, or no proof.

    placeholder: the policy's own, which a client may put in place of results, too. stored: what another
    process has recorded; without it, what is in memory.
    """
    histories = state.histories
    for end, key in list_ends(state, received, source):
        if stored is None:
            known = histories.find(received.owner, key)
        else:
            known = stored if stored.key == key and not histories.is_contradicted(stored) else None
        if known is None:
            continue
        found = continue_history(known, received.conversation, end, source, find_placeholders(placeholder))
        if found is None or found.trim is None:
            return None
        gone = len(found.messages) - len(found.trim.positions)
        log.debug("history recognized by its end: %d messages dropped", gone)
        facts_bytes = received.facts_bytes + GONE_WEIGHT_BYTES * gone
        return replace(received, conversation=found, facts_bytes=facts_bytes)
    return None


def list_ends(state: State, received: Received, source: HistorySource) -> list[tuple[int, str]]:
    """Where earlier requests may have ended, with the keys of their records. The newest first, up to the
    first where one is known to have ended.

    This one continues that, even if its history is not kept any more. At an older place another history may
    have ended.
    """
    conversation, ends = received.conversation, list[tuple[int, str]]()
    for end, key in find_ends(conversation.chain[0], source, conversation.messages):
        ends.append((end, key))
        if state.histories.has_seen(key):
            break
    return ends
