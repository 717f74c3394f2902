"""Pieces of the originals that stand behind a summary: chosen when it is made, and a part of it from then on.

Everything is read from the request itself, which holds the messages that the summary replaces: no search, no
store. What its client no longer sends is not found.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from gateway.bounds.lanes import Lanes, Steps
from gateway.conversations.turn import Turn
from gateway.core.errors import RequestRefused
from gateway.core.session.work_sections import spell_out_lists
from gateway.originals.origins import OriginFinder
from gateway.originals.parts import read_parts
from gateway.originals.search import FoundPiece
from gateway.recall.pieces import render_pieces
from gateway.recall.upcoming import PieceChooser, PlacedPart, join_neighbors

# Raw tokens of a text.
CountText = Callable[[str], Awaitable[int]]

HEADING: Final = "Parts of the earlier messages that may be needed next, word for word:"
# What was mentioned in older messages is hardly needed in the next thirty replies.
_MOST_MESSAGES: Final = 200
# The estimate is mostly too high; where it is too low, this much less is tried.
_SMALLER: Final = 0.85
# Fewer tokens hold no two pieces.
_LEAST_TOKENS: Final = 200


async def choose_recalled(
    turn: Turn, lanes: Lanes, summary: str, covers: int, max_tokens: int, count: CountText
) -> str:
    """The text, of at most max_tokens by `count`; empty if there is nothing, or no time for it.

    summary: what is known beside the messages that stay. covers: as in Pivot.
    """
    if max_tokens < _LEAST_TOKENS:
        return ""
    size_bytes = len(turn.received.body.data)
    try:
        pieces = await lanes.run_steps(turn.owner, size_bytes, _choose(turn, summary, covers, max_tokens))
    except RequestRefused:
        return ""
    return await _fit(pieces, max_tokens, count)


async def _fit(pieces: list[FoundPiece], max_tokens: int, count: CountText) -> str:
    while pieces:
        text = f"{HEADING}\n\n{render_pieces(join_neighbors(pieces))}"
        if await count(text) <= max_tokens:
            return text
        pieces = pieces[: min(len(pieces) - 1, int(len(pieces) * _SMALLER))]
    return ""


def _choose(turn: Turn, summary: str, covers: int, max_tokens: int) -> Steps[list[FoundPiece]]:
    """The best first."""
    received, texts = turn.received, [spell_out_lists(summary)]
    conversation = received.conversation
    start = conversation.opening_end if turn.policy.keep.opening else 0
    for position in (*range(start), *range(covers, len(conversation.messages))):
        if not conversation.is_gone(position):
            texts += _list_texts(turn, position)
            yield
    chooser, origins = PieceChooser("\n".join(texts)), OriginFinder(received)
    for position in range(covers - 1, max(start, covers - _MOST_MESSAGES) - 1, -1):
        if chooser.is_full:
            break
        if not conversation.is_gone(position):
            parts = read_parts(received.format.name, received.raw(position), origins.find(position))
            chooser.add([PlacedPart(position, covers - position, part) for part in parts])
            yield
    return chooser.choose(turn.conversation_id, max_tokens)


def _list_texts(turn: Turn, position: int) -> list[str]:
    parts = read_parts(turn.received.format.name, turn.received.raw(position), ())
    return [part.text for part in parts]
