"""Responses: the gateway's own tool. When it is offered, how, and how the model goes on after a call.

It is not offered to a request that
- has no functions of the client's own: servers that serve them may have them switched off;
- has a tool of this name;
- lets the upstream store the response (`store` is not false), or names what is stored: the upstream would
  hold a history that the client does not know;
- lets the upstream drop old items, or runs in the background: its response is fetched later;
- brings its input as a string.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from gateway.core.errors import Unreadable
from gateway.wire.body import JSON_ERRORS, JsonFields, parse_value
from gateway.wire.formats.responses.history import find_names, may_be_reference
from gateway.wire.formats.responses.recall_body import ResponsesBodyStitcher
from gateway.wire.formats.responses.recall_splice import splice
from gateway.wire.formats.responses.recall_stream import ResponsesStreamStitcher
from gateway.wire.raw_json import encode_json
from gateway.wire.recall import (
    RECALL_DESCRIPTION,
    RECALL_PARAMETERS,
    RECALL_TOOL,
    AnsweredRecall,
    Insertion,
    RecallRequest,
    RecallSyntax,
    ReplyStitcher,
    insert_behind_tools,
)
from gateway.wire.request import RequestBody
from gateway.wire.response.stitcher_choice import ChosenStitcher

_TOOL: Final = msgspec.json.encode(
    {
        "type": "function",
        "name": RECALL_TOOL,
        "description": RECALL_DESCRIPTION,
        "strict": False,
        "parameters": msgspec.Raw(RECALL_PARAMETERS),
    }
)
_OWN_KINDS: Final = ("function", "custom")


def may_offer(body: RequestBody) -> bool:
    """Never raises."""
    envelope, data = body.envelope, body.data
    if envelope.is_kept or envelope.is_partial or envelope.is_trimmed or not body.places:
        return False
    if data[body.inside_end : body.inside_end + 1] != b"]":
        return False
    try:
        # All of the request but its items, of which there may be many.
        fields = parse_value(data[: body.places[0].start] + data[body.inside_end :])
    except (Unreadable, *JSON_ERRORS):
        return False
    tools = fields.get("tools")
    if fields.get("background") or not isinstance(tools, list):
        return False
    own = [tool for tool in tools if isinstance(tool, dict)]
    has_own = any(tool.get("type") in _OWN_KINDS for tool in own)
    return has_own and not any(map(_is_in_the_way, own)) and not _has_reference(data)


def _is_in_the_way(tool: JsonFields) -> bool:
    return tool.get("name") == RECALL_TOOL


def _has_reference(data: bytes) -> bool:
    if not may_be_reference(data):
        return False
    names = find_names(data)
    return names is None or bool(names.items)


def make_tool(body: RequestBody) -> Insertion:
    """Raises ValueError for a request without tools."""
    return insert_behind_tools(body, _TOOL)


def make_stitcher() -> ReplyStitcher:
    return ChosenStitcher(ResponsesStreamStitcher, ResponsesBodyStitcher)


def render_results(request: RecallRequest, texts: Sequence[str]) -> str:
    results = [
        {"type": "function_call_output", "call_id": call.id, "output": text}
        for call, text in zip(request.calls, texts, strict=True)
    ]
    return ",".join(encode_json(result).decode() for result in results)


def continue_reply(body: RequestBody, answered: Sequence[AnsweredRecall]) -> list[Insertion]:
    at = body.places[-1].end
    return [Insertion(at, f",{each.request.reply},{each.results}".encode()) for each in answered]


def render_exchange(user: str, assistant: str) -> bytes:
    """Without ids, so it is valid whether the upstream stores responses or not."""
    items = [
        {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}
        for role, kind, text in (("user", "input_text", user), ("assistant", "output_text", assistant))
    ]
    return b",".join(map(encode_json, items))


RECALL: Final = RecallSyntax(
    may_offer=may_offer,
    make_tool=make_tool,
    make_stitcher=make_stitcher,
    render_results=render_results,
    continue_reply=continue_reply,
    splice=splice,
    render_exchange=render_exchange,
)
