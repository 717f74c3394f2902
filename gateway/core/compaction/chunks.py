"""How much of a history can one summary call hold, and how much of each text does it quote?

DESIGN §6: tool outputs cut to 2,000 characters, then folded in chunks; each chunk is a pivot of its own,
which the next one builds on. Sizes are guesses from what is known of each message: the caller counts what it
is going to send, and takes the next attempt where that is too much.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from gateway.core.compaction.cut import Cut
from gateway.core.history.conversation import Conversation, is_boundary
from gateway.core.history.pivot import Pivot
from gateway.core.history.transcript import TranscriptEntry, list_entries
from gateway.core.history.view import Size
from gateway.core.sizing.calibrated_sizes import CalibratedSizes


@dataclass(frozen=True, slots=True)
class Quoting:
    """Longer texts than `…_chars` are cut in the middle; tool_chars 0 leaves results and arguments out."""

    tool_chars: int | None = None
    text_chars: int | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """Fold up to `covers`, quoting like this."""

    covers: int
    quoting: Quoting


# Document 003 §5: contents cut to 2,000 characters. One call with shorter outputs comes before two calls: a
# client is waiting (DECISIONS, chunks).
WHOLE: Final = (Quoting(), Quoting(2_000), Quoting(500))
# Texts of people and of the model are cut last: what they say is what a summary is for.
CHUNKED: Final = (
    Quoting(2_000),
    Quoting(500),
    Quoting(120),
    Quoting(120, 8_000),
    Quoting(0, 8_000),
    Quoting(0, 2_000),
    Quoting(0, 500),
)
# A guess that is off by less than this is worth a count.
_WORTH_COUNTING: Final = 1.15
# Of the room: what a chunk is guessed to take, and again if it took more than that.
_FILLS: Final = (0.92, 0.7, 0.5, 0.3)
# Groups are whole: a chunk is seldom filled to its end.
_FILLED: Final = 0.85
# Label and separators of one entry; the note inside a text that was cut.
_LABEL_TOKENS: Final = 8
_NOTE_CHARS: Final = 48


@dataclass(frozen=True, slots=True)
class FoldedHistory:
    """What a cut folds: each message from its start on, what it says and its raw size."""

    conversation: Conversation
    cut: Cut
    spoken: Sequence[TranscriptEntry]
    sizes: Sequence[Size]


def find_whole(history: FoldedHistory, room_tokens: float) -> Iterator[Attempt]:
    """The attempts to fold all of it in one call that may fit the room (raw tokens), mildest first."""
    for quoting in WHOLE:
        if sum(_guess_all(history, quoting)) <= _WORTH_COUNTING * room_tokens:
            yield Attempt(history.cut.covers, quoting)


def find_chunks(history: FoldedHistory, room_tokens: float, calls: int) -> Iterator[Attempt]:
    """The next chunk of whole groups, the fullest first: quoted as mildly as `calls` calls can fold it all,
    else as briefly as it goes.
    """
    quoting, guesses = CHUNKED[-1], [0.0]
    for quoting in CHUNKED:
        guesses = _guess_all(history, quoting)
        if ceil(sum(guesses) / max(1.0, _FILLED * room_tokens)) <= calls:
            break
    for fill in _FILLS:
        yield Attempt(_find_end(history, guesses, fill * room_tokens), quoting)
    yield Attempt(_find_end(history, guesses, 0.0), CHUNKED[-1])


def shrink_cut(weights: CalibratedSizes, cut: Cut, covers: int) -> Cut:
    """The cut that folds no more than its messages up to `covers`."""
    if covers >= cut.covers:
        return cut
    return replace(cut, covers=covers, replaced_tokens=_folded_tokens(weights, cut.base, cut.start, covers))


def from_originals(cut: Cut, pivots: Sequence[Pivot], weights: CalibratedSizes) -> Cut | None:
    """The cut that folds again what a digest covers, for a client still sends it. None: it builds on none.

    pivots: every eligible one, ascending; the newest real summary before the digest is built on.
    """
    if cut.base is None or not cut.base.is_digest:
        return None
    real = [pivot for pivot in pivots if not pivot.is_digest and pivot.covers < cut.covers]
    base = real[-1] if real else None
    start = max(base.covers if base else 0, cut.base.opening_end)
    return replace(
        cut, base=base, start=start, replaced_tokens=_folded_tokens(weights, base, start, cut.covers)
    )


def _find_end(history: FoldedHistory, guesses: Sequence[float], room_tokens: float) -> int:
    """As many whole groups as the room holds, at least one."""
    start, conversation = history.cut.start, history.conversation
    end, taken = start, 0.0
    for position, guess in enumerate(guesses, start=start):
        if position > start and is_boundary(conversation, position):
            if end > start and taken > room_tokens:
                return end
            end = position
        taken += guess
    return end if end > start and taken > room_tokens else history.cut.covers


def _guess_all(history: FoldedHistory, quoting: Quoting) -> list[float]:
    return [_guess(spoken, size, quoting) for spoken, size in zip(history.spoken, history.sizes, strict=True)]


def _guess(spoken: TranscriptEntry, size: Size, quoting: Quoting) -> float:
    """Raw tokens of one message as it is quoted: all its characters are taken for equally expensive."""
    entries = list_entries((spoken,))
    chars = sum(map(_count_chars, entries))
    density = max(0, size.tokens - sum(entry.media_tokens for entry in entries)) / max(1, chars)
    return sum(_guess_entry(entry, density, quoting) for entry in entries)


def _count_chars(spoken: TranscriptEntry) -> int:
    return len(spoken.text) + len(spoken.hidden) + sum(len(arguments) for _, arguments in spoken.calls)


def _guess_entry(spoken: TranscriptEntry, density: float, quoting: Quoting) -> float:
    if spoken.is_result and quoting.tool_chars == 0:
        return 0.0
    shown = _shown_chars(len(spoken.text), quoting.tool_chars if spoken.is_result else quoting.text_chars)
    shown += sum(_shown_chars(len(arguments), quoting.tool_chars) for _, arguments in spoken.calls)
    return _LABEL_TOKENS * (1 + len(spoken.calls)) + shown * density


def _shown_chars(chars: int, most_chars: int | None) -> int:
    if most_chars is None or chars <= most_chars:
        return chars
    return most_chars + _NOTE_CHARS if most_chars else 0


def _folded_tokens(weights: CalibratedSizes, base: Pivot | None, start: int, covers: int) -> int:
    summary = base.tokens * weights.ratio if base is not None else 0.0
    return int(sum(weights.messages[start:covers]) + summary)
