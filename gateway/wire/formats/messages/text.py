"""Anthropic Messages: the texts of a message, for counting and for summaries.

Leaves out ids, flags and the bytes of attachments.
"""

from dataclasses import replace
from typing import Final

import msgspec

from gateway.core.history.transcript import TranscriptEntry
from gateway.core.sizing.attachments import ATTACHMENT_TOKENS, Attachment
from gateway.wire.attachments import iter_words
from gateway.wire.body import parse_raw_fields, parse_value
from gateway.wire.canonical import canonical_json
from gateway.wire.wire_format import SplitResults

_ATTACHMENTS: Final[dict[str, Attachment]] = {
    "image": "image",
    "document": "file",
}
# Sources of documents that hold their words in the request.
_TEXTS: Final = ("text", "content")
# Encrypted content (thinking, pages that the upstream fetched) costs what its words cost: four characters for
# a token, and base64 makes four characters out of three.
_OPAQUE_CHARACTERS_PER_TOKEN: Final = 5
_NULL: Final = msgspec.Raw(b"null")
_OPAQUE_KEYS: Final = ("encrypted_content", "encrypted_stdout")


def parse_entry(raw: bytes) -> TranscriptEntry:
    """The texts of a slice that `parse_message` has accepted: each result, then the text beside them."""
    message = parse_value(raw)
    content = message.get("content")
    blocks = content if isinstance(content, list) else [content]
    results = [_describe_result(block) for block in blocks if _is_result(block)]
    beside = _describe(str(message["role"]), [block for block in blocks if not _is_result(block)])
    if not results:
        return beside
    entries = results if beside == _describe(beside.role, []) else [*results, beside]
    return replace(entries[0], more=tuple(entries[1:]))


def _is_result(block: object) -> bool:
    return isinstance(block, dict) and block.get("type") == "tool_result"


def _describe_result(block: dict[str, object]) -> TranscriptEntry:
    content = block.get("content")
    entry = _describe("tool", content if isinstance(content, list) else [content])
    return replace(entry, is_result=True, is_error=block.get("is_error") is True)


def _describe(role: str, blocks: list[object]) -> TranscriptEntry:
    texts: list[str] = []
    calls: list[tuple[str, str]] = []
    hidden: list[str] = []
    media = media_tokens = opaque = 0
    for block in blocks:
        match block:
            case (
                str(text)
                | {"type": "text", "text": str(text)}
                # A summary that the upstream made itself.
                | {"type": "compaction", "content": str(text)}
            ):
                texts.append(text)
            case {"type": "tool_use" | "server_tool_use" | "mcp_tool_use", "name": str(name), **rest}:
                calls.append((name, canonical_json(rest.get("input")).decode("utf-8", "replace")))
            case {"type": "thinking", "thinking": str(thought)} if thought:
                hidden.append(thought)
            case {"type": "thinking", "signature": str(encrypted)} | {
                "type": "redacted_thinking",
                "data": str(encrypted),
            }:
                opaque += len(encrypted)
            case {"type": str(kind), "source": {"type": source}} if (
                kind in _ATTACHMENTS and source not in _TEXTS
            ):
                media += 1
                media_tokens += ATTACHMENT_TOKENS[_ATTACHMENTS[kind]]
            case dict():
                media += 1
                hidden.extend(iter_words(block))
                opaque += _count_opaque(block)
    return TranscriptEntry(
        role=role,
        text="\n".join(texts),
        calls=tuple(calls),
        media=media,
        hidden="\n".join(hidden),
        media_tokens=media_tokens + opaque // _OPAQUE_CHARACTERS_PER_TOKEN,
    )


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


def split_results(raw: bytes) -> SplitResults:
    """The contents of the `tool_result` blocks, apart from the rest.

    Raises MsgspecError, UnicodeDecodeError or RecursionError.
    """
    message = parse_raw_fields(raw)
    content = message.get("content", _NULL)
    if not bytes(content).startswith(b"["):
        return SplitResults(raw, ())
    blocks = msgspec.json.decode(content, type=list[dict[str, msgspec.Raw]])
    results = [block for block in blocks if msgspec.json.decode(block.get("type", _NULL)) == "tool_result"]
    contents = [msgspec.json.decode(result.pop("content", _NULL)) for result in results]
    message["content"] = msgspec.Raw(msgspec.json.encode(blocks))
    return SplitResults(msgspec.json.encode(message), tuple(contents))
