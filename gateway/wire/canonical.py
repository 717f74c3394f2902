"""The canonical form of a message: two spellings of the same content have the same form.

Real clients add, move or drop some fields between two requests of one conversation; those are left out
(docs/design.md, CanonicalForm). State on disk is found by hashes of this form: it must never change.
"""

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple, cast

import msgspec

from gateway.core.errors import Unreadable
from gateway.core.history.transcript import without_blocks
from gateway.wire.body import UNBOUNDED, check_values

# Clients insert, move and strip blocks with exactly these tags.
_EPHEMERAL = re.compile(
    r"<(system-reminder|system_reminder|environment_details|environment_context|info-msg)>"
)
# The values of such a text are not counted with those of the body. A call with a million of them is no call.
_ARGUMENTS: Final = replace(UNBOUNDED, values=1_000_000)
# A field with one of these values is the same as no field.
EMPTY: Final[tuple[object, ...]] = (None, "", [], {})
# No word is this long.
_BLOB_CHARACTERS: Final = 1_024
_IGNORED_PART_KEYS = frozenset({"cache_control", "annotations", "id", "status", "logprobs"})

# The canonical form of a message: tagged values, and how each is written.
CanonicalForm = list[tuple[bytes, Callable[[Any], bytes], object]]


def encode_form(form: CanonicalForm) -> list[bytes]:
    """Tagged, length-prefixed values: joined, different forms never have the same encoding."""
    pieces = []
    for tag, encode, value in form:
        # Nearly all values are texts.
        if encode is encode_value and isinstance(value, str):
            written = value.encode("utf-8", "surrogatepass")
        else:
            written = encode(value)
        pieces.append(b"%b:%d:%b" % (tag, len(written), written))
    return pieces


def fingerprint_form(form: CanonicalForm) -> bytes:
    return hashlib.sha256(b"".join(encode_form(form))).digest()


def canonical_json(value: object) -> bytes:
    """Sorted keys, no spaces. A value with numbers that the encoder refuses is written by `repr`, which is
    enough for a hash.
    """
    try:
        return msgspec.json.encode(value, order="sorted")
    except (msgspec.MsgspecError, OverflowError, ValueError):
        return repr(value).encode("utf-8", "surrogatepass")
    except RecursionError as error:
        raise Unreadable("nested too deeply") from error


def encode_value(value: object) -> bytes:
    """A string as it is, any other value as canonical JSON."""
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else canonical_json(value)


def list_extra_fields(message: Mapping[str, object], ignored: Collection[str]) -> CanonicalForm:
    """The fields that are not ignored and not empty. They may matter."""
    extra = message.keys() - ignored
    if not extra:
        return []
    return [
        (b"field", _encode_field, (key, message[key])) for key in sorted(extra) if message[key] not in EMPTY
    ]


def _encode_field(field: tuple[str, object]) -> bytes:
    return encode_value(field[0]) + b"=" + canonical_json(field[1])


def canonical_arguments(arguments: object) -> bytes:
    """Arguments of a tool call: a JSON text, in which clients may change spaces, or a value.

    A text that is not JSON is used as it is. Raises BeyondBounds for a text with very many values.
    """
    if not isinstance(arguments, str):
        return canonical_json(arguments)
    if arguments.count(",") > _ARGUMENTS.values:
        check_values(arguments.encode("utf-8", "surrogatepass"), _ARGUMENTS)
    try:
        return canonical_json(msgspec.json.decode(arguments))
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return arguments.encode("utf-8", "surrogatepass")


def without_ephemeral_blocks(text: str) -> str:
    """An unclosed block stays. A text without blocks is returned unchanged."""
    kept = without_blocks(text, _EPHEMERAL)
    return kept.strip() if len(kept) < len(text) else text


def canonical_part(part: dict[str, object]) -> bytes:
    """A content part that is not text (image, file, unknown): canonical JSON, or its hash if it is large."""
    encoded = canonical_json({key: value for key, value in part.items() if key not in _IGNORED_PART_KEYS})
    return encoded if len(encoded) <= 256 else hashlib.sha256(encoded).digest()


class ContentParts(NamedTuple):
    texts: list[str]
    # The parts that are not text.
    others: list[dict[str, object]]


def flatten_content(content: object) -> ContentParts:
    """The texts and the other parts of a `content` value, which is a string, null or a list of parts."""
    if isinstance(content, str):
        return ContentParts([content], [])
    texts: list[str] = []
    others: list[dict[str, object]] = []
    for part in _iter_parts(content):
        text = part.get("text")
        if part.get("type") in ("text", "input_text", "output_text") and isinstance(text, str):
            texts.append(text)
        else:
            others.append(part)
    return ContentParts(texts, others)


def _iter_parts(content: object) -> Iterable[dict[str, object]]:
    if content is None:
        return
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, dict):
            yield cast("dict[str, object]", part)
        elif isinstance(part, str):
            yield {"type": "text", "text": part}
        else:
            yield {"type": "unknown", "value": part}


def iter_words(value: object) -> Iterator[str]:
    """The strings in a JSON value, in order, except those that are base64."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            if not _is_blob(value):
                yield value
        elif isinstance(value, dict):
            waiting.extend(reversed(value.values()))
        elif isinstance(value, list):
            waiting.extend(reversed(value))


def _is_blob(text: str) -> bool:
    if text.startswith("data:"):
        return True
    start = text[:_BLOB_CHARACTERS]
    return len(start) == _BLOB_CHARACTERS and start.isascii() and not any(map(str.isspace, start))
