"""Anthropic Messages requests: a body as envelope and slices, and one slice as facts.

Knows the format's words. Decides nothing, and never writes a message back from what it has read.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final, Literal

import msgspec

from gateway.core.history.message import Call, Message, Role, fingerprint_fields
from gateway.wire.body import read_message_object
from gateway.wire.canonical import (
    canonical_json,
    canonical_part,
    encode_value,
    flatten_content,
    list_extra_fields,
    without_ephemeral_blocks,
)
from gateway.wire.request import Envelope, EnvelopeFields, RequestBody, split_request

# Claude Code puts the price list's view of a request into its system prompt: a hash of this very body.
_BILLING: Final = "x-anthropic-billing-header:"
# Some upstreams serve only who introduces itself: by short blocks before the prompt proper (FACTS §2).
_LONGEST_GREETING_CHARS: Final = 200
# "budget_tokens must be less than max_tokens": what is left of it is the answer.
_LEAST_ANSWER_TOKENS: Final = 1_024
_ROLES: Final[dict[str, Role]] = {"user": "user", "assistant": "assistant", "system": "system"}
# Neither identity nor content: what a client that sends back whole answers sends along.
_IGNORED_KEYS: Final = frozenset(
    {
        *("role", "content", "cache_control", "id", "type", "model", "status"),
        *("stop_reason", "stop_sequence", "stop_details", "usage", "container", "context_management"),
    }
)
_THINKING: Final = frozenset({"thinking", "redacted_thinking"})
# Blocks of other types that cost no more tokens than they have bytes. A picture, a file or the name of one
# does.
_WORDY: Final = frozenset({"server_tool_use", "mcp_tool_use", "search_result", "compaction"})


def parse_body(data: bytes) -> RequestBody:
    """Splits a whole body. Raises Unreadable."""
    return split_request(data, "messages", _read_envelope)


class _Text(msgspec.Struct, tag="text", forbid_unknown_fields=True, gc=False):
    text: str
    cache_control: msgspec.Raw | None = None


class _Use(msgspec.Struct, tag="tool_use", forbid_unknown_fields=True, gc=False):
    id: str
    name: str
    input: object
    cache_control: msgspec.Raw | None = None


class _Result(msgspec.Struct, tag="tool_result", forbid_unknown_fields=True, gc=False):
    tool_use_id: str
    content: str | list[_Text]
    is_error: bool = False
    cache_control: msgspec.Raw | None = None


class _Thinking(msgspec.Struct, tag="thinking", gc=False):
    thinking: str


class _UsualMessage(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """What nearly all messages are: text, or blocks of the four types that agents live on."""

    role: Literal["user", "assistant"]
    content: str | list[_Text | _Use | _Result | _Thinking]


_decode_usual = msgspec.json.Decoder(_UsualMessage).decode


def read_message(raw: bytes, key: bytes) -> Message:
    """One slice as facts; `key`: its message_key. Raises Unreadable.

    A typed reading of the usual forms comes first: it says the same at half the price.
    """
    try:
        usual = _decode_usual(raw)
    except (ValueError, RecursionError):
        return _read_any_message(raw, key)
    said = _Said(usual.role, usual.role)
    if isinstance(usual.content, str):
        said.add_text(usual.content)
        return said.make_message(raw, key)
    for block in usual.content:
        if isinstance(block, _Text):
            said.add_text(block.text)
        elif isinstance(block, _Use):
            said.add_use(block.id, block.name, block.input)
        elif isinstance(block, _Result):
            content = block.content
            texts = [content] if isinstance(content, str) else [part.text for part in content]
            said.add_result(block.tool_use_id, texts, [], is_error=block.is_error)
    return said.make_message(raw, key)


def _read_any_message(raw: bytes, key: bytes) -> Message:
    message = read_message_object(raw)
    said = _Said(message["role"], _ROLES.get(message["role"], "other"))
    content = message.get("content")
    for block in content if isinstance(content, list) else [content]:
        said.add_block(block)
    said.add_fields(message)
    return said.make_message(raw, key)


class _Said:
    """Grows block by block into the canonical form of a message. Both readings feed it."""

    def __init__(self, name: str, role: Role) -> None:
        self._role = role
        self._fields = [(b"role", encode_value(name))]
        self._texts: list[str] = []
        self._calls: list[Call] = []
        self._results: list[str] = []
        self._hosted: set[str] = set()
        self._is_more_than_results = False
        self._has_media = False

    def add_text(self, text: str) -> None:
        self._texts.append(text)

    def add_use(self, identity: str, tool: str, value: object) -> None:
        """A call that the client answers, where it is the model's."""
        self._end_text()
        self._fields += [
            (b"call", encode_value(identity)),
            (b"tool", encode_value(tool)),
            (b"arguments", canonical_json(value)),
        ]
        if self._role == "assistant":
            self._calls.append(Call(identity, tool))

    def add_result(
        self, identity: str, texts: list[str], parts: list[dict[str, object]], *, is_error: bool
    ) -> None:
        self._end_text()
        text = texts[0] if len(texts) == 1 else "".join(texts)
        self._fields += [(b"answers", encode_value(identity)), (b"result", encode_value(text))]
        self._fields += [(b"part", canonical_part(part)) for part in parts]
        if is_error:
            self._fields.append((b"error", b"1"))
        self._results.append(identity)
        self._has_media = self._has_media or bool(parts)

    def add_block(self, block: object) -> None:
        """Of any type. Thinking is left out: clients drop it, and upstream does not read old thoughts."""
        if not isinstance(block, dict):
            self._texts.extend(flatten_content(block)[0])
            return
        match block:
            case {"type": "text", "text": str(text)}:
                self.add_text(text)
            case {"type": "tool_use"}:
                identity, tool = str(block.get("id") or ""), str(block.get("name") or "")
                self.add_use(identity, tool, block.get("input"))
            case {"type": "tool_result"}:
                texts, parts = flatten_content(block.get("content"))
                identity = str(block.get("tool_use_id") or "")
                self.add_result(identity, texts, parts, is_error=block.get("is_error") is True)
            case {"type": str(kind)} if kind in _THINKING:
                pass
            case _:
                self._add_other(block)

    def _add_other(self, block: dict[str, object]) -> None:
        """What upstream does itself, as a rule inside one message. Where the client had to run a tool in
        between, the result stands in the next reply: it may not be parted from its call.
        """
        self._end_text()
        self._fields.append((b"part", canonical_part(block)))
        self._is_more_than_results = True
        kind = block.get("type")
        self._has_media = self._has_media or not isinstance(kind, str) or kind not in _WORDY
        if isinstance(identity := block.get("id"), str):
            self._hosted.add(identity)
        answered = block.get("tool_use_id")
        if isinstance(answered, str) and answered not in self._hosted:
            self._results.append(answered)

    def add_fields(self, message: dict[str, object]) -> None:
        """What stands beside the content."""
        self._end_text()
        self._fields += list_extra_fields(message, _IGNORED_KEYS)

    def make_message(self, raw: bytes, key: bytes) -> Message:
        self._end_text()
        role = self._role
        if self._results and not self._is_more_than_results:
            role = "tool"
        return Message(
            role=role,
            key=key,
            fingerprint=fingerprint_fields(self._fields),
            size_bytes=len(raw),
            calls=tuple(self._calls),
            results=tuple(self._results),
            has_media=self._has_media,
        )

    def _end_text(self) -> None:
        """Texts that follow each other are one. Of a user's the blocks that come and go are left out, with
        the space around them.
        """
        if not self._texts:
            return
        text = self._texts[0] if len(self._texts) == 1 else "".join(self._texts)
        self._texts.clear()
        if self._role == "user":
            text = without_ephemeral_blocks(text).strip()
        if text:
            self._fields.append((b"text", encode_value(text)))
            self._is_more_than_results = True


def _read_envelope(fields: EnvelopeFields) -> Envelope:
    texts, others = flatten_content(fields.read("system"))
    return replace(
        fields.begin_envelope("max_tokens"),
        preamble=_digest_system(texts, others),
        preamble_slice=fields.place("system"),
        least_tokens=_read_least(fields.read("thinking")),
        greeting=_find_greeting(texts),
        is_trimmed=_is_trimmed(fields.read("context_management")),
    )


def _digest_system(texts: Iterable[str], others: Iterable[dict[str, object]]) -> bytes:
    """Of what it says, however it is cut into blocks; empty where it says nothing."""
    said = [(b"text", encode_value(text)) for text in texts if text and not text.startswith(_BILLING)]
    said += [(b"part", canonical_part(part)) for part in others]
    return fingerprint_fields(said) if said else b""


def _find_greeting(texts: list[str]) -> tuple[str, ...]:
    """The short blocks before a long one; none where there is nothing else."""
    lengths = [len(text) <= _LONGEST_GREETING_CHARS for text in texts]
    return tuple(texts[: lengths.index(False)]) if False in lengths else ()


def _is_trimmed(management: object) -> bool:
    """Old thoughts upstream leaves out anyway."""
    edits = management.get("edits") if isinstance(management, dict) else None
    kinds = [edit.get("type") for edit in edits if isinstance(edit, dict)] if isinstance(edits, list) else []
    return any(isinstance(kind, str) and not kind.startswith("clear_thinking") for kind in kinds)


def _read_least(thinking: object) -> int:
    """The reply holds the thinking that is paid for, and an answer."""
    budget = thinking.get("budget_tokens") if isinstance(thinking, dict) else None
    if not isinstance(budget, int) or isinstance(budget, bool) or budget <= 0:
        return 0
    return budget + _LEAST_ANSWER_TOKENS
