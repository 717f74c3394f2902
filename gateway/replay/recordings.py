"""Recordings as values: a file as JSON objects, and the requests that its client sent.

A value of a file is parsed when it is asked for. Session files hold a history, not requests: a request is cut
out of it before each reply of the model.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, SupportsBytes

import msgspec

from gateway.core.errors import BeyondBounds
from gateway.core.history.message import Role
from gateway.wire.body import JSON_ERRORS, parse_raw_fields, parse_value
from gateway.wire.responses import role_of
from gateway.wire.usage import find_usage

CHAT_PATH: Final = "/v1/chat/completions"
MESSAGES_PATH: Final = "/v1/messages"
RESPONSES_PATH: Final = "/v1/responses"

# By key.
RecordedFields = dict[str, msgspec.Raw]

_ERRORS: Final = (*JSON_ERRORS, BeyondBounds)
# A recording is recognized by its first objects.
_SAMPLE: Final = 20
_NULL: Final = msgspec.Raw(b"null")


class ReplayError(Exception):
    """What ends a replay before it begins: a file, a policy or an option that cannot be used. The text can be
    shown to the person who typed the command.
    """


class NotARecording(ReplayError):
    """A file that no reader understands. The text says what was seen instead."""


class RecordedUsage(NamedTuple):
    """Tokens as the upstream reported them. prompt_tokens includes cached ones. output_tokens None: what was
    recorded is no count of the whole reply.
    """

    prompt_tokens: int
    output_tokens: int | None = None


@dataclass(slots=True, kw_only=True)
class RecordedRequest:
    """One request as its client sent it: `start`, then the first `end` of some items of a history; without
    items, `start` is the whole body.

    headers: without credentials. reply: what the model replied: messages or items in the form of the format;
    empty if it is not known. has_failed: whether the upstream refused it, or broke off.
    """

    path: str
    start: bytes
    items: Sequence[SupportsBytes] | None = None
    end: int = 0
    headers: tuple[tuple[str, str], ...] = ()
    usage: RecordedUsage | None = None
    reply: list[SupportsBytes] = field(default_factory=list)
    has_failed: bool = False

    @property
    def body(self) -> bytes:
        """Made when it is asked for: all bodies together are many times the file."""
        if self.items is None:
            return self.start
        history = [bytes(item) for item in self.items[: self.end]] or [b""]
        # One copy, as it may have megabytes.
        history[0] = self.start + history[0]
        history[-1] += b"]}"
        return b",".join(history)


class Recording(NamedTuple):
    """What one client sent, oldest first. All of it was read by one reader.

    kind: the form of the file, in words for people. skipped: lines or entries that could not be read.
    """

    kind: str
    requests: Sequence[RecordedRequest]
    skipped: int


class History:
    """Messages or items as they were said. Replies in a row are one; the first one cuts a request, which gets
    the fields and the headers of that time. What a history begins with is no reply to anything.

    cuts: where the requests go; those of several histories may be in one list.
    """

    def __init__(
        self,
        path: str,
        fields: Iterable[tuple[str, bytes]] = (),
        cuts: list[RecordedRequest] | None = None,
    ) -> None:
        self.headers: tuple[tuple[str, str], ...] = ()
        self.cuts: list[RecordedRequest] = [] if cuts is None else cuts
        self._path = path
        self._is_replying = False
        # Cuts refer to it, so it only grows or gives way to another one.
        self._items: list[SupportsBytes] = []
        self._newest: RecordedRequest | None = None
        self.set_fields(fields)

    @property
    def items(self) -> Sequence[SupportsBytes]:
        return self._items

    def set_fields(self, fields: Iterable[tuple[str, bytes]]) -> None:
        """Name and raw JSON of what requests from here on have before the history."""
        start = b"".join(msgspec.json.encode(name) + b":" + raw + b"," for name, raw in fields)
        self._start = b'{%b"%b":[' % (start, b"input" if self._path == RESPONSES_PATH else b"messages")

    def add(self, item: SupportsBytes, *, is_reply: bool = False) -> None:
        if is_reply and not self._is_replying:
            self._newest = self._cut() if self._items else None
        if is_reply and self._newest is not None:
            self._newest.reply.append(item)
        self._is_replying = is_reply
        self._items.append(item)

    def restart(self, items: Sequence[SupportsBytes] = ()) -> None:
        self._items = [*items]
        self._is_replying = False

    def finish(self) -> None:
        """What has no reply was a request, too."""
        if self._items and not self._is_replying:
            self._cut()

    def _cut(self) -> RecordedRequest:
        cut = RecordedRequest(
            path=self._path, start=self._start, items=self._items, end=len(self._items), headers=self.headers
        )
        self.cuts.append(cut)
        return cut


# Files


class RecordedFile(NamedTuple):
    """is_lines: the objects stand one a line. skipped: lines or entries that are damaged, or no objects."""

    objects: list[RecordedFields]
    is_lines: bool
    skipped: int

    @property
    def only(self) -> RecordedFields | None:
        """The object of a file that is one."""
        return self.objects[0] if not self.is_lines and len(self.objects) == 1 else None

    @property
    def sample(self) -> list[RecordedFields]:
        return self.objects[:_SAMPLE]


def parse_file(data: bytes) -> RecordedFile:
    """Raises NotARecording for what holds no JSON object."""
    whole = find_fields(data)
    if whole is not None:
        return RecordedFile([whole], is_lines=False, skipped=0)
    entries = find_list(msgspec.Raw(data)) if data.lstrip()[:1] == b"[" else None
    pieces = entries if entries is not None else [line for line in data.split(b"\n") if line.strip()]
    objects = [fields for piece in pieces if (fields := find_fields(piece)) is not None]
    if not objects:
        raise NotARecording("it holds no JSON object, neither as a whole nor in its lines")
    return RecordedFile(objects, entries is None, len(pieces) - len(objects))


def find_fields(raw: bytes | msgspec.Raw | None) -> RecordedFields | None:
    """The fields of an object; None for anything else."""
    if raw is None:
        return None
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


def find_object(fields: RecordedFields, name: str) -> RecordedFields:
    """An object of an object; empty if it is missing or anything else."""
    return find_fields(fields.get(name)) or {}


def read_usage(fields: RecordedFields, name: str = "usage") -> RecordedUsage | None:
    """A usage in any of the forms of the APIs; None if there is none."""
    value = find_value(fields, name)
    found = find_usage(value) if isinstance(value, Mapping) else None
    return RecordedUsage(found.prompt_tokens, found.output_tokens) if found is not None else None


def find_role(item: RecordedFields) -> Role:
    """Of a message or an item; "other" for what is neither."""
    return role_of({name: find_value(item, name) for name in ("type", "role", "call_id")})
