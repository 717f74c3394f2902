"""The array of messages as it was received beside the array as it was sent, message by message.

Made from the same edits of the same body that made the request, so what is shown is what was sent. An array
may hold 100,000 messages and 64 MB, so one window of it is made at a time.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import msgspec

from gateway.core.history.conversation import Conversation
from gateway.core.history.pivot import Pivot, list_turns
from gateway.core.history.view import View
from gateway.wire.body import RequestBody

# What became of a received message. gone: the client no longer sends it, and it is known from before.
Fate = Literal["sent", "folded", "cleared", "shortened", "gone"]
# A message as received, one of the three that stand for what is folded, one that lost a part of its text, or
# one that the client does not know: originals that were found.
SentKind = Literal["message", "question", "summary", "resume", "cleared", "shortened", "recalled"]


class _RoleOnly(msgspec.Struct):
    role: str = ""


_role_decoder: Final = msgspec.json.Decoder(_RoleOnly)
_raws_decoder: Final = msgspec.json.Decoder(list[msgspec.Raw])


class ArrayWindow(NamedTuple):
    """Which part of the arrays is made: `most` messages of the history from `start` on, the leading ones
    counted too, and fewer if they have more than max_bytes together. One is made in any case.
    """

    start: int
    most: int
    max_bytes: int


class ReceivedMessage(NamedTuple):
    """position: in the conversation after its leading block; None for a message of that block.

    raw: as received; None if it is gone. tokens: an estimate, made elsewhere.
    """

    position: int | None
    role: str
    fate: Fate
    raw: bytes | None
    tokens: int = 0


class SentMessage(NamedTuple):
    """position: of the received message that it is; None for one of the leading block, and for one that
    stands for what is folded, or that is inserted. raw: as sent. tokens: as above.
    """

    position: int | None
    role: str
    kind: SentKind
    raw: bytes
    tokens: int = 0


class Arrays(NamedTuple):
    """The messages of one window. Those that stand for folded ones come where the folded ones begin.

    end: where the next window begins; None if this was the last one. inserted: how many messages recalls add
    to the whole array.
    """

    received: list[ReceivedMessage]
    sent: list[SentMessage]
    end: int | None
    inserted: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ArraySource:
    """Of which request, and how it was sent.

    render_shortened: the bytes of a message that the view shortens, by its position. render_summary: as in
    Format. recalled: messages that are inserted before others, by the positions of these; JSON values
    separated by commas.
    """

    body: RequestBody
    conversation: Conversation
    view: View
    render_shortened: Callable[[int], bytes]
    render_summary: Callable[[Pivot, str], bytes]
    recalled: Mapping[int, bytes]


def count_messages(conversation: Conversation, view: View) -> tuple[int, int]:
    """Of both whole arrays: the history as far as it is known, and what is sent."""
    skip, messages, pivot = len(conversation.leading), conversation.messages, view.pivot
    sent = conversation.index(len(messages))
    if pivot is not None:
        sent -= conversation.index(pivot.covers) - conversation.index(pivot.opening_end)
        sent += len(list_turns(pivot, conversation.find_role(pivot.covers)))
    return skip + len(messages), skip + sent


def make_arrays(source: ArraySource, window: ArrayWindow) -> Arrays:
    received: list[ReceivedMessage] = []
    sent: list[SentMessage] = []
    inserted = sum(len(_split(raw)) for raw in source.recalled.values())
    total = len(source.conversation.leading) + len(source.conversation.messages)
    left_bytes = window.max_bytes
    for at in range(window.start, min(window.start + window.most, total)):
        row, rows = _make_rows(source, at)
        left_bytes -= len(row.raw or b"") + sum(len(each.raw) for each in rows)
        if received and left_bytes < 0:
            break
        received.append(row)
        sent += rows
    end = window.start + len(received)
    return Arrays(received, sent, end if received and end < total else None, inserted)


def _make_rows(source: ArraySource, at: int) -> tuple[ReceivedMessage, list[SentMessage]]:
    """at: of all messages of the history, the leading ones first."""
    conversation = source.conversation
    skip = len(conversation.leading)
    if at < skip:
        role, raw = conversation.leading[at].role, source.body.raw(at)
        return ReceivedMessage(None, role, "sent", raw), [SentMessage(None, role, "message", raw)]
    position, pivot = at - skip, source.view.pivot
    inserted = list(_list_inserted(source, pivot)) if pivot and position == pivot.opening_end else []
    role = conversation.messages[position].role
    if conversation.is_gone(position):
        return ReceivedMessage(position, role, "gone", None), inserted
    raw = source.body.raw(skip + conversation.index(position))
    fate, sent = _find_fate(source, position, raw)
    row = ReceivedMessage(position, role, fate, raw)
    if sent is None:
        return row, inserted
    kind: SentKind = "cleared" if fate == "cleared" else "shortened" if fate == "shortened" else "message"
    message = SentMessage(position, role, kind, sent)
    raws = _split(source.recalled.get(position, b""))
    recalled = [SentMessage(None, _role_decoder.decode(raw).role, "recalled", raw) for raw in raws]
    return row, [*inserted, *recalled, message]


def _split(values: bytes) -> list[bytes]:
    return [bytes(raw) for raw in _raws_decoder.decode(b"[" + values + b"]")]


def _find_fate(source: ArraySource, position: int, raw: bytes) -> tuple[Fate, bytes | None]:
    """And how the message was sent; None if it was not."""
    view = source.view
    pivot, mark = view.pivot, view.marks.get(position)
    if pivot is not None and pivot.opening_end <= position < pivot.covers:
        return "folded", None
    if mark is None:
        return "sent", raw
    sent = source.render_shortened(position)
    if sent == raw:
        return "sent", raw
    return "cleared" if mark.keep_chars is None else "shortened", sent


def _list_inserted(source: ArraySource, pivot: Pivot) -> Iterator[SentMessage]:
    """The messages that stand for what the pivot covers."""
    next_role = source.conversation.find_role(pivot.covers)
    raws = _raws_decoder.decode(b"[" + source.render_summary(pivot, next_role) + b"]")
    names: list[SentKind] = ["question", "summary", "resume"]
    names = names if pivot.question is not None else names[1:]
    for raw, kind, (role, _) in zip(raws, names, list_turns(pivot, next_role), strict=False):
        yield SentMessage(None, role, kind, bytes(raw))
