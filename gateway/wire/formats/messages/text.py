"""Anthropic Messages: the texts of a message, for counting and for the summariser.

Knows where words are; leaves ids, flags and the bytes of media out.
"""

from dataclasses import replace
from typing import Final

import msgspec

from gateway.core.history.transcript import TranscriptEntry
from gateway.core.sizing.attachments import ATTACHMENT_TOKENS, Attachment
from gateway.wire.attachments import iter_words
from gateway.wire.body import decode_fields, decode_message
from gateway.wire.canonical import canonical_json
from gateway.wire.wire_format import SplitResults

_ATTACHMENTS: Final[dict[str, Attachment]] = {
    "image": "image",
    "document": "file",
}
# Sources of documents that are words themselves.
_TEXTS: Final = ("text", "content")
# What only upstream can read (thoughts, pages it has fetched) costs what its words cost: four characters to a
# token, and base64 makes four characters of three.
_SEALED_CHARACTERS_PER_TOKEN: Final = 5
_SEALED_KEYS: Final = ("encrypted_content", "encrypted_stdout")


def parse_entry(raw: bytes) -> TranscriptEntry:
    """The texts of a slice that has been read before: the results one by one, then what is said beside."""
    message = decode_message(raw)
    content = message.get("content")
    blocks = content if isinstance(content, list) else [content]
    results = [_read_result(block) for block in blocks if _is_result(block)]
    beside = _read_beside(str(message["role"]), [block for block in blocks if not _is_result(block)])
    if not results:
        return beside
    entries = results if beside == _read_beside(beside.role, []) else [*results, beside]
    return replace(entries[0], more=tuple(entries[1:]))


def _is_result(block: object) -> bool:
    return isinstance(block, dict) and block.get("type") == "tool_result"


def _read_result(block: dict[str, object]) -> TranscriptEntry:
    content = block.get("content")
    said = _read_beside("tool", content if isinstance(content, list) else [content])
    return replace(said, is_result=True)


def _read_beside(role: str, blocks: list[object]) -> TranscriptEntry:
    texts: list[str] = []
    calls: list[tuple[str, str]] = []
    hidden: list[str] = []
    media = media_tokens = sealed = 0
    for block in blocks:
        match block:
            case (
                str(text)
                | {"type": "text", "text": str(text)}
                # What upstream itself has folded, in words.
                | {"type": "compaction", "content": str(text)}
            ):
                texts.append(text)
            case {"type": "tool_use" | "server_tool_use" | "mcp_tool_use", "name": str(name), **rest}:
                calls.append((name, canonical_json(rest.get("input")).decode("utf-8", "replace")))
            case {"type": "thinking", "thinking": str(thought)} if thought:
                hidden.append(thought)
            case {"type": "thinking", "signature": str(secret)} | {
                "type": "redacted_thinking",
                "data": str(secret),
            }:
                sealed += len(secret)
            case {"type": str(kind), "source": {"type": source}} if (
                kind in _ATTACHMENTS and source not in _TEXTS
            ):
                media += 1
                media_tokens += ATTACHMENT_TOKENS[_ATTACHMENTS[kind]]
            case dict():
                media += 1
                hidden.extend(iter_words(block))
                sealed += _count_sealed(block)
    return TranscriptEntry(
        role=role,
        text="\n".join(texts),
        calls=tuple(calls),
        media=media,
        hidden="\n".join(hidden),
        media_tokens=media_tokens + sealed // _SEALED_CHARACTERS_PER_TOKEN,
    )


def _count_sealed(value: object) -> int:
    """Characters in a block of what only upstream can read."""
    waiting, found = [value], 0
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, dict):
            found += sum(len(text) for key in _SEALED_KEYS if isinstance(text := value.get(key), str))
            waiting.extend(inner for inner in value.values() if isinstance(inner, dict | list))
    return found


# JOINED: Anthropic Messages: the contents of a message's `tool_result` blocks, apart from the rest of it.

_NOTHING: Final = msgspec.Raw(b"null")


def split_results(raw: bytes) -> SplitResults:
    """Of a slice that was read before. Raises MsgspecError, UnicodeDecodeError, RecursionError."""
    message = decode_fields(raw)
    content = message.get("content", _NOTHING)
    if not bytes(content).startswith(b"["):
        return SplitResults(raw, ())
    blocks = msgspec.json.decode(content, type=list[dict[str, msgspec.Raw]])
    results = [block for block in blocks if msgspec.json.decode(block.get("type", _NOTHING)) == "tool_result"]
    contents = [msgspec.json.decode(result.pop("content", _NOTHING)) for result in results]
    message["content"] = msgspec.Raw(msgspec.json.encode(blocks))
    return SplitResults(msgspec.json.encode(message), tuple(contents))
