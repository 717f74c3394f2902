"""Anthropic's Messages.

A message is never written again from what was read of it.
"""

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import msgspec

from gateway.core.counts import is_count
from gateway.core.errors import RequestRefused
from gateway.core.history.message import BEGINNING_CHARS, Role
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
    CanonicalForm,
    canonical_json,
    canonical_part,
    encode_value,
    fingerprint_form,
    flatten_content,
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
    describe_failure,
    parse_error,
    spare_tokens,
)
from gateway.wire.sse import SseEvent, render_event
from gateway.wire.threads import THREADS

RawFields = dict[str, msgspec.Raw]
_Fields = dict[str, object]

# Claude Code puts a block of this kind into its system prompt. It holds a hash of the body itself.
_BILLING: Final = "x-anthropic-billing-header:"
# Some upstreams serve only clients that identify themselves in short blocks before the system prompt.
_LONGEST_IDENTITY_CHARS: Final = 200
# Clients send one or two. They are kept with the conversation, so their number is bounded.
_MOST_IDENTITY_BLOCKS: Final = 8
# "budget_tokens must be less than max_tokens": the rest of max_tokens is for the text of the reply.
_MIN_TEXT_TOKENS: Final = 1_024
_ROLES: Final[dict[str, Role]] = {"user": "user", "assistant": "assistant", "system": "system"}
# Not part of the canonical form: fields of a response, which a client may send back with its content.
_IGNORED_KEYS: Final = frozenset(
    {
        *("role", "content", "cache_control", "id", "type", "model", "status"),
        *("stop_reason", "stop_sequence", "stop_details", "usage", "container", "context_management"),
    }
)
# Of the remaining block types, these cost at most one token for each byte. Pictures and files may cost more.
_TEXT_LIKE: Final = frozenset({"server_tool_use", "mcp_tool_use", "search_result", "compaction"})
# Encrypted content (thinking, pages that the upstream fetched) costs what its words cost: four characters for
# a token, and base64 makes four characters out of three.
_OPAQUE_CHARACTERS_PER_TOKEN: Final = 5
_OPAQUE_KEYS: Final = ("encrypted_content", "encrypted_stdout")
# Takes the place of an empty text: "text content blocks must be non-empty" (an error of this API).
_NOTHING: Final = "(nothing)"
# Clients decide by the error's type what to do. These are the types that they know.
_ERROR_TYPES: Final = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    500: "api_error",
    502: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}

# The codes of the API itself. By this one the SDKs decide to send their whole history.
_API_CODES: Final = frozenset({"thread_not_found"})
# Tools that act at the provider, files that it keeps, a history that it holds, and a reply that ends where a
# summary does not.
_IN_THE_WAY: Final = ("mcp_servers", "container", "thread", "stop_sequences", "output_format")
# Tools that the client runs; all others run at the provider.
_OWN: Final = re.compile(r"custom|(?:bash|text_editor|computer|memory)_\d+")
_FORCED: Final = ("any", "tool")
_LIMITS: Final = ("max_tokens",)


class Messages(Format):
    name = "messages"
    path = "/v1/messages"
    keepalive = b'event: ping\ndata: {"type": "ping"}\n\n'
    headers = (("anthropic-version", "2023-06-01"),)
    stored_history = THREADS

    def read_envelope(self, fields: Fields) -> Envelope:
        texts, others = flatten_content(fields.parse("system"))
        thread = fields.parse("thread")
        return replace(
            fields.make_common_envelope(*_LIMITS),
            system=_hash_system(texts, others),
            system_slice=fields.find_slice("system"),
            minimum_reply_tokens=_find_minimum_reply(fields.parse("thinking")),
            identity_blocks=_find_identity_blocks(texts),
            # Any other thread holds a part of the history that the request does not bring.
            is_partial=thread is not None and find_field(thread, "type") != "create",
            is_kept=thread is not None,
            is_trimmed=_is_trimmed(fields.parse("context_management")),
        )

    def read(self, raw: bytes) -> Content:
        message = parse_object_with_role(raw)
        reader = _MessageReader(message["role"])
        content = message.get("content")
        for block in content if isinstance(content, list) else [content]:
            reader.add_block(block)
        return reader.finish(message)

    def write_turns(self, turns: Iterable[tuple[str, str]]) -> bytes:
        """The API refuses trailing whitespace in the last assistant message; all texts lose theirs."""
        return b",".join(
            [encode_json({"role": role, "content": text.rstrip() or _NOTHING}) for role, text in turns]
        )

    def render_marked(self, raw: bytes, mark: Mark, placeholder: str) -> bytes:
        """If the message has no results, its own texts are shortened."""
        message = parse_raw_fields(raw)
        content = message.get("content", msgspec.Raw(b"null"))
        shortened = _shorten_message(content, mark, placeholder)
        if shortened is content:
            return raw
        return msgspec.json.encode(message | {"content": shortened})

    def may_ride(self, body: RiddenBody, request: RidingRequest) -> bool:
        """Not for structured output, a forced call, or a reply that was begun already.

        Another `tool_choice`, or other `thinking`, would make the provider's cache of the messages useless
        (docs/economics.md), so both stay. A request whose tools may act at the provider cannot be ridden:
        nothing else keeps the model from using them.
        """
        if body.has(*_IN_THE_WAY) or find_field(body.parse("output_config"), "format") is not None:
            return False
        if find_field(body.parse("tool_choice"), "type") in _FORCED or _acts(body.parse("tools")):
            return False
        last = body.parse_last()
        if _is_trimmed(body.parse("context_management")) or not isinstance(last, dict):
            return False
        limit, budget = body.parse("max_tokens"), _find_budget(body.parse("thinking"))
        least = request.cap_tokens + budget
        enough = max(budget + 1, request.cap_tokens + spare_tokens(request))
        if least > request.room_tokens and is_count(limit) and limit >= enough:
            # The limit stays: a model seldom thinks for its whole budget.
            least = enough
        self.ask(body, request.message)
        return last.get("role") == "user" and body.limit_reply(_LIMITS, least, request.room_tokens)

    def render_summary_request(self, request: SummaryRequest) -> bytes:
        texts = [text for text in (*request.identity_blocks, request.system) if text.strip()]
        system = {"system": [{"type": "text", "text": text} for text in texts]} if texts else {}
        return msgspec.json.encode(
            {
                "model": request.model,
                **system,
                "messages": [{"role": "user", "content": "\n\n".join(request.parts)}],
                request.output_key: request.cap,
                "stream": True,
            }
        )

    def render_local_response(self, response: LocalResponse) -> bytes:
        """A message with one text. Usage is required in this format, so it says 0."""
        ending = _Fields(stop_reason="end_turn", stop_sequence=None)
        if not response.is_streamed:
            content = [_Fields(type="text", text=response.text)]
            return msgspec.json.encode(_make_message(response) | {"content": content} | ending)
        events = [
            _Fields(type="message_start", message=_make_message(response)),
            _Fields(type="content_block_start", index=0, content_block={"type": "text", "text": ""}),
            _Fields(type="content_block_delta", index=0, delta={"type": "text_delta", "text": response.text}),
            _Fields(type="content_block_stop", index=0),
            _Fields(type="message_delta", delta=ending, usage={"output_tokens": 0}),
            _Fields(type="message_stop"),
        ]
        return b"".join(
            render_event(SseEvent(str(event["type"]), msgspec.json.encode(event))) for event in events
        )

    def render_error(self, error: RequestRefused) -> bytes:
        detail: _Fields = {"type": _ERROR_TYPES.get(error.status, error.kind), "message": str(error)}
        if error.code in _API_CODES:
            detail["details"] = {"error_code": error.code}
        return msgspec.json.encode({"type": "error", "error": detail})

    def render_stream_error(self, upstream_body: bytes, status: int) -> bytes:
        """An upstream's error as an `error` event of a stream: its own error object if it has one."""
        found = parse_error(upstream_body)
        if found is None:
            kind = _ERROR_TYPES.get(status, "api_error")
            found = {"error": {"type": kind, "message": describe_failure(status)}}
        return b"event: error\ndata: " + msgspec.json.encode({"type": "error"} | found) + b"\n\n"


class _MessageReader:
    """Collects the canonical form, the facts and the blocks of a message, block by block."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._role: Role = _ROLES.get(name, "other")
        self._identity: CanonicalForm = [(b"role", encode_value, name)]
        self._blocks: list[Block] = []
        # Of the canonical form, those that follow each other.
        self._texts: list[str] = []
        # Ids of the tool calls in this message that the upstream runs itself.
        self._hosted: set[str] = set()
        self._has_results = False
        self._has_more_than_results = False
        self._has_media = False
        # Of the first text.
        self._beginning = ""
        # Encrypted characters beside the results.
        self._opaque = 0

    def add_block(self, block: object) -> None:
        """Thinking has no place in the canonical form: clients drop it, and the upstream does not read old
        thinking.
        """
        if not isinstance(block, dict):
            self._add_texts(flatten_content(block).texts)
            return
        match block:
            case {"type": "text", "text": str(text)}:
                self._add_texts([text])
            case {"type": "tool_use"}:
                self._add_use(block)
            case {"type": "tool_result"}:
                self._add_result(block)
            case {"type": "thinking" | "redacted_thinking"}:
                self._add_thought(block)
            case _:
                self._add_other(block)

    def _add_texts(self, texts: list[str]) -> None:
        self._texts += texts
        self._blocks += [Block("text", text) for text in texts]

    def _add_use(self, block: JsonFields) -> None:
        """A call is one for the client to answer only if the assistant made it."""
        self._end_text()
        call_id, tool = str(block.get("id") or ""), str(block.get("name") or "")
        arguments = canonical_json(block.get("input"))
        self._identity += [
            (b"call", encode_value, call_id),
            (b"tool", encode_value, tool),
            (b"arguments", bytes, arguments),
        ]
        is_asked = self._role == "assistant"
        self._blocks.append(_make_call(arguments, call_id if is_asked else None, tool))

    def _add_result(self, block: JsonFields) -> None:
        self._end_text()
        texts, parts = flatten_content(block.get("content"))
        answered = str(block.get("tool_use_id") or "")
        self._note_text(texts[0] if texts else "")
        self._identity.append((b"answers", encode_value, answered))
        start = len(self._identity)
        self._identity.append((b"result", encode_value, "".join(texts)))
        self._identity += [(b"part", canonical_part, part) for part in parts]
        place = ResultPlace(b"result", start, len(self._identity))
        is_error = block.get("is_error") is True
        if is_error:
            self._identity.append((b"error", bytes, b"1"))
        self._has_results = True
        self._has_media = self._has_media or bool(parts)
        tokens = sum(map(_count_opaque, parts)) // _OPAQUE_CHARACTERS_PER_TOKEN
        self._blocks.append(
            Block(
                *("result", "\n".join(texts), answered),
                parts=parts,
                hidden_tokens=tokens,
                is_error=is_error,
                place=place,
            )
        )

    def _add_thought(self, block: JsonFields) -> None:
        """The words, or else what is encrypted."""
        thought = block.get("thinking")
        if isinstance(thought, str) and thought:
            self._blocks.append(Block("thought", thought))
            return
        encrypted = block.get("data" if block.get("type") == "redacted_thinking" else "signature")
        self._opaque += len(encrypted) if isinstance(encrypted, str) else 0

    def _add_other(self, block: JsonFields) -> None:
        """Usually a tool that the upstream runs, with call and result in one message. If the client had to
        run a tool in between, the result is in the next reply, and must not be separated from its call.
        """
        self._end_text()
        self._identity.append((b"part", canonical_part, block))
        self._has_more_than_results = True
        kind = block.get("type")
        self._has_media = self._has_media or not isinstance(kind, str) or kind not in _TEXT_LIKE
        if isinstance(identity := block.get("id"), str):
            self._hosted.add(identity)
        answered = block.get("tool_use_id")
        is_late = isinstance(answered, str) and answered not in self._hosted
        self._has_results = self._has_results or is_late
        self._add_words(block, answered if is_late else None)

    def _add_words(self, block: JsonFields, answered: str | None) -> None:
        parts: list[JsonFields] = []
        match block:
            case {"type": "server_tool_use" | "mcp_tool_use", "name": str(name), **rest}:
                self._blocks.append(_make_call(canonical_json(rest.get("input")), None, name))
            # A summary that the upstream made itself.
            case {"type": "compaction", "content": str(text)}:
                self._blocks.append(Block("text", text))
            case _:
                parts = [block]
                self._opaque += _count_opaque(block)
        if parts or answered is not None:
            self._blocks.append(Block("other", id=answered, parts=parts))

    def finish(self, message: JsonFields) -> Content:
        """message: the fields beside the content."""
        self._end_text()
        is_tool = self._has_results and not self._has_more_than_results
        if self._opaque:
            self._blocks.append(Block("thought", hidden_tokens=self._opaque // _OPAQUE_CHARACTERS_PER_TOKEN))
        return Content(
            role="tool" if is_tool else self._role,
            name=self._name,
            blocks=self._blocks,
            identity=self._identity + list_extra_fields(message, _IGNORED_KEYS),
            has_media=self._has_media,
            beginning=self._beginning,
        )

    def _end_text(self) -> None:
        """Joins the texts that follow each other. In a user's text, ephemeral blocks and the space around
        them do not count.
        """
        text = "".join(self._texts)
        self._texts.clear()
        if self._role == "user":
            text = without_ephemeral_blocks(text).strip()
        if text:
            self._note_text(text)
            self._identity.append((b"text", encode_value, text))
            self._has_more_than_results = True

    def _note_text(self, text: str) -> None:
        if not self._beginning and text[:BEGINNING_CHARS].strip():
            self._beginning = text


def _make_call(arguments: bytes, call_id: str | None, tool: str) -> Block:
    return Block("call", arguments.decode("utf-8", "replace"), call_id, tool)


def _count_opaque(value: object) -> int:
    """The number of encrypted characters in a block."""
    waiting, found = [value], 0
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, dict):
            found += sum(len(text) for key in _OPAQUE_KEYS if isinstance(text := value.get(key), str))
            waiting.extend(inner for inner in value.values() if isinstance(inner, dict | list))
    return found


def _hash_system(texts: list[str], others: list[JsonFields]) -> bytes:
    """The fingerprint of the system prompt, however it is divided into blocks; empty if there is no text."""
    fields: CanonicalForm = [
        (b"text", encode_value, text) for text in texts if text and not text.startswith(_BILLING)
    ]
    fields += [(b"part", canonical_part, part) for part in others]
    return fingerprint_form(fields) if fields else b""


def _find_identity_blocks(texts: list[str]) -> tuple[str, ...]:
    """The short blocks before the first long one; none if there is no long one near the beginning."""
    is_short = [len(text) <= _LONGEST_IDENTITY_CHARS for text in texts[: _MOST_IDENTITY_BLOCKS + 1]]
    return tuple(texts[: is_short.index(False)]) if False in is_short else ()


def _is_trimmed(management: object) -> bool:
    """Clearing old thinking does not count: the upstream leaves it out in any case."""
    edits = find_field(management, "edits")
    kinds = [find_field(edit, "type") for edit in edits] if isinstance(edits, list) else []
    return any(isinstance(kind, str) and not kind.startswith("clear_thinking") for kind in kinds)


def _find_minimum_reply(thinking: object) -> int:
    """Tokens for the thinking budget, which is part of the reply, and for some text after it."""
    budget = _find_budget(thinking)
    return budget + _MIN_TEXT_TOKENS if budget else 0


def _shorten_message(content: msgspec.Raw, mark: Mark, placeholder: str) -> msgspec.Raw:
    """Returns the same object if nothing changes."""
    blocks = _read_blocks(content)
    if not any(map(_is_result, blocks)):
        # There may be a result of an unknown type. It is not cleared: its call needs it.
        return content if mark.keep_chars is None else _shorten_content(content, mark, placeholder)
    is_changed = False
    for block in filter(_is_result, blocks):
        old = block.get("content")
        if old is not None and (new := _shorten_content(old, mark, placeholder)) is not old:
            block["content"], is_changed = new, True
    return msgspec.Raw(msgspec.json.encode(blocks)) if is_changed else content


def _read_blocks(content: msgspec.Raw) -> list[RawFields]:
    """Empty for a string, and for a list with anything but objects."""
    try:
        return msgspec.json.decode(content, type=list[RawFields])
    except msgspec.ValidationError:
        return []


def _is_result(block: RawFields) -> bool:
    return "type" in block and bytes(block["type"]) == b'"tool_result"'


def _shorten_content(content: msgspec.Raw, mark: Mark, placeholder: str) -> msgspec.Raw:
    old = msgspec.json.decode(content)
    new = _clear(old, placeholder) if mark.keep_chars is None else cut_content(old, mark.keep_chars)
    return content if new == old else msgspec.Raw(msgspec.json.encode(new))


def _clear(content: object, placeholder: str) -> object:
    """A text not longer than the placeholder stays: clearing it saves nothing."""
    match content:
        case str() if len(content) > len(placeholder):
            return placeholder
        case [{"type": "text", "text": str(text)}] if len(text) <= len(placeholder):
            return content
        case [_, *_]:
            return [{"type": "text", "text": placeholder}] if placeholder.strip() else []
    return content


def _acts(tools: object) -> bool:
    """Whether the provider runs one of the tools: it searches, fetches, or runs code."""
    kinds = [find_field(tool, "type") for tool in tools] if isinstance(tools, list) else []
    return any(kind is not None and not _OWN.fullmatch(str(kind)) for kind in kinds)


def _find_budget(thinking: object) -> int:
    """Tokens that are a part of the reply's limit, and not of its text."""
    budget = find_field(thinking, "budget_tokens")
    return budget if is_count(budget) else 0


def _make_message(response: LocalResponse) -> _Fields:
    """The message before its first block."""
    head = _Fields(
        id=f"msg_{response.id}", type="message", role="assistant", model=response.model, content=[]
    )
    head |= {"stop_reason": None, "stop_sequence": None}
    return head | {"usage": {"input_tokens": 0, "output_tokens": 0}}
