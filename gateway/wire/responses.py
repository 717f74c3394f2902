"""OpenAI's Responses.

Goes by the ending of a type's name, so that new kinds of tools are understood. Items of other unknown types
are kept as they are. An item is never written again from what was read of it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from gateway.core.errors import Unreadable
from gateway.core.history.message import Call, Role
from gateway.core.history.pivot import Mark
from gateway.wire.body import (
    JSON_ERRORS,
    UNBOUNDED,
    BodyBounds,
    Envelope,
    Fields,
    RequestBody,
    find_field,
    parse_raw_fields,
    parse_value,
    split_fields_or_text,
    split_request,
)
from gateway.wire.canonical import (
    EMPTY,
    CanonicalForm,
    ContentParts,
    canonical_arguments,
    canonical_json,
    canonical_part,
    encode_value,
    flatten_content,
    iter_words,
    list_extra_fields,
    without_ephemeral_blocks,
)
from gateway.wire.content import Block, Content, ResultPlace, cut_content
from gateway.wire.edits import encode_json
from gateway.wire.format import (
    Format,
    LocalResponse,
    RiddenBody,
    RidingRequest,
    SummaryRequest,
    make_error,
    parse_error,
    spare_tokens,
)
from gateway.wire.references import STORED_RESPONSES
from gateway.wire.sse import SseEvent, render_event

Item = dict[str, Any]
_Fields = dict[str, object]

_ROLES: Final[dict[str, Role]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
# Types that the model produces, besides every type that ends in `_call`.
_MODELS: Final = frozenset({"reasoning", "mcp_list_tools", "mcp_approval_request", "item_reference"})
# Not part of the canonical form as fields: clients add and drop them, or they are read by name.
_IGNORED_KEYS: Final = frozenset(
    {"type", "role", "content", "output", "arguments", "call_id", "id", "status", "phase", "created_by"}
)
# In these items the id is content.
_IDENTIFIED: Final = ("item_reference", "mcp_approval_request")
_IMAGES: Final = ("image_generation_call",)
_IMAGE: Final[_Fields] = {"type": "input_image"}
# Fields of a call, of any kind, that are not its arguments.
_FRAME_KEYS: Final = frozenset(
    {"type", "id", "call_id", "status", "name", "result", "output", "content", "created_by", "role", "phase"}
)
# Encrypted reasoning is base64: three bytes in four characters, four or five bytes for a token.
_OPAQUE_CHARACTERS_PER_TOKEN: Final = 6
# In items of these types the output may be a placeholder.
_OUTPUT_KINDS: Final = frozenset(
    {
        *("function_call_output", "custom_tool_call_output", "local_shell_call_output"),
        *("shell_call_output", "apply_patch_call_output"),
    }
)
# A history that the upstream holds or shortens, a response that comes later, and a prompt that is stored
# there, which may have tools of its own.
_IN_THE_WAY: Final = ("background", "conversation", "previous_response_id", "context_management", "prompt")
_LIMITS: Final = ("max_output_tokens",)
_PART_TYPES: Final = {"user": "input_text", "assistant": "output_text"}
# A screenshot can only be replaced by a screenshot: this one is 32 by 32 grey pixels.
BLANK_SCREENSHOT: Final = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAACAAAAAgCAAAAABWESUoAAAAFklEQVR42mNoIAAYRhWMKhhVMFIVAABC"
    "AAAfN5c2AAAAAABJRU5ErkJggg=="
)
_NOTHING_USED: Final = {
    "input_tokens": 0,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens": 0,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 0,
}
# The position of the only message in the output.
_AT: Final = {"output_index": 0}
# The least specific error code of this API.
_UNKNOWN_ERROR: Final = "server_error"


class Responses(Format):
    name = "responses"
    path = "/v1/responses"
    array = "input"
    output_key = "max_output_tokens"
    text_part = "input_text"
    # Codex counts only events with data: an SSE comment would not keep it waiting.
    keepalive = b'event: keepalive\ndata: {"type":"keepalive"}\n\n'
    stored_history = STORED_RESPONSES

    def parse_body(self, data: bytes, bounds: BodyBounds = UNBOUNDED) -> RequestBody:
        return split_request(data, self.array, self.read_envelope, joins, split_fields_or_text, bounds)

    def read_envelope(self, fields: Fields) -> Envelope:
        return replace(
            fields.make_common_envelope(*_LIMITS),
            system=fields.fingerprint("instructions"),
            system_slice=fields.find_slice("instructions"),
            is_kept=fields.parse("store") is not False,
            is_trimmed=fields.parse("context_management") not in EMPTY,
            is_partial=any(fields.parse(key) is not None for key in ("previous_response_id", "conversation")),
        )

    def read(self, raw: bytes) -> Content:
        """Reasoning before an item counts for the size but not for the fingerprint: clients may drop it."""
        *reasoning, item = parse_items(raw)
        role, answered, name = role_of(item), find_answered(item), item.get("role")
        content, output = flatten_content(item.get("content")), flatten_content(item.get("output"))
        identity, place = _identify(item, role, content, output)
        if kind_of(item) == "reasoning":
            blocks = [_read_thought(item)]
        elif answered is not None:
            texts, parts = _join_output(content, output)
            has_failed = item.get("status") == "failed"
            result = Block(
                "result", "\n".join(texts), answered, parts=parts, is_error=has_failed, place=place
            )
            blocks = [result]
        else:
            blocks = _read_blocks(item, content, output)
        return Content(
            role="assistant" if reasoning else role,
            name=name if isinstance(name, str) else "tool" if answered is not None else "assistant",
            blocks=[*map(_read_thought, reasoning), *blocks],
            identity=identity,
            has_media=bool(content.others or output.others) or kind_of(item) in _IMAGES,
            is_opaque=is_opaque(item),
            beginning=next(iter(content.texts or output.texts), ""),
        )

    def write_turns(self, turns: Iterable[tuple[str, str]]) -> bytes:
        """Without ids, so they are valid whether the upstream stores responses or not."""
        return b",".join(
            [
                encode_json(
                    {"type": "message", "role": role, "content": [{"type": _PART_TYPES[role], "text": text}]}
                )
                for role, text in turns
            ]
        )

    def render_marked(self, raw: bytes, mark: Mark, placeholder: str) -> bytes:
        """The value stays a string, a list of parts, shell output or a screenshot."""
        items = parse_items(raw)
        item = items[0]
        key = "content" if kind_of(item) == "message" else "output"
        if len(items) > 1 or item.get("role") == "assistant":
            return raw
        if raw.startswith(b'"'):
            text = _shorten(item["content"], mark, placeholder)
            return msgspec.json.encode(text) if text != item["content"] else raw
        shortened = _shorten(item.get(key), mark, placeholder)
        if item.get("tools") and find_answered(item) is not None and mark.keep_chars is None:
            # The result of a tool search: it can be repeated, and there is no field for a placeholder.
            key, shortened = "tools", []
        if shortened == item.get(key):
            return raw
        fields = parse_raw_fields(raw)
        fields[key] = msgspec.Raw(msgspec.json.encode(shortened))
        return msgspec.json.encode(fields)

    def may_ride(self, body: RiddenBody, request: RidingRequest) -> bool:
        """Not for an input that is a text, structured output, or a history that the request only names."""
        if body.has(*_IN_THE_WAY) or body.parse("truncation") not in (None, "disabled"):
            return False
        output = find_field(body.parse("text"), "format")
        if output is not None and find_field(output, "type") != "text":
            return False
        if not _may_follow(body.parse_last()):
            return False
        self.ask(body, request.message)
        if body.has("tools"):
            body.set("tool_choice", "none")
        if body.parse("store") is not False:
            body.set("store", False)
        return body.limit_reply(_LIMITS, request.cap_tokens + spare_tokens(request), request.room_tokens)

    def render_summary_request(self, request: SummaryRequest) -> bytes:
        allowance = spare_tokens(RidingRequest(message="", cap_tokens=request.cap, room_tokens=request.room))
        instructions = {"instructions": request.system} if request.system.strip() else {}
        content = [{"type": "input_text", "text": "\n\n".join(request.parts)}]
        return msgspec.json.encode(
            {
                "model": request.model,
                **instructions,
                "input": [{"type": "message", "role": "user", "content": content}],
                request.output_key: request.cap + allowance,
                "store": False,
                "stream": True,
            }
        )

    def render_local_response(self, response: LocalResponse) -> bytes:
        """A response with one message."""
        message = _make_message(response, "completed", [_make_part(response.text)])
        final = _make_response(response, "completed", [message]) | {"usage": _NOTHING_USED}
        if not response.is_streamed:
            return msgspec.json.encode(final)
        begun = _make_response(response, "in_progress", [])
        events = [
            _Fields(type="response.created", response=begun),
            _Fields(type="response.in_progress", response=begun),
            *_make_item_events(response, message),
            _Fields(type="response.completed", response=final),
        ]
        return b"".join(_render_numbered(number, event) for number, event in enumerate(events))

    def render_stream_error(self, upstream_body: bytes, status: int) -> bytes:
        """As `response.failed`, which Codex and the AI SDK read. OpenAI's libraries raise for its `error`."""
        error = (parse_error(upstream_body) or make_error(status))["error"]
        detail = error if isinstance(error, dict) else {}
        codes = [code for key in ("code", "type") if isinstance(code := detail.get(key), str) and code]
        shown = {"code": codes[0] if codes else _UNKNOWN_ERROR, "message": str(detail.get("message") or "")}
        response = {"object": "response", "status": "failed", "output": [], "error": shown}
        event = {"type": "response.failed", "sequence_number": 0, "response": response, "error": detail}
        return b"event: response.failed\ndata: " + msgspec.json.encode(event) + b"\n\n"


def parse_items(raw: bytes) -> list[Item]:
    """The items of one message's slice. A string is a user message. Raises Unreadable."""
    try:
        items = parse_value(b"[%s]" % raw)
    except JSON_ERRORS as error:
        raise Unreadable("item is not valid JSON") from error
    return [_check_item(item) for item in items]


def _check_item(item: object) -> Item:
    if isinstance(item, str):
        return {"role": "user", "content": item}
    if not isinstance(item, dict) or not kind_of(item):
        raise Unreadable("item without a type")
    return item


def kind_of(item: Item) -> str:
    """The type, which messages may leave out; empty if there is none."""
    kind = item.get("type")
    if isinstance(kind, str) and kind:
        return kind
    return "message" if isinstance(item.get("role"), str) else ""


def role_of(item: Item) -> Role:
    """ "other" for an item of an unknown kind."""
    kind = kind_of(item)
    if kind == "message":
        role = item.get("role")
        return _ROLES.get(role, "other") if isinstance(role, str) else "other"
    if find_answered(item) is not None:
        return "tool"
    return "assistant" if kind in _MODELS or kind.endswith(("_call", "_call_output")) else "other"


def find_call(item: Item) -> Call | None:
    """The call, if the client must answer it. Calls that the upstream answers have no call id."""
    kind = kind_of(item)
    if kind == "mcp_approval_request":
        identity = item.get("id")
    else:
        identity = item.get("call_id") if kind.endswith("_call") else None
    return Call(identity, _name_tool(item)) if isinstance(identity, str) else None


def find_answered(item: Item) -> str | None:
    """The id of the call that this item answers."""
    kind = kind_of(item)
    if kind == "mcp_approval_response":
        answered = item.get("approval_request_id")
    else:
        answered = item.get("call_id") if kind.endswith("_output") else None
    return answered if isinstance(answered, str) else None


def is_opaque(item: Item) -> bool:
    """Whether it stands for history that only the upstream can read. A trigger only asks for such an item."""
    kind = kind_of(item)
    return kind == "item_reference" or ("compaction" in kind and not kind.endswith("_trigger"))


def joins(before: bytes, after: bytes) -> bool:
    """Reasoning and the item after it are one unit (docs/design.md, Validity), if the model produced both."""
    if b'"reasoning"' not in before or kind_of(parse_items(before)[-1]) != "reasoning":
        return False
    follower = parse_items(after)[0]
    return role_of(follower) in ("assistant", "other") and not is_opaque(follower)


def _identify(
    item: Item, role: Role, content: ContentParts, output: ContentParts
) -> tuple[CanonicalForm, ResultPlace | None]:
    """The canonical form: kind, role, content, the call, its arguments or its output, and all fields that are
    not ignored. Of reasoning on its own only the kind counts.
    """
    kind = kind_of(item)
    if kind == "reasoning":
        return [(b"kind", encode_value, kind)], None
    text = "".join(content.texts)
    if role == "user":
        # A client that drops a block may leave its line end behind, so surrounding space does not count.
        text = without_ephemeral_blocks(text).strip()
    name = item.get("role") if kind == "message" and role == "other" else role
    fields: CanonicalForm = [
        (b"kind", encode_value, kind),
        (b"role", encode_value, name),
        (b"text", encode_value, text),
    ]
    fields += [(b"part", canonical_part, part) for part in content.others]
    call_id = item.get("id" if kind in _IDENTIFIED else "call_id")
    if call_id is not None:
        fields.append((b"call", encode_value, call_id))
    arguments = item.get("arguments")
    if arguments is not None:
        fields.append((b"arguments", canonical_arguments, arguments))
    start = len(fields)
    fields += [(b"output", encode_value, text) for text in output.texts]
    fields += [(b"part", canonical_part, part) for part in output.others]
    place = ResultPlace(b"output", start, len(fields)) if kind in _OUTPUT_KINDS else None
    return fields + list_extra_fields(item, _IGNORED_KEYS), place


def _read_blocks(item: Item, content: ContentParts, output: ContentParts) -> list[Block]:
    """Of an item that answers no call. The output is that of a tool of the upstream's own."""
    texts, parts = _join_output(content, output)
    if isinstance(item.get("result"), str):
        # A picture that the upstream has drawn.
        parts.append(_IMAGE)
    blocks = [Block("text", text) for text in texts]
    if parts:
        blocks.append(Block("other", parts=parts))
    kind = kind_of(item)
    if kind.endswith("_call") or kind == "mcp_approval_request":
        call = find_call(item)
        tool = call.tool if call is not None else _name_tool(item)
        blocks.append(Block("call", _find_arguments(item), call.id if call is not None else None, tool))
    return blocks


def _join_output(content: ContentParts, output: ContentParts) -> tuple[list[str], list[_Fields]]:
    """Texts and other parts. The words of a shell's output are text."""
    words = [word for part in output.others if _is_of_shell(part) for word in iter_words(part)]
    others = [part for part in output.others if not _is_of_shell(part)]
    return [*content.texts, *output.texts, *words], [*content.others, *others]


def _is_of_shell(part: Mapping[str, object]) -> bool:
    return "stdout" in part or "stderr" in part


def _read_thought(thought: Item) -> Block:
    words = [word for key in ("summary", "content") for word in _list_texts(thought.get(key))]
    encrypted = thought.get("encrypted_content")
    tokens = len(encrypted) // _OPAQUE_CHARACTERS_PER_TOKEN if isinstance(encrypted, str) else 0
    return Block("thought", "\n".join(words), hidden_tokens=tokens)


def _list_texts(parts: object) -> list[str]:
    texts = [find_field(part, "text") for part in parts] if isinstance(parts, list) else []
    return [text for text in texts if isinstance(text, str)]


def _name_tool(item: Item) -> str:
    name = item.get("name")
    return name if isinstance(name, str) else kind_of(item).removesuffix("_call")


def _find_arguments(item: Item) -> str:
    given = item.get("arguments", item.get("input"))
    if isinstance(given, str):
        return given
    rest = {key: value for key, value in item.items() if key not in _FRAME_KEYS}
    return canonical_json(rest).decode("utf-8", "replace")


def _shorten(content: object, mark: Mark, placeholder: str) -> object:
    if mark.keep_chars is not None:
        return cut_content(content, mark.keep_chars)
    match content:
        case str():
            return placeholder
        case list() if all(isinstance(part, dict) and "stdout" in part for part in content):
            # Of a shell: one placeholder for each command.
            return [{**part, "stdout": placeholder, "stderr": ""} for part in content]
        case list():
            return [{"type": "input_text", "text": placeholder}]
        case {"type": "computer_screenshot"}:
            return {"type": "computer_screenshot", "image_url": BLANK_SCREENSHOT}
    return content


def _may_follow(last: object) -> bool:
    """Behind a call without its result, or a thought without what it led to, nothing may stand."""
    if not isinstance(last, dict) or not kind_of(last):
        return False
    return role_of(last) in ("user", "system") or find_answered(last) is not None


def _make_item_events(response: LocalResponse, message: _Fields) -> list[_Fields]:
    text, part = response.text, _make_part(response.text)
    place = _Fields(item_id=message["id"], content_index=0) | _AT
    started = _make_message(response, "in_progress", [])
    return [
        _Fields(type="response.output_item.added", item=started) | _AT,
        _Fields(type="response.content_part.added", part=_make_part("")) | place,
        _Fields(type="response.output_text.delta", delta=text, logprobs=[]) | place,
        _Fields(type="response.output_text.done", text=text, logprobs=[]) | place,
        _Fields(type="response.content_part.done", part=part) | place,
        _Fields(type="response.output_item.done", item=message) | _AT,
    ]


def _make_response(response: LocalResponse, status: str, output: list[_Fields]) -> _Fields:
    """With every field that the API's own clients require. It is stored nowhere."""
    head = _Fields(id=f"resp_{response.id}", object="response", created_at=response.created_seconds)
    head |= {"status": status, "error": None, "incomplete_details": None, "instructions": None}
    head |= {"metadata": {}, "model": response.model, "output": output, "parallel_tool_calls": True}
    head |= {"previous_response_id": None, "store": False, "temperature": None, "tool_choice": "auto"}
    return head | {"tools": [], "top_p": None, "truncation": "disabled", "usage": None}


def _make_message(response: LocalResponse, status: str, content: list[_Fields]) -> _Fields:
    head = _Fields(id=f"msg_{response.id}", type="message", status=status)
    return head | {"role": "assistant", "content": content}


def _make_part(text: str) -> _Fields:
    return _Fields(type="output_text", text=text, annotations=[], logprobs=[])


def _render_numbered(number: int, event: _Fields) -> bytes:
    return render_event(
        SseEvent(str(event["type"]), msgspec.json.encode(event | _Fields(sequence_number=number)))
    )
