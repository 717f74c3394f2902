"""Messages: puts calls of the gateway's tool and their results back into the reply in which they were made.

The calls of a response stand behind all other blocks of that response. If the gateway answered them, the
reply is divided there by the message with the results, as it was for the model.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from gateway.core.history.recall import RecallRound, ReplyMark
from gateway.wire.body import JsonFields, Slice, parse_value, place_fields, place_items
from gateway.wire.formats.messages.recall_reply import (
    BLOCK_ERRORS,
    is_call,
    is_said,
    is_thought,
    mark_blocks,
    parse_block,
)
from gateway.wire.recall import Insertion
from gateway.wire.request import RequestBody

_ROLE_BEHIND: Final = b',"role":"assistant"'


class _ClientMessage(NamedTuple):
    """content: where it is. items: where its blocks are; the content itself if it is a string."""

    place: Slice
    content: Slice
    items: list[Slice]
    is_array: bool
    has_role_behind: bool


class _ClientReply(NamedTuple):
    messages: list[_ClientMessage]
    blocks: list[JsonFields]

    @property
    def last(self) -> _ClientMessage:
        return self.messages[-1]

    def find(self, boundary: int) -> tuple[_ClientMessage, int]:
        """The message that holds the block behind a boundary, and the block's index in it."""
        for message in self.messages:
            if boundary < len(message.items):
                return message, boundary
            boundary -= len(message.items)
        raise IndexError("a boundary behind the last block")


def splice(
    body: RequestBody, first: int, end: int, rounds: Sequence[RecallRound], mark: ReplyMark
) -> list[Insertion] | None:
    """See RecallSyntax."""
    try:
        reply = _read_reply(body, first, end)
        if not rounds or not reply.blocks or mark_blocks(reply.blocks) != mark:
            return None
        solos = [each for each in rounds if not each.is_parallel]
        boundaries = _find_boundaries(reply, solos)
        if boundaries is None:
            return None
        inserted = _insert_solos(reply, list(zip(boundaries, solos, strict=True)))
        if len(solos) == len(rounds):
            return inserted
        (parallel,) = rounds[len(solos) :]
        if not parallel.is_parallel or (boundaries and boundaries[-1] == len(reply.blocks)):
            return None
        return [*inserted, *_insert_parallel(reply, parallel, _read_message(body, end, "user"))]
    except BLOCK_ERRORS:
        return None


def _read_reply(body: RequestBody, first: int, end: int) -> _ClientReply:
    messages = [_read_message(body, index, "assistant") for index in range(first, end)]
    blocks = [_parse(body, message, place) for message in messages for place in message.items]
    return _ClientReply(messages, blocks)


def _read_message(body: RequestBody, index: int, role: str) -> _ClientMessage:
    """Raises ValueError for a message of another role, or without content."""
    if index >= len(body.places):
        raise ValueError("no such message")
    place, raw = body.places[index], body.raw(index)
    fields = place_fields(raw)
    where, content = fields["role"], fields["content"]
    if parse_value(raw[where.start : where.end]) != role:
        raise ValueError("a message of another role")
    at = place.start + content.start
    is_array = raw.startswith(b"[", content.start)
    if not is_array and not raw.startswith(b'"', content.start):
        raise ValueError("neither text nor blocks")
    size = content.end - content.start
    items = place_items(raw[content.start : content.end]) if is_array else [Slice(0, size)]
    return _ClientMessage(
        place=place,
        content=Slice(at, place.start + content.end),
        items=[Slice(at + item.start, at + item.end) for item in items],
        is_array=is_array,
        has_role_behind=where.start > content.start,
    )


def _parse(body: RequestBody, message: _ClientMessage, place: Slice) -> JsonFields:
    raw = body.data[place.start : place.end]
    return parse_block(raw) if message.is_array else {"type": "text", "text": parse_value(raw)}


def _find_boundaries(reply: _ClientReply, rounds: Sequence[RecallRound]) -> list[int] | None:
    """Before which block each round stands. If that cannot be known, all stand before the reply; not before
    thinking, which must come first.
    """
    found = [_find_boundary(reply.blocks, each) for each in rounds]
    boundaries = [boundary for boundary in found if boundary is not None]
    is_ordered = all(before <= after for before, after in pairwise(boundaries))
    # A client that sends strings joins all texts of a reply.
    is_divided = all(message.is_array for message in reply.messages)
    if len(boundaries) == len(rounds) and is_ordered and is_divided:
        return boundaries
    return None if any(map(is_thought, reply.blocks)) else [0] * len(rounds)


def _find_boundary(blocks: Sequence[JsonFields], each: RecallRound) -> int | None:
    """None also behind a call of the client's: its result must follow in the next message."""
    boundary = _find_place(blocks, each)
    return None if boundary is None or any(map(is_call, blocks[:boundary])) else boundary


def _find_place(blocks: Sequence[JsonFields], each: RecallRound) -> int | None:
    if each.shown <= len(blocks) and sum(map(is_said, blocks[: each.shown])) == each.said:
        return each.shown
    if any(map(is_thought, blocks)):
        return None
    # The client has dropped its thinking.
    places = [0, *(index + 1 for index, block in enumerate(blocks) if is_said(block))]
    return places[each.said] if each.said < len(places) else None


def _insert_solos(reply: _ClientReply, placed: Sequence[tuple[int, RecallRound]]) -> list[Insertion]:
    inserted: list[Insertion] = []
    is_behind = False
    for boundary, each in placed:
        if boundary < len(reply.blocks):
            inserted.append(_divide(*reply.find(boundary), each))
            continue
        last = reply.last
        call = b'{"role":"assistant","content":[%s]},' % each.call.encode()
        if last.items and not is_behind:
            inserted.append(Insertion(last.items[-1].end, b"," + each.call.encode()))
            call = b""
        is_behind = True
        inserted.append(Insertion(last.place.end, b"," + call + _render_results(each)))
    return inserted


def _divide(message: _ClientMessage, index: int, each: RecallRound) -> Insertion:
    """Before a block: before its message if it is the first one, otherwise between two halves of it."""
    call = each.call.encode()
    if index == 0:
        new = b'{"role":"assistant","content":[%s]},%s,' % (call, _render_results(each))
        return Insertion(message.place.start, new)
    behind, before = (_ROLE_BEHIND, b"") if message.has_role_behind else (b"", _ROLE_BEHIND[1:] + b",")
    new = b'%s]%s},%s,{%s"content":[' % (call, behind, _render_results(each), before)
    return Insertion(message.items[index].start, new)


def _insert_parallel(reply: _ClientReply, each: RecallRound, answer: _ClientMessage) -> list[Insertion]:
    """Raises ValueError for a content that has no place for a call."""
    if not reply.last.is_array or not reply.last.items:
        raise ValueError("a reply that calls nothing")
    call = Insertion(reply.last.items[-1].end, b"," + each.call.encode())
    results = each.results.encode()
    if answer.is_array:
        comma = b"," if answer.items else b""
        return [call, Insertion(answer.content.start + 1, results + comma)]
    opening = b'[%s,{"type":"text","text":' % results
    return [call, Insertion(answer.content.start, opening), Insertion(answer.content.end, b"}]")]


def _render_results(each: RecallRound) -> bytes:
    return b'{"role":"user","content":[%s]}' % each.results.encode()
