"""Anthropic Messages requests: splits a body into its envelope and message slices, and reads a slice's facts.

Decides nothing. A message is never rendered again from its facts.
"""

from dataclasses import replace
from typing import Final

from gateway.core.counts import is_count
from gateway.core.history.message import Call, Message, Role, fingerprint_fields, hash_beginning
from gateway.wire.body import JsonFields, parse_object_with_role
from gateway.wire.canonical import (
    canonical_json,
    canonical_part,
    encode_value,
    flatten_content,
    list_extra_fields,
    without_ephemeral_blocks,
)
from gateway.wire.request import Envelope, EnvelopeFields, RequestBody, split_request
from gateway.wire.structure import UNBOUNDED, BodyBounds

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


def parse_body(data: bytes, bounds: BodyBounds = UNBOUNDED) -> RequestBody:
    """Splits a whole body. Raises Unreadable."""
    return split_request(data, "messages", _make_envelope, bounds=bounds)


def parse_message(raw: bytes, key: bytes) -> Message:
    """The facts of one slice. key: its message_key. Raises Unreadable."""
    message = parse_object_with_role(raw)
    reader = _MessageReader(message["role"])
    content = message.get("content")
    for block in content if isinstance(content, list) else [content]:
        reader.add_block(block)
    reader.add_fields(message)
    return reader.make_message(raw, key)


class _MessageReader:
    """Collects the canonical form and the facts of a message, block by block."""

    def __init__(self, name: str) -> None:
        self._role: Role = _ROLES.get(name, "other")
        self._fields = [(b"role", encode_value(name))]
        self._texts: list[str] = []
        self._calls: list[Call] = []
        self._results: list[str] = []
        # Ids of the tool calls in this message that the upstream runs itself.
        self._hosted: set[str] = set()
        self._has_more_than_results = False
        self._has_media = False
        # Of the first text.
        self._beginning = b""

    def add_block(self, block: object) -> None:
        """Thinking is left out: clients drop it, and the upstream does not read old thinking."""
        if not isinstance(block, dict):
            self._texts.extend(flatten_content(block).texts)
            return
        match block:
            case {"type": "text", "text": str(text)}:
                self._texts.append(text)
            case {"type": "tool_use"}:
                self._add_use(block)
            case {"type": "tool_result"}:
                self._add_result(block)
            case {"type": "thinking" | "redacted_thinking"}:
                pass
            case _:
                self._add_other(block)

    def _add_use(self, block: JsonFields) -> None:
        """A call is one for the client to answer only if the assistant made it."""
        self._end_text()
        identity, tool = str(block.get("id") or ""), str(block.get("name") or "")
        self._fields += [
            (b"call", encode_value(identity)),
            (b"tool", encode_value(tool)),
            (b"arguments", canonical_json(block.get("input"))),
        ]
        if self._role == "assistant":
            self._calls.append(Call(identity, tool))

    def _add_result(self, block: JsonFields) -> None:
        self._end_text()
        texts, parts = flatten_content(block.get("content"))
        answered = str(block.get("tool_use_id") or "")
        self._note_text(texts[0] if texts else "")
        self._fields += [(b"answers", encode_value(answered)), (b"result", encode_value("".join(texts)))]
        self._fields += [(b"part", canonical_part(part)) for part in parts]
        if block.get("is_error") is True:
            self._fields.append((b"error", b"1"))
        self._results.append(answered)
        self._has_media = self._has_media or bool(parts)

    def _add_other(self, block: JsonFields) -> None:
        """Usually a tool that the upstream runs, with call and result in one message. If the client had to
        run a tool in between, the result is in the next reply, and must not be separated from its call.
        """
        self._end_text()
        self._fields.append((b"part", canonical_part(block)))
        self._has_more_than_results = True
        kind = block.get("type")
        self._has_media = self._has_media or not isinstance(kind, str) or kind not in _TEXT_LIKE
        if isinstance(identity := block.get("id"), str):
            self._hosted.add(identity)
        answered = block.get("tool_use_id")
        if isinstance(answered, str) and answered not in self._hosted:
            self._results.append(answered)

    def add_fields(self, message: JsonFields) -> None:
        """The fields beside the content."""
        self._end_text()
        self._fields += list_extra_fields(message, _IGNORED_KEYS)

    def make_message(self, raw: bytes, key: bytes) -> Message:
        is_tool = bool(self._results) and not self._has_more_than_results
        return Message(
            role="tool" if is_tool else self._role,
            key=key,
            fingerprint=fingerprint_fields(self._fields),
            size_bytes=len(raw),
            calls=tuple(self._calls),
            results=tuple(self._results),
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
            self._fields.append((b"text", encode_value(text)))
            self._has_more_than_results = True

    def _note_text(self, text: str) -> None:
        self._beginning = self._beginning or hash_beginning(text)


def _make_envelope(fields: EnvelopeFields) -> Envelope:
    texts, others = flatten_content(fields.parse("system"))
    thread = fields.parse("thread")
    return replace(
        fields.make_common_envelope("max_tokens"),
        system=_hash_system(texts, others),
        system_slice=fields.find_slice("system"),
        minimum_reply_tokens=_find_minimum_reply(fields.parse("thinking")),
        identity_blocks=_find_identity_blocks(texts),
        is_partial=thread is not None and not _begins_thread(thread),
        is_kept=thread is not None,
        is_trimmed=is_trimmed(fields.parse("context_management")),
    )


def _begins_thread(thread: object) -> bool:
    """Any other thread holds a part of the history that the request does not bring."""
    return isinstance(thread, dict) and thread.get("type") == "create"


def _hash_system(texts: list[str], others: list[JsonFields]) -> bytes:
    """The fingerprint of the system prompt, however it is divided into blocks; empty if there is no text."""
    fields = [(b"text", encode_value(text)) for text in texts if text and not text.startswith(_BILLING)]
    fields += [(b"part", canonical_part(part)) for part in others]
    return fingerprint_fields(fields) if fields else b""


def _find_identity_blocks(texts: list[str]) -> tuple[str, ...]:
    """The short blocks before the first long one; none if there is no long one near the beginning."""
    is_short = [len(text) <= _LONGEST_IDENTITY_CHARS for text in texts[: _MOST_IDENTITY_BLOCKS + 1]]
    return tuple(texts[: is_short.index(False)]) if False in is_short else ()


def is_trimmed(management: object) -> bool:
    """Clearing old thinking does not count: the upstream leaves it out in any case."""
    edits = management.get("edits") if isinstance(management, dict) else None
    kinds = [edit.get("type") for edit in edits if isinstance(edit, dict)] if isinstance(edits, list) else []
    return any(isinstance(kind, str) and not kind.startswith("clear_thinking") for kind in kinds)


def _find_minimum_reply(thinking: object) -> int:
    """Tokens for the thinking budget, which is part of the reply, and for some text after it."""
    budget = thinking.get("budget_tokens") if isinstance(thinking, dict) else None
    if not is_count(budget) or budget == 0:
        return 0
    return budget + _MIN_TEXT_TOKENS
