"""Searching the originals of a conversation: what was summarized or pruned, as it was received."""

from collections.abc import Callable
from typing import NamedTuple

import msgspec


class SearchFailed(Exception):
    """The originals could not be searched or read now. The text says why, without a name or a text of any."""


class SearchImpossible(SearchFailed):
    """Trying again is no use: this process cannot search at all."""


class Scope(NamedTuple):
    """Where to look. before: only messages before this position; None for all.

    A branch looks into its own conversation, and into the one in which its pivot was made, up to what that
    pivot covers. accepts: whether the message at a position, with this link (`removed.Original`), is the
    branch's own; what came before such a message is its own, too. None if whatever has the id may be found.
    """

    conversation_id: str
    before: int | None = None
    accepts: Callable[[int, str], bool] | None = None


class FoundPiece(msgspec.Struct, frozen=True, kw_only=True):
    """A part of an original. position: of its message, after the leading block. start, end: characters of
    its text. time_seconds: when it was taken out of what is sent.
    """

    conversation: str
    position: int
    role: str
    tool: str | None = None
    path: str | None = None
    text: str
    start: int
    end: int
    time_seconds: float


class OriginalText(msgspec.Struct, frozen=True, kw_only=True):
    """The texts of one original, readable. total_chars: of the whole, of which `text` may be a part."""

    conversation: str
    position: int
    role: str
    tool: str | None = None
    path: str | None = None
    text: str
    total_chars: int
    time_seconds: float


class MentionedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A path that calls of tools name. positions: of the newest messages that do, in ascending order."""

    path: str
    mentions: int
    positions: list[int]
