"""Chat Completions: the gateway's tool in requests. What was not shown of a reply is inserted where it was.

A response that called only this tool stands as messages before the reply that was made with its results. A
call beside the client's own stands among them, and its result before theirs.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from gateway.core.errors import Unreadable
from gateway.core.history.recall import RecallRound, ReplyMark, make_reply_mark
from gateway.wire.body import JSON_ERRORS, JsonFields, mend_surrogates, parse_value
from gateway.wire.canonical import flatten_content
from gateway.wire.formats.chat.stitcher import ChatStitcher
from gateway.wire.raw_json import encode_json, find_place, split_array
from gateway.wire.recall import (
    RECALL_DESCRIPTION,
    RECALL_PARAMETERS,
    RECALL_TOOL,
    AnsweredRecall,
    Insertion,
    RecallRequest,
    RecallSyntax,
)
from gateway.wire.request import RequestBody

_TOOL: Final = b'{"type":"function","function":{"name":%s,"description":%s,"parameters":%s}}' % (
    encode_json(RECALL_TOOL),
    encode_json(RECALL_DESCRIPTION),
    RECALL_PARAMETERS,
)


class _ToolName(msgspec.Struct):
    name: str = ""


class _OfferedTool(msgspec.Struct):
    """Of a tool only its name, which stands in one of these places."""

    function: _ToolName | None = None
    custom: _ToolName | None = None
    name: str = ""


class _PlacedCall(msgspec.Struct, array_like=True):
    """at: the number of the client's calls before it."""

    at: int
    call: msgspec.Raw


_tools_decoder: Final = msgspec.json.Decoder(list[_OfferedTool])
_placed_decoder: Final = msgspec.json.Decoder(list[_PlacedCall])


def may_offer(body: RequestBody) -> bool:
    envelope = body.envelope
    if envelope.refuses_recall or envelope.is_partial or envelope.is_kept or envelope.is_trimmed:
        return False
    try:
        tools = _tools_decoder.decode(mend_surrogates(body.field(envelope.tools_slice)))
    except (Unreadable, *JSON_ERRORS):
        return False
    # A name that only begins like ours could not be told from it while it comes in pieces.
    names = [name for tool in tools for name in _list_names(tool)]
    return bool(tools) and not any(name.startswith(RECALL_TOOL) for name in names)


def _list_names(tool: _OfferedTool) -> list[str]:
    return [named.name for named in (tool.function, tool.custom) if named is not None] + [tool.name]


def make_tool(body: RequestBody) -> Insertion:
    """Before the bracket that ends the list, which is not empty. Raises ValueError without a list."""
    place = body.envelope.tools_slice
    if place is None:
        raise ValueError("the request has no tools")
    return Insertion(body.absolute(place.end) - 1, b"," + _TOOL)


def render_results(request: RecallRequest, results: Sequence[str]) -> str:
    """Messages, separated by commas."""
    messages = [
        encode_json({"role": "tool", "tool_call_id": call.id, "content": result})
        for call, result in zip(request.calls, results, strict=True)
    ]
    return b",".join(messages).decode()


def continue_reply(body: RequestBody, answered: Sequence[AnsweredRecall]) -> list[Insertion]:
    """Behind the last message, with the space that stands before it: as later in front of the reply."""
    if not answered:
        return []
    last = body.places[len(body.places) - 1]
    pairs = [part.encode() for each in answered for part in (each.request.reply, each.results)]
    return [Insertion(last.end, _find_comma(body) + b",".join(pairs))]


def _find_comma(body: RequestBody) -> bytes:
    count = len(body.places)
    return body.data[body.places[count - 2].end : body.places[count - 1].start] if count > 1 else b","


def splice(
    body: RequestBody, first: int, end: int, rounds: Sequence[RecallRound], mark: ReplyMark
) -> list[Insertion] | None:
    """Nothing is inserted into a reply of several messages with calls beside the client's."""
    try:
        messages = [parse_value(body.raw(index)) for index in range(first, end)]
        if not messages or not _is_shown(messages, mark):
            return None
        before = [part for each in rounds if not each.is_parallel for part in (each.call, each.results)]
        insertions = []
        if before:
            insertions.append(Insertion(body.places[first].start, ",".join([*before, ""]).encode()))
        parallel = [each for each in rounds if each.is_parallel]
        if parallel and (end - first > 1 or not _is_answered(body, end)):
            return None
        return insertions + [new for each in parallel for new in _insert_among(body, first, each)]
    except (Unreadable, *JSON_ERRORS):
        return None


def _is_answered(body: RequestBody, end: int) -> bool:
    """Whether the results of the client's calls begin here. A call without results cannot be sent."""
    if end >= len(body.places):
        return False
    message = parse_value(body.raw(end))
    return isinstance(message, dict) and message.get("role") == "tool"


def _insert_among(body: RequestBody, index: int, each: RecallRound) -> list[Insertion]:
    """The calls at their places among the client's, and the results before those of the client."""
    place, raw = body.places[index], body.raw(index)
    calls = find_place(raw, "tool_calls")
    count = len(split_array(raw[calls.start : calls.end]))
    insertions = []
    for placed in _placed_decoder.decode(each.call):
        call = bytes(placed.call)
        if placed.at < count:
            at = find_place(raw, "tool_calls", placed.at).start
            insertions.append(Insertion(place.start + at, call + b","))
        else:
            at = find_place(raw, "tool_calls", count - 1).end
            insertions.append(Insertion(place.start + at, b"," + call))
    return [*insertions, Insertion(place.end, b"," + each.results.encode())]


def _is_shown(messages: Iterable[object], mark: ReplyMark) -> bool:
    """Whether these are what the client was shown. Some clients drop the text of a message with calls."""
    ids: list[str] = []
    texts: list[str] = []
    for message in messages:
        if not isinstance(message, dict) or message.get("role") != "assistant":
            return False
        ids += _list_ids(message)
        texts += flatten_content(message.get("content")).texts
    found = make_reply_mark(ids, texts)
    return _are_same(found.calls, mark.calls) and (
        found.text == mark.text or (bool(mark.calls) and not found.text)
    )


def _list_ids(message: JsonFields) -> list[str]:
    calls = message.get("tool_calls")
    return [
        str(call.get("id") or "") if isinstance(call, dict) else ""
        for call in (calls if isinstance(calls, list) else ())
    ]


def _are_same(found: Sequence[str], shown: Sequence[str]) -> bool:
    """A call that came without an id has one of the client's making."""
    return len(found) == len(shown) and all(mine in ("", its) for mine, its in zip(shown, found, strict=True))


def render_exchange(user: str, assistant: str) -> bytes:
    messages = ({"role": "user", "content": user}, {"role": "assistant", "content": assistant})
    return b",".join(map(encode_json, messages))


RECALL: Final = RecallSyntax(
    may_offer=may_offer,
    make_tool=make_tool,
    make_stitcher=ChatStitcher,
    render_results=render_results,
    continue_reply=continue_reply,
    splice=splice,
    render_exchange=render_exchange,
)
