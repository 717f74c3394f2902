"""Lines of the log about requests: for each new conversation, and at `debug` for each request.

A path that looks like one of a conversation, but is not understood, is named once. No line holds content, a
query or a key; clients choose paths and the names of models, so these are quoted and cut.
"""

import logging
import re
from typing import Final

from aiohttp import hdrs

from gateway.conversations.turn import Turn, name_ids
from gateway.headers import X_GATEWAY_BYPASS
from gateway.http.answered import Answered
from gateway.http.request import RequestHead
from gateway.limits.book import LimitsBook, ServedModel
from gateway.logs.fields import name_fields
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru, weigh_texts
from gateway.wire.registry import without_version

log = logging.getLogger("gateway.requests")

# Some five thousand conversations; one that is dropped is named again.
_SEEN_BYTES: Final = 1 << 20
_SHOWN_CHARS: Final = 100
# Endpoints of conversations, of this or another API, below another path than ours.
_ENDPOINT: Final = re.compile(
    r"/(chat/completions|completions|responses|messages|api/chat|api/generate)/?$|:(generateContent)$"
)


class FirstSeen:
    def __init__(self, limits: LimitsBook) -> None:
        self._limits = limits
        self._seen: Lru[str, None] = Lru(_SEEN_BYTES)
        self._endpoints: set[str] = set()

    def note_turn(self, turn: Turn) -> None:
        """Names a conversation with its first request since the start."""
        if turn.conversation_id in self._seen or not log.isEnabledFor(logging.INFO):
            return
        self._seen.put(turn.conversation_id, None, ENTRY_WEIGHT_BYTES + weigh_texts(turn.conversation_id))
        window = turn.limits.context or turn.limits.input
        served = ServedModel(turn.owner, turn.upstream.name, turn.model, turn.has_long_window)
        log.info(
            "conversation %s tenant %s model %s upstream %s window %s (%s)",
            turn.conversation_id,
            turn.tenant.display_name,
            _quote(turn.model),
            turn.upstream.name,
            f"{window:,}" if window else "-",
            self._limits.name_source(served),
            extra=name_ids(turn),
        )

    def note_relayed(self, head: RequestHead) -> None:
        """Says once for each endpoint of conversations that its requests are not followed."""
        path = without_version(head.target.partition("?")[0])
        is_asked_for = head.method != hdrs.METH_POST or head.headers.get(X_GATEWAY_BYPASS) == "1"
        found = None if is_asked_for else _ENDPOINT.search(path)
        endpoint = found[1] or found[2] if found is not None else None
        if endpoint is None or endpoint in self._endpoints:
            return
        self._endpoints.add(endpoint)
        log.warning(
            "requests to %s are relayed as they come, so nothing is compacted there: understood are "
            "/v1/chat/completions, /v1/responses and /v1/messages; compare the client's base_url",
            _quote(path),
        )


def log_end(head: RequestHead, answered: Answered) -> None:
    """A line for a request that is done."""
    if not log.isEnabledFor(logging.DEBUG):
        return
    fields = answered.list_log_fields()
    text = " ".join(f"{name}={value}" for name, value in fields.items())
    method, path = head.method[:_SHOWN_CHARS], _quote(head.target.partition("?")[0])
    log.debug("%s %s %s", method, path, text, extra=name_fields(method=method, path=path, **fields))


def _quote(text: str) -> str:
    """A text that a client sent, without line ends or other control characters."""
    return ascii(text[:_SHOWN_CHARS])
