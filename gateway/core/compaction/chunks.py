"""How much of a history fits one summary call, and how much of each text is quoted.

First tool outputs are cut to 2,000 characters; then the history is summarized in chunks. Each chunk becomes a
pivot that the next one builds on. Sizes are guesses from what is known about each message: the caller counts
what it would send, and takes the next attempt if that is too much.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from gateway.core.compaction.cut import Cut, sum_replaced
from gateway.core.compaction.situation import Situation
from gateway.core.history.conversation import Conversation, is_boundary
from gateway.core.history.lists import EARLIER_HEADING
from gateway.core.history.transcript import TranscriptEntry, list_entries
from gateway.core.history.view import Size
from gateway.core.sizing.calibrated_sizes import CalibratedSizes


@dataclass(frozen=True, slots=True)
class Quoting:
    """Longer texts are cut in the middle. With 0 for tool_chars results and arguments are left out."""

    tool_chars: int | None = None
    text_chars: int | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """Summarize the messages up to `covers`, quoted like this."""

    covers: int
    quoting: Quoting


# 003 (docs/sources.md) cuts contents to 2,000 characters. One call with shorter outputs is preferred to two
# calls, because a client is waiting (DECISIONS.md, core/compaction).
WHOLE: Final = (Quoting(), Quoting(2_000), Quoting(500))
# Texts of people and of the model are cut last, because a summary is about what they say.
CHUNKED: Final = (
    Quoting(2_000),
    Quoting(500),
    Quoting(120),
    Quoting(120, 8_000),
    Quoting(0, 8_000),
    Quoting(0, 2_000),
    Quoting(0, 500),
)
# A guess above the room by less than this factor is worth counting.
_WORTH_COUNTING_FACTOR: Final = 1.15
# Shares of the room to fill by the guess; the next one is used if a chunk turned out larger.
_FILL_SHARES: Final = (0.92, 0.7, 0.5, 0.3)
# Groups stay whole, so that a chunk is seldom filled completely.
_USUAL_FILL_SHARE: Final = 0.85
# The label and separators of an entry.
_LABEL_TOKENS: Final = 8
# The note inside a text that was cut.
_NOTE_CHARS: Final = 48


@dataclass(frozen=True, slots=True)
class ReplacedHistory:
    """What a cut replaces: the messages from its start on."""

    conversation: Conversation
    cut: Cut
    messages: Sequence[TranscriptEntry]
    # Raw sizes.
    sizes: Sequence[Size]


def find_whole_attempts(history: ReplacedHistory, room_tokens: float) -> Iterator[Attempt]:
    """Attempts to summarize everything in one call that may fit (raw tokens), longest quotes first."""
    for quoting in WHOLE:
        if sum(_guess_all(history, quoting)) <= _WORTH_COUNTING_FACTOR * room_tokens:
            yield Attempt(history.cut.covers, quoting)


def find_chunk_attempts(history: ReplacedHistory, room_tokens: float, calls: int) -> Iterator[Attempt]:
    """Attempts for the next chunk of whole groups, the largest chunk first.

    Quotes are as long as they can be if `calls` calls are to summarize everything, else as short as possible.
    """
    quoting, guesses = CHUNKED[-1], [0.0]
    for quoting in CHUNKED:
        guesses = _guess_all(history, quoting)
        if ceil(sum(guesses) / max(1.0, _USUAL_FILL_SHARE * room_tokens)) <= calls:
            break
    for fill in _FILL_SHARES:
        yield Attempt(_find_end(history, guesses, fill * room_tokens), quoting)
    yield Attempt(_find_end(history, guesses, 0.0), CHUNKED[-1])


def shrink_cut(calibrated: CalibratedSizes, cut: Cut, covers: int) -> Cut:
    """The same cut for its messages up to `covers` only."""
    if covers >= cut.covers:
        return cut
    return replace(cut, covers=covers, replaced_tokens=sum_replaced(calibrated, cut.base, cut.start, covers))


def rebase_on_originals(situation: Situation, cut: Cut) -> Cut | None:
    """The same cut without its digest: the client still sends the originals, which are summarized.

    It builds on the newest summary before the digest instead. None if the cut does not build on a digest, if
    the client no longer sends them all, or if nothing else is known of a summary that the digest quotes.
    """
    is_gone, calibrated = situation.conversation.is_gone, situation.calibrated
    if cut.base is None or not cut.base.is_digest:
        return None
    real = [pivot for pivot in situation.pivots if not pivot.is_digest and pivot.covers < cut.covers]
    base = real[-1] if real else None
    start = max(base.covers if base else 0, cut.base.opening_end)
    quotes_summary = bool(cut.base.lists.earlier) or EARLIER_HEADING in cut.base.summary
    if any(map(is_gone, range(start, cut.base.covers))) or (base is None and quotes_summary):
        # After a restart the summary that it quotes may not be loaded.
        return None
    return replace(
        cut, base=base, start=start, replaced_tokens=sum_replaced(calibrated, base, start, cut.covers)
    )


def _find_end(history: ReplacedHistory, guesses: Sequence[float], room_tokens: float) -> int:
    """The end of as many whole groups as the room holds, at least one."""
    start, conversation = history.cut.start, history.conversation
    end, taken = start, 0.0
    for position, guess in enumerate(guesses, start=start):
        if position > start and is_boundary(conversation, position):
            if end > start and taken > room_tokens:
                return end
            end = position
        taken += guess
    return end if end > start and taken > room_tokens else history.cut.covers


def _guess_all(history: ReplacedHistory, quoting: Quoting) -> list[float]:
    return [
        _guess(message, size, quoting) for message, size in zip(history.messages, history.sizes, strict=True)
    ]


def _guess(message: TranscriptEntry, size: Size, quoting: Quoting) -> float:
    """Raw tokens of one message as quoted, if all its characters cost the same."""
    entries = list_entries((message,))
    chars = sum(
        len(entry.text) + len(entry.hidden) + sum(len(arguments) for _, arguments in entry.calls)
        for entry in entries
    )
    density = max(0, size.tokens - sum(entry.media_tokens for entry in entries)) / max(1, chars)
    return sum(_guess_entry(entry, density, quoting) for entry in entries)


def _guess_entry(entry: TranscriptEntry, density: float, quoting: Quoting) -> float:
    if entry.is_result and quoting.tool_chars == 0:
        return 0.0
    shown = _shown_chars(len(entry.text), quoting.tool_chars if entry.is_result else quoting.text_chars)
    shown += sum(_shown_chars(len(arguments), quoting.tool_chars) for _, arguments in entry.calls)
    return _LABEL_TOKENS * (1 + len(entry.calls)) + shown * density


def _shown_chars(chars: int, max_chars: int | None) -> int:
    if max_chars is None or chars <= max_chars:
        return chars
    return max_chars + _NOTE_CHARS if max_chars else 0
