"""The edits that turn a received body into the one that is sent on. Every other byte stays where it is.

Also texts with halves of surrogate pairs, which models send when a piece of text ends inside an emoji.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from gateway.core.history.conversation import Conversation
from gateway.core.history.pivot import Pivot, Recall
from gateway.core.history.view import View
from gateway.wire.body import JSON_ERRORS, RequestBody

_INCLUDE_USAGE: Final = b'{"include_usage":true}'


class Edit(NamedTuple):
    """Replace `start:end` of the body by `new`. An empty range inserts."""

    start: int
    end: int
    new: bytes


def apply_edits(data: bytes, edits: Iterable[Edit]) -> bytes:
    """The body with all edits applied, in any order; the same object without any.

    Insertions at one place keep their order.

    Raises ValueError if edits overlap.
    """
    pieces: list[bytes | memoryview] = []
    view = memoryview(data)
    at = 0
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
        if edit.start < at:
            raise ValueError("edits overlap")
        pieces += [view[at : edit.start], edit.new]
        at = edit.end
    if not pieces:
        return data
    return b"".join([*pieces, view[at:]])


def make_view_edits(
    body: RequestBody,
    conversation: Conversation,
    view: View,
    rendered: Mapping[int, bytes],
    render_summary: Callable[[Pivot, str], bytes],
) -> list[Edit]:
    """Edits for the pivot and the marks of a view.

    rendered: the marked messages by position, as they are to be sent. render_summary: as in Format.
    """
    skip = len(conversation.leading)
    pivot, edits = view.pivot, []
    for position, new in rendered.items():
        place = body.places[skip + conversation.index(position)]
        edits.append(Edit(place.start, place.end, new))
    if pivot is not None:
        summary = render_summary(pivot, conversation.find_role(pivot.covers))
        begin, end = conversation.index(pivot.opening_end), conversation.index(pivot.covers)
        first = body.places[skip + begin].start
        if begin < end:
            edits.append(Edit(first, body.places[skip + end - 1].end, summary))
        else:
            # The client has dropped just what the pivot covers.
            edits.append(Edit(first, first, summary + b","))
    return edits


def make_recall_edits(
    body: RequestBody, conversation: Conversation, recalls: Iterable[Recall]
) -> Iterator[Edit]:
    """Edits that insert each recall before its message. To stand behind those of the view."""
    skip = len(conversation.leading)
    for recall in recalls:
        at = body.places[skip + conversation.index(recall.position)].start
        yield Edit(at, at, recall.text.encode() + b",")


def make_output_edit(body: RequestBody, output_tokens: int) -> Edit:
    """Replaces the limit of the reply. Raises ValueError if the request has none."""
    place = body.envelope.requested_slice
    if place is None:
        raise ValueError("the request does not limit its reply")
    return Edit(body.absolute(place.start), body.absolute(place.end), b"%d" % output_tokens)


def make_usage_edit(body: RequestBody) -> Edit:
    """Asks for usage in a stream. Only Chat Completions needs that."""
    place = body.envelope.stream_options_slice
    if place is None:
        end = body.data.rindex(b"}")
        return Edit(end, end, b',"stream_options":' + _INCLUDE_USAGE)
    start, end = body.absolute(place.start), body.absolute(place.end)
    return Edit(start, end, _with_usage(body.data[start:end]))


def _with_usage(options: bytes) -> bytes:
    """The options with `include_usage`, other bytes unchanged. A value that is not an object is replaced."""
    try:
        fields = msgspec.json.decode(options, type=dict[str, msgspec.Raw])
    except JSON_ERRORS:
        return _INCLUDE_USAGE
    if "include_usage" in fields:
        # It was false: only this field changes, the others keep their raw bytes.
        return msgspec.json.encode({**fields, "include_usage": True})
    return _INCLUDE_USAGE[:-1] + (b"," if fields else b"") + options.lstrip()[1:]


def encode_json(value: object) -> bytes:
    """Halves of surrogate pairs are escaped."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(value).encode()


def join_halves(text: str) -> str:
    """Two halves that follow each other become their character; a single one is replaced."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
