"""Finds what the newest user message names and only the originals have, and puts it before that message.

It stands there as an exchange of its own, so the roles alternate as they did, and whatever stood before the
user message stands before another one. The array only grows at its end: the exchange is new together with
the message behind it, and is sent in the same bytes from then on (`core.history.pivot`).
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from gateway.bounds.lanes import Lanes
from gateway.conversations.turn import Turn, name_ids
from gateway.core.compaction.plan import Plan
from gateway.core.digest.facts import find_facts, is_secret
from gateway.core.errors import RequestRefused
from gateway.core.history.pivot import FoundExchange, Pivot, Recall
from gateway.core.history.transcript import list_entries
from gateway.core.history.view import FRAME_TOKENS
from gateway.originals.beside_summary import MOST_TOKENS, render_pieces
from gateway.originals.search import FoundPiece, OriginalsSearch, Scope, SearchFailed
from gateway.planning.message_sizes import Sizer
from gateway.reporting.metrics import Metrics
from gateway.state.pivots import Pivots
from gateway.store.keys import make_tag

log = logging.getLogger("gateway.recall")

_ASKED: Final = "(Found in earlier messages, for what follows:\n\n{pieces})"
_SAID: Final = "Noted."
# A search takes some 10 ms. The first one after a restart may have to read the store, and goes on without
# the request: the next message profits from it.
_SECONDS: Final = 0.25
# Of a longer message, which is a document or a log, the rest is not looked at.
_READ_CHARS: Final = 20_000
_MOST_NAMES: Final = 16


class QuestionRecall:
    """clock: wall-clock seconds."""

    def __init__(
        self,
        search: OriginalsSearch,
        pivots: Pivots,
        lanes: Lanes,
        sizer: Sizer,
        metrics: Metrics,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._search = search
        self._pivots = pivots
        self._lanes = lanes
        self._sizer = sizer
        self._metrics = metrics
        self._clock = clock
        # Searches that took too long for their request.
        self._late: set[asyncio.Task[list[FoundPiece]]] = set()

    async def add(self, turn: Turn, plan: Plan) -> Plan:
        """The plan with what was found, or as it is. Never raises for what fails."""
        if not _may_add(turn, plan):
            return plan
        known = await self._pivots.load_recalls(turn.owner, [_make_recall(turn, b"", 0, 0.0).key])
        if known:
            # The same request once more, or another branch's beginning.
            return _with_recall(turn, plan, known[0])
        try:
            size_bytes = len(turn.received.body.data)
            names = await self._lanes.run(turn.owner, size_bytes, find_missing_names, turn, plan)
            pieces = await self._find(turn, plan, names) if names else []
            recall = await self._render(turn, pieces)
        except RequestRefused:
            # Too much waits to be read, or counted.
            return plan
        return _with_recall(turn, plan, recall) if recall is not None else plan

    async def _find(self, turn: Turn, plan: Plan, names: Sequence[str]) -> list[FoundPiece]:
        """Those that hold one of the names, the best first."""
        searching = self._search.search(
            make_tag(turn.owner),
            _find_scopes(turn, plan),
            " ".join(names),
            max_tokens=MOST_TOKENS,
        )
        task = asyncio.ensure_future(searching)
        self._late.add(task)
        task.add_done_callback(self._late.discard)
        await asyncio.wait((task,), timeout=_SECONDS)
        if not task.done() or task.cancelled() or task.exception() is not None:
            self._metrics.count_search("auto", "failed")
            error = task.exception() if task.done() and not task.cancelled() else None
            why = "no answer in time" if error is None else type(error).__name__
            if isinstance(error, SearchFailed):
                why = str(error)
            log.warning("search of originals failed: %s", why, extra=name_ids(turn))
            return []
        folded = [name.lower() for name in names]
        found = [piece for piece in task.result() if any(name in piece.text.lower() for name in folded)]
        self._metrics.count_search("auto", "found" if found else "nothing")
        return found

    async def _render(self, turn: Turn, pieces: list[FoundPiece]) -> Recall | None:
        """As many of the pieces as the policy allows; None without any."""
        owner, estimator = turn.owner, turn.policy.estimator
        while pieces:
            asked = _ASKED.format(pieces=render_pieces(pieces))
            raw_tokens = await self._sizer.count(owner, f"{asked}\n{_SAID}", estimator)
            if raw_tokens <= MOST_TOKENS:
                exchange = turn.received.format.write_turns((("user", asked), ("assistant", _SAID)))
                return _make_recall(turn, exchange, raw_tokens + 2 * FRAME_TOKENS, self._clock())
            pieces = pieces[:-1]
        return None


def find_missing_names(turn: Turn, plan: Plan) -> list[str]:
    """What the newest message names and nothing else that is sent holds, as far as bytes tell."""
    received = turn.received
    entries = list_entries([received.format.parse_entry(received.raw(_find_last(turn)))])
    text = "\n".join(entry.text for entry in entries)[:_READ_CHARS]
    names = [fact for fact in find_facts(text) if not is_secret(fact)][:_MOST_NAMES]
    if not names:
        return []
    shown = "\n".join([_read_summary(plan.pivot), *(recall.text for recall in plan.recalls)])
    missing = {name: _list_spellings(name) for name in names if name not in shown}
    for start, end in _list_visible(turn, plan):
        data = received.body.data
        for name in [
            name for name, ways in missing.items() if any(data.find(way, start, end) >= 0 for way in ways)
        ]:
            del missing[name]
    return list(missing)


def _read_summary(pivot: Pivot | None) -> str:
    """Without its lists: they name what there was, and say nothing about it."""
    return "\n".join([pivot.summary, *pivot.lists.quoted, pivot.recalled]) if pivot is not None else ""


def _may_add(turn: Turn, plan: Plan) -> bool:
    """Only beside a summary, behind which something is hidden, and where there is room for it.

    The newest message is a user's own: behind a tool's result the model goes on with what it does. Where the
    upstream keeps the history, or drops parts of it, an insertion would not stay where it is.
    """
    policy, pivot = turn.policy, plan.pivot
    if policy.recall != "auto" or pivot is None or plan.output is not None or not policy.originals.keep:
        return False
    envelope, messages = turn.received.body.envelope, turn.received.conversation.messages
    if turn.purpose != "main" or envelope.is_kept or envelope.is_partial or envelope.is_trimmed:
        return False
    last = _find_last(turn)
    if last < pivot.covers or messages[last].role != "user" or messages[last].results:
        return False
    return not any(recall.position == last for recall in plan.recalls)


def _with_recall(turn: Turn, plan: Plan, recall: Recall) -> Plan:
    """The plan as it is if there is no room: a search must never cause a compaction, or a refusal."""
    sent, thresholds = plan.sent + recall.tokens, turn.thresholds
    if thresholds is not None and sent > thresholds.hard:
        return plan
    context = turn.limits.context
    if context and sent + (turn.requested_tokens or 0) > context:
        return plan
    return replace(plan, sent=sent, recalls=(*plan.recalls, recall), new_recall=recall)


def _find_last(turn: Turn) -> int:
    return len(turn.received.conversation.messages) - 1


def _make_recall(turn: Turn, exchange: bytes, tokens: int, now_seconds: float) -> Recall:
    conversation = turn.received.conversation
    length = len(conversation.messages)
    return Recall(
        owner=turn.owner,
        chain=conversation.chain[length].hex(),
        length=length,
        position=length - 1,
        rounds=(FoundExchange(call=exchange.decode()),),
        tokens=tokens,
        created_seconds=now_seconds,
        conversation=turn.conversation_id,
    )


def _list_visible(turn: Turn, plan: Plan) -> Iterator[tuple[int, int]]:
    """The slices of the body that are sent as they are, without the newest message."""
    received, pivot = turn.received, plan.pivot
    conversation, body, marks = received.conversation, received.body, plan.view.marks
    leading = len(conversation.leading)
    covered = range(pivot.opening_end, pivot.covers) if pivot is not None else range(0)
    if body.places:
        yield 0, body.places[0].start
        yield body.inside_end, len(body.data)
    for place in body.places[:leading]:
        yield place.start, place.end
    for position in range(_find_last(turn)):
        if position not in covered and position not in marks and not conversation.is_gone(position):
            place = body.places[leading + conversation.index(position)]
            yield place.start, place.end


def _list_spellings(name: str) -> list[bytes]:
    """In JSON."""
    ways = (json.dumps(name), json.dumps(name, ensure_ascii=False))
    return list(dict.fromkeys(way[1:-1].encode("utf-8", "surrogatepass") for way in ways))


def _find_scopes(turn: Turn, plan: Plan) -> list[Scope]:
    """The conversation's own originals, and those of the one that its pivot was made in.

    Another conversation that began alike may have the same id, so only what the chain of this one holds
    counts, or what its pivot covers: that is proven, also where old messages were dropped or cleared.
    """
    conversation, pivot = turn.received.conversation, plan.pivot
    proven = (pivot.covers, pivot.key) if pivot is not None else None

    def accepts(position: int, link: str) -> bool:
        return link == conversation.find_link(position + 1) or (position + 1, link) == proven

    ids = [turn.conversation_id, pivot.conversation if pivot is not None else ""]
    return [Scope(identity, accepts) for identity in dict.fromkeys(filter(None, ids))]
