"""Messages: the gateway's own tool. When it is offered, how, and how the model goes on after a call.

It is not offered to a request that
- has no tools of the client's own: servers that serve them may have them switched off;
- has a tool of this name;
- continues or creates a thread: the upstream would hold a history that the client does not know;
- lets the upstream drop old messages, or names a container, in which the upstream keeps files between calls;
- ends with a message of the assistant, which the reply goes on with: there is no place between them.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from gateway.core.errors import BeyondBounds
from gateway.wire.body import JSON_ERRORS, JsonFields, parse_value
from gateway.wire.formats.messages.recall_body import MessagesBodyStitcher
from gateway.wire.formats.messages.recall_splice import splice
from gateway.wire.formats.messages.recall_stream import MessagesStreamStitcher
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

# Takes the place of an empty text: "text content blocks must be non-empty" (an error of this API).
_NOTHING: Final = "(nothing)"
_TOOL: Final = msgspec.json.encode(
    {
        "name": RECALL_TOOL,
        "description": RECALL_DESCRIPTION,
        "input_schema": msgspec.Raw(RECALL_PARAMETERS),
    }
)
_OWN_KINDS: Final = (None, "custom")
_CODE: Final = "code_execution"


def may_offer(body: RequestBody) -> bool:
    """Never raises."""
    envelope = body.envelope
    if envelope.is_kept or envelope.is_partial or envelope.is_trimmed or not body.places:
        return False
    try:
        # All of the request but its messages, of which there may be many.
        fields = parse_value(body.data[: body.places[0].start] + body.data[body.inside_end :])
        last = parse_value(body.raw(-1))
    except (BeyondBounds, *JSON_ERRORS):
        return False
    if fields.get("container") is not None or not isinstance(last, dict) or last.get("role") == "assistant":
        return False
    tools = fields.get("tools")
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        return False
    return any(map(_is_own, tools)) and not any(map(_is_in_the_way, tools))


def _is_own(tool: JsonFields) -> bool:
    return tool.get("type") in _OWN_KINDS


def _is_in_the_way(tool: JsonFields) -> bool:
    """Has the same name, or runs code in a container that is made with the first response."""
    return tool.get("name") == RECALL_TOOL or str(tool.get("type")).startswith(_CODE)


def make_tool(body: RequestBody) -> Insertion:
    """Raises ValueError for a request without tools."""
    return insert_behind_tools(body, _TOOL)


def make_stitcher() -> ReplyStitcher:
    return ChosenStitcher(MessagesStreamStitcher, MessagesBodyStitcher)


def render_results(request: RecallRequest, texts: Sequence[str]) -> str:
    results = [
        {"type": "tool_result", "tool_use_id": call.id, "content": text if text.strip() else _NOTHING}
        for call, text in zip(request.calls, texts, strict=True)
    ]
    return ",".join(encode_json(result).decode() for result in results)


def continue_reply(body: RequestBody, answered: Sequence[AnsweredRecall]) -> list[Insertion]:
    at = body.places[-1].end
    return [Insertion(at, _render_round(each).encode()) for each in answered]


def _render_round(each: AnsweredRecall) -> str:
    reply = f',{{"role":"assistant","content":{each.request.reply}}}'
    return reply + f',{{"role":"user","content":[{each.results}]}}'


def render_exchange(user: str, assistant: str) -> bytes:
    """The API refuses trailing whitespace in the last assistant message; it is removed."""
    messages = [{"role": "user", "content": user}, {"role": "assistant", "content": assistant.rstrip()}]
    return b",".join(
        encode_json(message | {"content": message["content"] or _NOTHING}) for message in messages
    )


RECALL: Final = RecallSyntax(
    may_offer=may_offer,
    make_tool=make_tool,
    make_stitcher=make_stitcher,
    render_results=render_results,
    continue_reply=continue_reply,
    splice=splice,
    render_exchange=render_exchange,
)
