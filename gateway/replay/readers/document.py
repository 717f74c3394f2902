"""A file as JSON objects: one, an array of them, or one a line. A value is parsed when it is asked for."""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec

from gateway.core.errors import BeyondBounds
from gateway.replay.errors import NotARecording
from gateway.wire.body import JSON_ERRORS, parse_raw_fields, parse_value

# By key.
RecordedFields = dict[str, msgspec.Raw]

_ERRORS: Final = (*JSON_ERRORS, BeyondBounds)
# Of a file that is no recording, so much is named.
_SHOWN_KEYS: Final = 6
# A recording is recognized by its first objects.
SAMPLE: Final = 20
_NULL: Final = msgspec.Raw(b"null")


class RecordedFile(NamedTuple):
    """is_lines: the objects stand one a line. skipped: lines or entries that are damaged, or no objects."""

    objects: list[RecordedFields]
    is_lines: bool
    skipped: int
    size_bytes: int

    @property
    def only(self) -> RecordedFields | None:
        """The object of a file that is one."""
        return self.objects[0] if not self.is_lines and len(self.objects) == 1 else None

    @property
    def sample(self) -> list[RecordedFields]:
        return self.objects[:SAMPLE]


def parse_file(data: bytes) -> RecordedFile:
    """Raises NotARecording for what holds no JSON object."""
    whole = find_fields(data)
    if whole is not None:
        return RecordedFile([whole], is_lines=False, skipped=0, size_bytes=len(data))
    entries = find_list(msgspec.Raw(data)) if data.lstrip()[:1] == b"[" else None
    pieces = entries if entries is not None else _iter_lines(data)
    found = [find_fields(bytes(piece)) for piece in pieces]
    objects = [fields for fields in found if fields is not None]
    if not objects:
        raise NotARecording("it holds no JSON object, neither as a whole nor in its lines")
    return RecordedFile(objects, entries is None, len(found) - len(objects), len(data))


def _iter_lines(data: bytes) -> Iterator[bytes]:
    return (line for line in data.split(b"\n") if line.strip())


def find_fields(raw: bytes | msgspec.Raw) -> RecordedFields | None:
    """The fields of an object; None for anything else."""
    try:
        return parse_raw_fields(bytes(raw))
    except _ERRORS:
        return None


def find_list(raw: bytes | msgspec.Raw | None) -> list[msgspec.Raw] | None:
    """The items of an array; None for anything else."""
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw, type=list[msgspec.Raw])
    except _ERRORS:
        return None


def find_value(fields: RecordedFields, name: str) -> Any:  # noqa: ANN401 - JSON is of any shape
    """A value of an object; None if it is missing or damaged."""
    try:
        return parse_value(bytes(fields.get(name, _NULL)))
    except _ERRORS:
        return None


def find_text(fields: RecordedFields, name: str) -> str | None:
    value = find_value(fields, name)
    return value if isinstance(value, str) else None


def find_object(fields: RecordedFields, name: str) -> RecordedFields | None:
    raw = fields.get(name)
    return find_fields(raw) if raw is not None else None


def describe_keys(document: RecordedFile) -> str:
    """What a file that no reader understands looks like, without its values."""
    names = ", ".join(repr(name)[:40] for name in [*document.objects[0]][:_SHOWN_KEYS])
    what = "lines of JSON objects" if document.is_lines else "a JSON object"
    return f"{what} with {names or 'no keys'}"
