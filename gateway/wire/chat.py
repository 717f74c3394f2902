"""OpenAI's Chat Completions, which most providers and clients use.

A message is never written again from what was read of it.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import msgspec

from gateway.core.errors import Unreadable
from gateway.core.history.message import Role
from gateway.core.history.pivot import Mark
from gateway.wire.body import (
    Envelope,
    Fields,
    JsonFields,
    find_field,
    parse_object_with_role,
    parse_raw_fields,
)
from gateway.wire.canonical import (
    EMPTY,
    CanonicalForm,
    canonical_arguments,
    canonical_json,
    canonical_part,
    encode_value,
    flatten_content,
    list_extra_fields,
    without_ephemeral_blocks,
)
from gateway.wire.content import Block, Content, ResultPlace, cut_content
from gateway.wire.edits import encode_json
from gateway.wire.format import (
    THINKING_ALLOWANCE_TOKENS,
    Format,
    LocalResponse,
    RiddenBody,
    RidingRequest,
    SummaryRequest,
    spare_tokens,
)
from gateway.wire.sse import DEFAULT_NAME, SseEvent, render_event

_ROLES: Final[dict[str, Role]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
# Not part of the canonical form: clients add and drop these fields between two requests.
_IGNORED_KEYS: Final = frozenset(
    {
        *("role", "content", "tool_calls", "tool_call_id", "name", "function_call", "refusal"),
        *("cache_control", "id", "status", "annotations", "logprobs", "provider_specific_fields"),
        *("reasoning", "reasoning_content", "reasoning_details", "thinking", "thinking_blocks"),
        *("reasoning_text", "reasoning_opaque", "thought_signature", "extra_content", "provider"),
    }
)
# Sent back with a message and counted upstream, but not part of the text.
_HIDDEN_KEYS: Final = ("reasoning_content", "refusal")
_DONE: Final = SseEvent(DEFAULT_NAME, b"[DONE]")
# With one of these the reply is something else than one free text, or ends where a summary does not.
_IN_THE_WAY: Final = (
    *("functions", "function_call", "audio", "prediction", "stop"),
    # Searches for each request: OpenAI, OpenRouter, xAI, Qwen.
    *("web_search_options", "plugins", "search_parameters", "enable_search"),
    # The upstream drops the middle of the history (OpenRouter), or goes on with the last message (vLLM).
    *("transforms", "continue_final_message"),
    # Output by a grammar, at vLLM, SGLang and llama.cpp.
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"),
    *("regex", "ebnf", "grammar", "json_schema"),
)
# OpenRouter.
_SEARCHING_MODEL: Final = ":online"
_LIMITS: Final = ("max_completion_tokens", "max_tokens")
# Another `tool_choice` would make a cache with marks useless (docs/economics.md): that of Anthropic's models
# behind OpenRouter, LiteLLM and others.
_CACHE_MARK: Final = b'"cache_control"'


class Chat(Format):
    name = "chat"
    path = "/v1/chat/completions"
    keepalive = b": keep-alive\n\n"

    def read_envelope(self, fields: Fields) -> Envelope:
        options = fields.parse("stream_options")
        return replace(
            fields.make_common_envelope(*_LIMITS),
            wants_usage=find_field(options, "include_usage") is True,
            stream_options_slice=fields.find_slice("stream_options"),
        )

    def read(self, raw: bytes) -> Content:
        message = parse_object_with_role(raw)
        role = _ROLES.get(message["role"], "other")
        texts, media = flatten_content(message.get("content"))
        hidden = [text for key in _HIDDEN_KEYS if isinstance(text := message.get(key), str)]
        blocks = [Block("thought", text) for text in hidden] if hidden else []
        if role == "tool":
            answered = message.get("tool_call_id")
            answered = answered if isinstance(answered, str) else ""
            # Behind the role: see `_identify`.
            place = ResultPlace(b"text", 1, 2 + len(media))
            blocks.append(Block("result", "\n".join(texts), answered, parts=media, place=place))
        else:
            blocks += [Block("text", text) for text in texts]
            if media:
                blocks.append(Block("other", parts=media))
        called = _read_calls(message, blocks)
        return Content(
            role=role,
            name=message["role"],
            blocks=blocks,
            identity=_identify(message, role, "".join(texts), media, called),
            has_media=bool(media),
            beginning=texts[0] if texts else "",
        )

    def write_turns(self, turns: Iterable[tuple[str, str]]) -> bytes:
        return b",".join([encode_json({"role": role, "content": text}) for role, text in turns])

    def render_marked(self, raw: bytes, mark: Mark, placeholder: str) -> bytes:
        message = parse_raw_fields(raw)
        content = msgspec.json.decode(message["content"]) if "content" in message else None
        keep = mark.keep_chars
        shortened = _clear(content, placeholder) if keep is None else cut_content(content, keep)
        if shortened == content:
            return raw
        message["content"] = msgspec.Raw(msgspec.json.encode(shortened))
        return msgspec.json.encode(message)

    def may_ride(self, body: RiddenBody, request: RidingRequest) -> bool:
        """Not for several choices, structured output, speech, or a reply that was begun already."""
        if body.parse("n") not in (None, 1) or body.has(*_IN_THE_WAY):
            return False
        if body.parse("add_generation_prompt") is False or str(body.parse("model")).endswith(
            _SEARCHING_MODEL
        ):
            return False
        is_kept, has_marks = body.parse("store") is True, _CACHE_MARK in body.data
        if is_kept and body.has("metadata"):
            # Metadata is refused beside a response that is not stored.
            return False
        output = body.parse("response_format")
        if output is not None and find_field(output, "type") != "text":
            return False
        if body.parse("modalities") not in (None, ["text"]):
            return False
        if has_marks and body.parse("tool_choice") not in (None, "auto", "none"):
            return False
        last = body.parse_last()
        if not isinstance(last, dict) or last.get("role") == "assistant":
            return False
        # Models that take this name for the limit count their thinking, too.
        thinking = spare_tokens(request) if body.parse("max_completion_tokens") is not None else 0
        self.ask(body, request.message)
        if body.has("tools") and not has_marks:
            body.set("tool_choice", "none")
        if is_kept:
            body.set("store", False)
        return body.limit_reply(_LIMITS, request.cap_tokens + thinking, request.room_tokens)

    def render_summary_request(self, request: SummaryRequest) -> bytes:
        allowance = THINKING_ALLOWANCE_TOKENS if request.output_key == "max_completion_tokens" else 0
        # Anthropic's models behind this API refuse an empty text, and some prompts have no system part.
        system = [{"role": "system", "content": request.system}] if request.system.strip() else []
        return msgspec.json.encode(
            {
                "model": request.model,
                "messages": [*system, {"role": "user", "content": "\n\n".join(request.parts)}],
                request.output_key: max(request.cap, min(request.cap + allowance, request.room)),
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )

    def render_local_response(self, response: LocalResponse) -> bytes:
        """Usage is optional in this format, so it is left out."""
        if response.is_streamed:
            return b"".join(map(render_event, _make_events(response)))
        message = {"role": "assistant", "content": response.text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        return msgspec.json.encode(_make_head(response, "chat.completion") | {"choices": [choice]})


def _read_calls(message: JsonFields, blocks: list[Block]) -> CanonicalForm:
    """Adds the calls to the blocks. Returns their canonical form: a call of an unknown type is hashed as a
    whole, in place of its arguments.
    """
    form: CanonicalForm = []
    calls, legacy = message.get("tool_calls"), message.get("function_call")
    for call in calls if isinstance(calls, list) else ():
        if not isinstance(call, dict):
            raise Unreadable("tool call is not an object")
        kind = call.get("type", "function")
        detail = call.get(kind if isinstance(kind, str) else "function")
        given: object = call
        if isinstance(detail, dict):
            given = detail.get("arguments", detail.get("input"))
        else:
            detail = {}
        call_id, tool = str(call.get("id") or ""), str(detail.get("name") or "")
        text = str(detail.get("arguments") or detail.get("input") or "")
        blocks.append(Block("call", text, call_id, tool))
        form += [
            (b"call", encode_value, call_id),
            (b"tool", encode_value, tool),
            (b"arguments", canonical_arguments, given),
        ]
    if isinstance(legacy, dict):
        text = str(legacy.get("arguments") or "")
        blocks.append(Block("call", text, tool=str(legacy.get("name") or "")))
    return form


def _identify(
    message: JsonFields, role: Role, text: str, media: list[JsonFields], called: CanonicalForm
) -> CanonicalForm:
    """The canonical form of role, content, calls, the answered call and all fields that are not ignored."""
    if role == "user":
        # A client that drops a block may leave its line end behind, so surrounding space does not count.
        text = without_ephemeral_blocks(text).strip()
    name = message["role"] if role == "other" else role
    fields: CanonicalForm = [(b"role", encode_value, name), (b"text", encode_value, text)]
    if media:
        fields += [(b"part", canonical_part, part) for part in media]
    fields += called
    if role == "tool":
        fields.append((b"answers", encode_value, message.get("tool_call_id")))
    if role in ("user", "system", "other") and message.get("name"):
        fields.append((b"name", encode_value, message["name"]))
    for key in ("function_call", "refusal"):
        if message.get(key) not in EMPTY:
            fields.append((key.encode(), canonical_json, message[key]))
    return fields + list_extra_fields(message, _IGNORED_KEYS)


def _clear(content: object, placeholder: str) -> object:
    return [{"type": "text", "text": placeholder}] if isinstance(content, list) else placeholder


def _make_events(response: LocalResponse) -> list[SseEvent]:
    head = _make_head(response, "chat.completion.chunk")
    steps: list[tuple[dict[str, str], str | None]] = [
        ({"role": "assistant", "content": ""}, None),
        ({"content": response.text}, None),
        ({}, "stop"),
    ]
    choices = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": end} for delta, end in steps]
    chunks = [msgspec.json.encode(head | {"choices": [choice]}) for choice in choices]
    return [*(SseEvent(DEFAULT_NAME, chunk) for chunk in chunks), _DONE]


def _make_head(response: LocalResponse, kind: str) -> dict[str, object]:
    head = {"id": f"chatcmpl-{response.id}", "object": kind, "created": response.created_seconds}
    return head | {"model": response.model}
