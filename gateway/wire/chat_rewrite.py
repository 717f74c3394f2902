"""Chat Completions: the edits that make an outgoing body of a received one.

Carries out a view. Every message that is kept leaves byte-identical and in order (DESIGN §5).
"""

from collections.abc import Callable, Mapping

import msgspec

from gateway.core.conversation import Conversation
from gateway.core.pivot import Mark, Pivot
from gateway.core.transcript import cut_middle
from gateway.core.view import View
from gateway.wire.chat import ChatBody
from gateway.wire.splice import Edit
from gateway.wire.surrogates import mend_surrogates

# Where roles must alternate and nothing is to be said. An empty text is refused by some servers.
_SEPARATOR = "(end of the summary)"
_INCLUDE_USAGE = b'{"include_usage":true}'


def render_summary(pivot: Pivot, next_role: str) -> bytes:
    """The messages that stand for everything the pivot covers, as JSON separated by commas.

    Roles alternate: a question before the summary where no opening leads to it, a resume text behind it
    where the tail does not begin with a user message; a neutral separator where no resume text is wanted.
    """
    messages = [{"role": "user", "content": pivot.question}] if pivot.question is not None else []
    messages.append({"role": "assistant", "content": pivot.summary})
    if next_role != "user":
        messages.append({"role": "user", "content": pivot.resume or _SEPARATOR})
    return b",".join(msgspec.json.encode(message) for message in messages)


def render_marked(raw: bytes, mark: Mark, placeholder: str) -> bytes:
    """A message with its text cleared or cut. The container stays what it was: string or list of parts.

    Attachments go when the text is cleared. Every other field is kept; nothing to shorten, no byte changes.
    """
    message = msgspec.json.decode(mend_surrogates(raw), type=dict[str, msgspec.Raw])
    content = msgspec.json.decode(message["content"]) if "content" in message else None
    shortened = _shorten_content(content, mark, placeholder)
    if shortened == content:
        return raw
    message["content"] = msgspec.Raw(msgspec.json.encode(shortened))
    return msgspec.json.encode(message)


def _shorten_content(content: object, mark: Mark, placeholder: str) -> object:
    if mark.keep_chars is None:
        return [{"type": "text", "text": placeholder}] if isinstance(content, list) else placeholder
    if isinstance(content, str):
        return cut_middle(content, mark.keep_chars)
    if not isinstance(content, list):
        return content
    return [_shorten_part(part, mark.keep_chars) for part in content]


def _shorten_part(part: object, keep_chars: int) -> object:
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return {**part, "text": cut_middle(part["text"], keep_chars)}
    return part


def make_view_edits(
    body: ChatBody,
    conversation: Conversation,
    view: View,
    rendered: Mapping[int, bytes],
    render: Callable[[Pivot, str], bytes] = render_summary,
) -> list[Edit]:
    """Edits for pivot and marks. `rendered`: the marked messages by position, each as it is to be sent.

    `render`: does what `render_summary` does; a caller may remember what that made.
    """
    skip = len(conversation.leading)
    edits = [
        Edit(*body.places[skip + position], new)
        for position, new in rendered.items()
        if position in view.marks or _is_cut_opening(view.pivot, position)
    ]
    pivot = view.pivot
    if pivot is None:
        return edits
    messages = conversation.messages
    next_role = messages[pivot.covers].role if pivot.covers < len(messages) else "none"
    first = body.places[skip + pivot.opening_end].start
    last = body.places[skip + pivot.covers - 1].end
    return [*edits, Edit(first, last, render(pivot, next_role))]


def _is_cut_opening(pivot: Pivot | None, position: int) -> bool:
    return pivot is not None and pivot.opening_chars is not None and position < pivot.opening_end


def make_output_edit(body: ChatBody, output_tokens: int) -> Edit:
    """The clamped reply in place of the one that was asked for."""
    place = body.envelope.requested_slice
    if place is None:
        raise ValueError("no number to replace")
    return Edit(body.absolute(place.start), body.absolute(place.end), b"%d" % output_tokens)


def make_usage_edit(body: ChatBody) -> Edit:
    """Asks for usage in a stream, whatever the options were before."""
    place = body.envelope.stream_options
    if place is None:
        end = body.data.rindex(b"}")
        return Edit(end, end, b',"stream_options":' + _INCLUDE_USAGE)
    start, end = body.absolute(place.start), body.absolute(place.end)
    return Edit(start, end, _with_usage(body.data[start:end]))


def _with_usage(options: bytes) -> bytes:
    """The options with `include_usage` on, every other byte where it was; whatever is no object is
    replaced.
    """
    try:
        fields = msgspec.json.decode(options, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _INCLUDE_USAGE
    if "include_usage" in fields:
        # It said no: the one field is written anew, with the raw bytes of the others.
        return msgspec.json.encode({**fields, "include_usage": True})
    return _INCLUDE_USAGE[:-1] + (b"," if fields else b"") + options.lstrip()[1:]
