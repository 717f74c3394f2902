"""One message as blocks, in the order in which the model reads them, whatever its wire format.

An adapter reads the raw slice of a message once, into a `Content`. What the rest of the gateway knows of a
message is made of it here: its facts, its texts, and its parts apart from its results.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, Literal, NamedTuple

import msgspec

from gateway.core.history.message import Call, Message, Role, hash_beginning
from gateway.core.history.transcript import TranscriptEntry, cut_middle
from gateway.core.sizing.estimate import ATTACHMENT_TOKENS, Attachment
from gateway.wire.canonical import CanonicalForm, encode_form, iter_words

# Types of parts in any format, and of others that proxies pass on. All other parts count by their words.
_ATTACHMENTS: Final[dict[str, Attachment]] = {
    **dict.fromkeys(("image_url", "image", "input_image", "computer_screenshot"), "image"),
    **dict.fromkeys(("input_audio", "audio", "audio_url"), "audio"),
    **dict.fromkeys(("file", "input_file", "document", "video_url", "input_video", "video"), "file"),
}
# Sources of documents that hold their words in the request.
_SOURCES_OF_WORDS: Final = ("text", "content")
# Of a part that is text, and of the output of a shell.
_TEXT_KEYS: Final = ("text", "stdout", "stderr")
_RESULT_NAMES: Final = ("tool", "function")


class ResultPlace(NamedTuple):
    """Where the content of a result is in the canonical form: `start:end`. tag: of its texts."""

    tag: bytes
    start: int
    end: int


class Block(msgspec.Struct, frozen=True, gc=False):
    """A piece of a message.

    text: the words; of a call its arguments. hidden_tokens: of content that is encrypted. parts: what is
    not text, as decoded JSON.
    """

    kind: Literal["text", "thought", "call", "result", "other"]
    text: str = ""
    # Of a call that the client answers; of the call that a result, or a block of another kind, answers.
    id: str | None = None
    tool: str = ""
    parts: Sequence[dict[str, object]] = ()
    hidden_tokens: int = 0
    is_error: bool = False
    # None if the content of a result cannot be told from the rest of the message.
    place: ResultPlace | None = None


class Content(msgspec.Struct, frozen=True, gc=False):
    """A message. name: its role as the client wrote it. beginning: its first text, see `hash_beginning`."""

    role: Role
    name: str
    blocks: Sequence[Block]
    identity: CanonicalForm
    has_media: bool = False
    is_opaque: bool = False
    beginning: str = ""


def make_message(content: Content, key: bytes, size_bytes: int) -> Message:
    """The facts. key: the slice's `message_key`; size_bytes: of the slice."""
    calls: list[Call] = []
    results: list[str] = []
    encoded = encode_form(content.identity)
    split = b""
    for block in content.blocks:
        if block.place is not None and not split:
            split = _split(content.blocks, encoded)
        if block.id is not None and block.kind == "call":
            calls.append(Call(block.id, block.tool))
        elif block.id is not None:
            results.append(block.id)
    return Message(
        role=content.role,
        key=key,
        fingerprint=hashlib.sha256(b"".join(encoded)).digest(),
        size_bytes=size_bytes,
        calls=tuple(calls),
        results=tuple(results),
        has_media=content.has_media,
        is_opaque=content.is_opaque,
        beginning=hash_beginning(content.beginning) if content.beginning else b"",
        split=split,
    )


def _split(blocks: Sequence[Block], encoded: Sequence[bytes]) -> bytes:
    """See `Message.split`. encoded: the canonical form.

    The frame has an empty text in place of each content. Of a content the texts are joined, as
    `fingerprint_result` has them, before every other part.
    """
    frame, results, at = list[bytes](), list[bytes](), 0
    for block in blocks:
        if block.place is None:
            continue
        tag, start, end = block.place
        frame += encoded[at:start]
        frame.append(b"%b:0:" % tag)
        at, texts, others = end, list[bytes](), list[bytes]()
        for field in encoded[start:end]:
            if field.startswith(tag):
                texts.append(field.split(b":", 2)[2])
            else:
                others.append(field)
        text = b"".join(texts)
        results.append(hashlib.sha256(b"text:%d:%b%b" % (len(text), text, b"".join(others))).digest())
    frame += encoded[at:]
    return hashlib.sha256(b"".join(frame)).digest() + b"".join(results)


def make_entry(content: Content) -> TranscriptEntry:
    """The texts: an entry for each result, then one for what stands beside them, if there is anything."""
    results = [block for block in content.blocks if block.kind == "result"]
    if not results:
        return _describe(content.name, content.blocks)
    role = content.name if content.name in _RESULT_NAMES else "tool"
    entries = [
        replace(_describe(role, [block]), is_result=True, is_error=block.is_error) for block in results
    ]
    beside = _describe(content.name, [block for block in content.blocks if block.kind != "result"])
    if beside != TranscriptEntry(content.name, "", (), 0):
        entries.append(beside)
    return replace(entries[0], more=tuple(entries[1:])) if len(entries) > 1 else entries[0]


def _describe(role: str, blocks: Iterable[Block]) -> TranscriptEntry:
    texts: list[str] = []
    calls: list[tuple[str, str]] = []
    hidden: list[str] = []
    media = media_tokens = 0
    for block in blocks:
        if block.kind == "call":
            calls.append((block.tool, block.text))
        elif block.kind == "thought":
            hidden += [block.text] if block.text else []
        elif block.kind != "other":
            texts.append(block.text)
        media_tokens += block.hidden_tokens
        media += len(block.parts)
        for part in block.parts:
            attachment = _find_attachment(part)
            if attachment is not None:
                media_tokens += ATTACHMENT_TOKENS[attachment]
            else:
                hidden.extend(iter_words(part))
    return TranscriptEntry(
        role=role,
        text="\n".join(texts),
        calls=tuple(calls),
        media=media,
        hidden="\n".join(hidden),
        media_tokens=media_tokens,
    )


def _find_attachment(part: dict[str, object]) -> Attachment | None:
    kind, source = part.get("type"), part.get("source")
    if not isinstance(kind, str) or (isinstance(source, dict) and source.get("type") in _SOURCES_OF_WORDS):
        return None
    return _ATTACHMENTS.get(kind)


def cut_content(content: object, keep_chars: int) -> object:
    """A `content` value of a message or a result with each of its texts cut in the middle."""
    if isinstance(content, str):
        return cut_middle(content, keep_chars)
    return [_cut_part(part, keep_chars) for part in content] if isinstance(content, list) else content


def _cut_part(part: object, keep_chars: int) -> object:
    if not isinstance(part, dict):
        return part
    texts = {key: part[key] for key in _TEXT_KEYS if isinstance(part.get(key), str)}
    return {**part, **{key: cut_middle(text, keep_chars) for key, text in texts.items()}}
