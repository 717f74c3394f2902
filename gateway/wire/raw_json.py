"""Edits of one small JSON value by its bytes: values that are not edited keep theirs.

Also decodes values that hold halves of surrogate pairs, which models send when a piece of text ends inside an
emoji. Raises Unreadable for what is not JSON.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import msgspec

from gateway.core.errors import BeyondBounds, Unreadable
from gateway.wire.body import JSON_ERRORS, JsonFields, Slice, mend_surrogates, place_fields, place_items

S = TypeVar("S", bound=msgspec.Struct)


def decode_object(raw: bytes) -> JsonFields:
    """Halves of surrogate pairs stay what they are. Raises Unreadable for what is no object."""
    try:
        value = _decode(raw)
    except (BeyondBounds, *JSON_ERRORS) as error:
        raise Unreadable("not JSON") from error
    if not isinstance(value, dict):
        raise Unreadable("not a JSON object")
    return value


def _decode(raw: bytes) -> object:
    try:
        return msgspec.json.decode(raw)
    except JSON_ERRORS:
        mended = mend_surrogates(raw)
        if mended is raw:
            raise
        # That it is valid JSON, which the other decoder does not mind.
        msgspec.json.decode(mended)
        return json.loads(raw)


def decode_with_halves(decode: Callable[[bytes], S], data: bytes, raw_fields: Iterable[str]) -> S | None:
    """By a decoder of msgspec, which refuses halves of surrogate pairs: they are kept in the raw fields, and
    replaced in the others. None for what does not decode.
    """
    try:
        return decode(data)
    except JSON_ERRORS:
        return _decode_mended(decode, data, raw_fields)


def _decode_mended(decode: Callable[[bytes], S], data: bytes, raw_fields: Iterable[str]) -> S | None:
    try:
        value = decode(mend_surrogates(data))
        fields = split_object(data)
    except (BeyondBounds, Unreadable, *JSON_ERRORS):
        return None
    for name in raw_fields:
        setattr(value, name, msgspec.Raw(fields.get(name, b"")))
    return value


def encode_json(value: object) -> bytes:
    """Halves of surrogate pairs are escaped."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(value).encode()


def join_halves(text: str) -> str:
    """Two halves that follow each other become their character; a single one is replaced."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def split_object(raw: bytes) -> dict[str, bytes]:
    """The bytes of each value."""
    return {key: raw[place.start : place.end] for key, place in place_fields(raw).items()}


def split_array(raw: bytes) -> list[bytes]:
    return [raw[place.start : place.end] for place in place_items(raw)]


def find_place(raw: bytes, *path: str | int) -> Slice:
    """Where a value inside of others is. Raises Unreadable if it is not there."""
    start, end = 0, len(raw)
    for step in path:
        inner = raw[start:end]
        try:
            place = place_fields(inner)[step] if isinstance(step, str) else place_items(inner)[step]
        except LookupError as error:
            raise Unreadable(f"no {step}") from error
        start, end = start + place.start, start + place.end
    return Slice(start, end)


def with_fields(raw: bytes, changes: Mapping[str, bytes | None]) -> bytes:
    """An object with other values for some of its keys; without those for which the value is None."""
    fields = {key: changes.get(key, value) for key, value in split_object(raw).items()}
    pairs = (encode_json(key) + b":" + value for key, value in fields.items() if value is not None)
    return b"{" + b",".join(pairs) + b"}"


def join_array(items: Iterable[bytes]) -> bytes:
    return b"[" + b",".join(items) + b"]"
