"""What is noted of requests: a line in the log for each new conversation, and for each request that is done
its metrics, and at `debug` a line.

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
from gateway.limits.book import LimitsBook
from gateway.logs.fields import name_fields
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru, weigh_texts
from gateway.planning.learning import name_served
from gateway.reporting.metrics import Metrics
from gateway.wire.registry import without_version

log = logging.getLogger("gateway.requests")

# Some five thousand conversations; one that is dropped is named again.
_SEEN_BYTES: Final = 1 << 20
_SHOWN_CHARS: Final = 100
# Endpoints of conversations, of this or another API, below another path than ours.
_ENDPOINT: Final = re.compile(
    r"/(chat/completions|completions|responses|messages|api/chat|api/generate)/?$|:(generateContent)$"
)


class RequestLog:
    def __init__(self, limits: LimitsBook, metrics: Metrics) -> None:
        self._limits = limits
        self._metrics = metrics
        self._seen: Lru[str, None] = Lru(_SEEN_BYTES)
        self._endpoints: set[str] = set()

    def note_turn(self, turn: Turn, answered: Answered) -> None:
        """A request that is followed. Its conversation is named with its first one since the start."""
        envelope = turn.received.body.envelope
        answered.format, answered.conversation = turn.received.format.name, turn.conversation_id
        answered.tenant, answered.model = turn.tenant.display_name, envelope.model
        answered.chosen_upstream, answered.base_url = turn.upstream.name, turn.upstream.base_url
        answered.requested_tokens, answered.is_streaming = envelope.requested_tokens, envelope.is_streaming
        answered.body_bytes = len(turn.raw_body)
        if turn.conversation_id in self._seen or not log.isEnabledFor(logging.INFO):
            return
        self._seen.put(turn.conversation_id, None, ENTRY_WEIGHT_BYTES + weigh_texts(turn.conversation_id))
        window = turn.limits.context or turn.limits.input
        served = name_served(turn)
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

    def append(self, head: RequestHead, answered: Answered) -> None:
        """A request that is done."""
        self._metrics.note_end(answered)
        if not log.isEnabledFor(logging.DEBUG):
            return
        fields = _list_fields(answered)
        text = " ".join(f"{name}={value}" for name, value in fields.items())
        method, path = head.method[:_SHOWN_CHARS], _quote(head.target.partition("?")[0])
        log.debug("%s %s %s", method, path, text, extra=name_fields(method=method, path=path, **fields))


def _quote(text: str) -> str:
    """A text that a client sent, without line ends or other control characters."""
    return ascii(text[:_SHOWN_CHARS])


def _list_fields(it: Answered) -> dict[str, str | int | float]:
    """What the line of a request says, in this order."""
    usage = it.usage
    found = {
        "status": it.status or "-",
        "plan": it.plan_name,
        "more": ascii(it.more) if it.more else None,
        "conversation": it.conversation or None,
        "upstream": it.upstream,
        "received": it.received if it.is_followed else None,
        "sent": it.sent if it.is_followed else None,
        "bytes": it.body_bytes if it.is_followed else None,
        "prompt_tokens": usage and usage.prompt_tokens,
        "cached_tokens": usage and usage.cached_tokens,
        "cache_write_tokens": usage and usage.cache_write_tokens,
        "output_tokens": usage and usage.output_tokens,
        "seconds": round(it.ended_seconds - it.begun_seconds, 3),
        "own_seconds": round(it.own_seconds, 6),
        "first_byte_seconds": _round(it.first_byte_seconds),
        "upstream_seconds": _round(it.upstream_seconds) if it.upstream is not None else None,
        "waited_seconds": _round(it.waited_seconds) if it.waited_seconds else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _round(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
