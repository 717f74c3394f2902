"""Limits the summaries for clients that drop or change old messages at every turn.

Each request of such a client begins differently. None continues an earlier one, so each would be summarized
anew, and no summary would be used twice. The limiter counts the requests of unknown histories that needed a
compaction. If none of them is continued, only a few get a summary, and the others a digest.
"""

import logging
from typing import Final

from gateway.conversations.turn import Turn, name_ids
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru, weigh_texts

log = logging.getLogger("gateway.compactor")

# After a cold start long histories are unknown, although their clients will continue them. The first two get
# their summaries, and so do all that arrive before an earlier one was answered.
_FIRST: Final = 2
# Then every tenth request gets one summary call, in case the client has changed its ways: with a wait of half
# a minute for a summary that is three seconds for each request.
_EVERY: Final = 10
# A client that drops whole turns may repeat itself two or three times before it drops the next one. A history
# that is continued more often is kept.
_CONTINUED: Final = 3
# Conversations that began lately. Clients work on few at a time.
_MAX_BEGUN: Final = 16

# Some nine hundred clients.
_GROUPS_BYTES: Final = 4 << 20
_GROUP_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 500
_BEGUN_WEIGHT_BYTES: Final = 250
# Tenant, upstream, model, tools and the client's name for its session. The leading block is left out, because
# it may hold a clock.
_Key = tuple[str, str, str, bytes, str | None]


class _Group:
    """Requests that may come from one client."""

    def __init__(self) -> None:
        # Answered requests of unknown histories, since a conversation that began with one was last kept.
        self.count = 0
        # How often these conversations were continued, by the chain of the newest request.
        self.begun: dict[str, int] = {}
        self.is_logged = False

    def begin(self, key: str) -> None:
        """A retry has the chain of its first try and is not counted again."""
        if key in self.begun:
            return
        self.count += 1
        self.begun[key] = 0
        if len(self.begun) > _MAX_BEGUN:
            del self.begun[next(iter(self.begun))]

    def go_on(self, before: str, key: str) -> None:
        """key: of a request whose nearest head was at the chain `before`."""
        continued = self.begun.pop(before, None)
        if continued is None:
            return
        if continued + 1 < _CONTINUED:
            self.begun[key] = continued + 1
        else:
            self.count = 0
            self.begun.clear()


class SummaryLimiter:
    """Bounded, and in memory only: each process counts the requests that it sees."""

    def __init__(self) -> None:
        self._groups: Lru[_Key, _Group] = Lru(_GROUPS_BYTES)

    def count_calls(self, turn: Turn) -> int:
        """The most summary calls for this request."""
        count = self._count_others(turn)
        if count < _FIRST:
            return turn.policy.summary.max_calls
        return 0 if count % _EVERY else 1

    def is_limited(self, turn: Turn) -> bool:
        """Whether a compaction in the background would be in vain, because no request would use it."""
        return self._count_others(turn) >= _FIRST

    def note_response(self, turn: Turn, *, needs_compaction: bool) -> None:
        """Called after each complete response. Never waits.

        needs_compaction: of a history that was not recognized; of any other it says nothing.
        """
        if turn.is_unrecognized:
            if needs_compaction and turn.policy.summary.method == "model":
                self._begin(turn)
        elif turn.head is not None and len(self._groups):
            group = self._groups.peek(_make_key(turn))
            if group is not None:
                group.go_on(turn.head.key, turn.received.conversation.key.hex())

    def _begin(self, turn: Turn) -> None:
        key = _make_key(turn)
        group = self._groups.get(key) or _Group()
        group.begin(turn.received.conversation.key.hex())
        weight_bytes = _GROUP_WEIGHT_BYTES + _BEGUN_WEIGHT_BYTES * len(group.begun)
        weight_bytes += weigh_texts(turn.owner, turn.upstream.name, turn.model, turn.session)
        self._groups.put(key, group, weight_bytes)
        if group.count > _FIRST and not group.is_logged:
            group.is_logged = True
            log.warning(
                "a client drops or changes old messages at every turn: the last %d requests of tenant %s to "
                "upstream %s that needed a summary continue no earlier request. From now on most get a "
                "digest. Let the client keep its whole history, the gateway shortens it: raise "
                "GPTME_CONTEXT_LENGTH (gptme), max_tokens of trim_messages (LangChain) or buffer_size of "
                "BufferedChatCompletionContext (AutoGen). conversation=%s",
                *(group.count, turn.tenant.display_name, turn.upstream.name, turn.conversation_id),
                extra=name_ids(turn),
            )

    def _count_others(self, turn: Turn) -> int:
        """Earlier requests of unknown histories that this one does not continue."""
        if not turn.is_unrecognized or turn.policy.summary.method != "model":
            return 0
        group = self._groups.get(_make_key(turn))
        if group is None:
            return 0
        return group.count - (turn.received.conversation.key.hex() in group.begun)


def _make_key(turn: Turn) -> _Key:
    return turn.owner, turn.upstream.name, turn.model, turn.received.body.envelope.tools, turn.session
