"""What is brought back of replaced messages: which pieces stand behind a new summary, and how pieces read.

The pieces are chosen when the summary is made, and are a part of it from then on. Everything is read from the
request itself, which holds the messages that the summary replaces: no search, no store. What its client no
longer sends is not found.

What will be needed next? Measured on recorded sessions (docs/recall.md): what replies go on to name is what
was named last, and most of all what the model itself named last. So each name has a weight that falls with
its distance from the cut, and the pieces are those that bring the most weight for their size, of names that
stand nowhere else in what is sent. A search by the words of the tail finds a fifth of that, because the tail
says its own words already.
"""

import heapq
from collections.abc import Awaitable, Callable, Iterable, Sequence
from math import exp
from typing import Final, NamedTuple

from msgspec.structs import replace

from gateway.bounds.lanes import Lanes, Steps
from gateway.conversations.turn import Turn
from gateway.core.digest.facts import find_names
from gateway.core.errors import RequestRefused
from gateway.core.history.lists import Told
from gateway.core.history.transcript import quote, render_name
from gateway.core.search.cutting import cut_text, estimate_tokens
from gateway.originals.parts import OriginFinder, Part, read_parts
from gateway.originals.search import FoundPiece

# Raw tokens of a text.
CountText = Callable[[str], Awaitable[int]]

# Most tokens that one addition brings back.
MOST_TOKENS: Final = 1_600
HEADING: Final = "Parts of the earlier messages that may be needed next, word for word:"
# What was mentioned in older messages is hardly needed in the next thirty replies.
_MOST_MESSAGES: Final = 200
# The estimate is mostly too high; where it is too low, this much less is tried.
_SMALLER: Final = 0.85
# Fewer tokens hold no two pieces.
_LEAST_TOKENS: Final = 200
# Half of it, or twice, changed little; 600 lost two points of a hundred, 1,000 lost six.
PIECE_CHARS: Final = 300
# A name that was mentioned this many messages before the cut has a third of its weight.
_FADE_MESSAGES: Final = 32.0
_FADE_SAID_MESSAGES: Final = 48.0
# Of a name that the model used itself, beside one that it has only read.
_SAID_WEIGHT: Final = 4.0
_LEAST_WEIGHT: Final = 0.02
# Beside its text a piece has a line that says where it stood.
_LABEL_TOKENS: Final = 12
# Of a longer text, and of all messages together, the rest is not read: some 100 ms of a thread's time.
_PART_CHARS: Final = 12_000
_READ_CHARS: Final = 400_000
_MOST_VISIBLE_CHARS: Final = 400_000
_MOST_NAMES: Final = 5_000
_NOTHING: Final = "Nothing was found. Try other words: names, paths or values as they were written."


async def choose_recalled(
    turn: Turn, lanes: Lanes, told: Told, covers: int, max_tokens: int, count: CountText
) -> str:
    """The text, of at most max_tokens by `count`; empty if there is nothing, or no time for it.

    told: what is known beside the messages that stay. covers: as in Pivot.
    """
    if max_tokens < _LEAST_TOKENS:
        return ""
    size_bytes = len(turn.received.body.data)
    try:
        pieces = await lanes.run_steps(turn.owner, size_bytes, _choose(turn, told, covers, max_tokens))
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


def _choose(turn: Turn, told: Told, covers: int, max_tokens: int) -> Steps[list[FoundPiece]]:
    """The best first."""
    received, texts = turn.received, [told.spelled_out]
    conversation = received.conversation
    start = conversation.opening_end if turn.policy.keep.opening else 0
    for position in (*range(start), *range(covers, len(conversation.messages))):
        if not conversation.is_gone(position):
            texts += [part.text for part in read_parts(received.format.name, received.raw(position), ())]
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


def render_pieces(pieces: Sequence[FoundPiece]) -> str:
    """Never empty."""
    return "\n\n".join(_render(piece) for piece in pieces) if pieces else _NOTHING


def _render(piece: FoundPiece) -> str:
    origin = ", ".join(render_name(name) for name in (piece.role, piece.tool, piece.path) if name)
    return f"[message {piece.position}, {origin}]\n{quote(piece.text)}"


class PlacedPart(NamedTuple):
    """A part of a replaced message. distance: how many messages it stands before the end of the replaced."""

    position: int
    distance: int
    part: Part


class _Snippet(NamedTuple):
    placed: PlacedPart
    start: int
    end: int
    names: tuple[str, ...]
    tokens: int


class PieceChooser:
    """What was read of the replaced messages; `add` is called with the newest message first.

    visible: everything that is sent beside the pieces.
    """

    def __init__(self, visible: str) -> None:
        self._visible = visible[-_MOST_VISIBLE_CHARS:]
        self._snippets: list[_Snippet] = []
        self._weights: dict[str, float] = {}
        self._known: dict[str, bool] = {}
        self._chars = 0

    @property
    def is_full(self) -> bool:
        return self._chars >= _READ_CHARS or len(self._known) >= _MOST_NAMES

    def add(self, placed: Iterable[PlacedPart]) -> None:
        for each in placed:
            text = each.part.text[:_PART_CHARS]
            self._chars += len(text)
            weight = _weigh(each)
            for start, end in cut_text(text, PIECE_CHARS):
                names = tuple([name for name in find_names(text[start:end]) if self._is_missing(name)])
                for name in names:
                    self._weights[name] = max(weight, self._weights.get(name, 0.0))
                if names:
                    tokens = estimate_tokens(text[start:end]) + _LABEL_TOKENS
                    self._snippets.append(_Snippet(each, start, end, names, tokens))

    def choose(self, conversation_id: str, max_tokens: int) -> list[FoundPiece]:
        """The best first, together within max_tokens as far as can be estimated.

        Takes what brings the most for its size, again and again. What others have brought counts no more, so
        a value only falls, and one that is still the greatest after a new look is the greatest of all.
        """
        chosen, brought = list[FoundPiece](), set[str]()
        heap = [(-self._value(snippet, brought), at) for at, snippet in enumerate(self._snippets)]
        heapq.heapify(heap)
        while heap:
            before, at = heapq.heappop(heap)
            snippet = self._snippets[at]
            value = -self._value(snippet, brought)
            if snippet.tokens > max_tokens or not value:
                continue
            if value > before:
                heapq.heappush(heap, (value, at))
                continue
            chosen.append(_describe(conversation_id, snippet))
            brought.update(snippet.names)
            max_tokens -= snippet.tokens
        return chosen

    def _is_missing(self, name: str) -> bool:
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = name in self._visible
        return not known

    def _value(self, snippet: _Snippet, brought: set[str]) -> float:
        return sum(self._weights[name] for name in snippet.names if name not in brought) / snippet.tokens


def join_neighbors(pieces: Sequence[FoundPiece]) -> list[FoundPiece]:
    """In the order of the conversation; pieces that follow one another in one text are one."""
    joined: list[FoundPiece] = []
    for piece in sorted(pieces, key=lambda each: (each.position, each.start)):
        last = joined[-1] if joined else None
        if last is not None and (last.position, last.end) == (piece.position, piece.start):
            joined.pop()
            piece = replace(last, text=last.text + piece.text, end=piece.end)
        joined.append(piece)
    return joined


def _weigh(placed: PlacedPart) -> float:
    weight = _LEAST_WEIGHT + exp(-placed.distance / _FADE_MESSAGES)
    if placed.part.role == "assistant":
        weight += _SAID_WEIGHT * exp(-placed.distance / _FADE_SAID_MESSAGES)
    return weight


def _describe(conversation_id: str, snippet: _Snippet) -> FoundPiece:
    part = snippet.placed.part
    return FoundPiece(
        conversation=conversation_id,
        position=snippet.placed.position,
        role=part.role,
        tool=part.tool,
        path=part.path,
        text=part.text[snippet.start : snippet.end],
        start=part.start + snippet.start,
        end=part.start + snippet.end,
        time_seconds=0.0,
    )
