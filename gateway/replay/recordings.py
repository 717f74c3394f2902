"""Recordings as values: a file as JSON objects, and the requests that its client sent.

A value of a file is parsed when it is asked for. Session files hold a history, not requests: a request is cut
out of it before each reply of the model.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, SupportsBytes

import msgspec

from gateway.core.errors import BeyondBounds
from gateway.wire.body import JSON_ERRORS, parse_raw_fields, parse_value
from gateway.wire.usage import find_usage

CHAT_PATH: Final = "/v1/chat/completions"
MESSAGES_PATH: Final = "/v1/messages"
RESPONSES_PATH: Final = "/v1/responses"

# By key.
RecordedFields = dict[str, msgspec.Raw]

_ERRORS: Final = (*JSON_ERRORS, BeyondBounds)
# Of a file that is no recording, so much is named.
_SHOWN_KEYS: Final = 6
# A recording is recognized by its first objects.
_SAMPLE: Final = 20
_NULL: Final = msgspec.Raw(b"null")


class ReplayError(Exception):
    """What ends a replay before it begins: a file, a policy or an option that cannot be used. The text can be
    shown to the person who typed the command.
    """


class NotARecording(ReplayError):
    """A file that no reader understands. The text says what was seen instead."""


class RecordedUsage(msgspec.Struct, frozen=True):
    """Tokens as the upstream reported them. prompt_tokens includes cached ones. output_tokens None: what was
    recorded is no count of the whole reply.
    """

    prompt_tokens: int
    output_tokens: int | None = None


class RecordedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request as its client sent it."""

    path: str
    body: bytes
    # Without credentials.
    headers: tuple[tuple[str, str], ...] = ()
    usage: RecordedUsage | None = None
    # What the model replied: messages or items in the form of the format; empty if it is not known.
    reply: tuple[bytes, ...] = ()
    # Whether the upstream refused it, or broke off.
    has_failed: bool = False


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """What one client sent, oldest first. All of it was read by one reader."""

    # The form of the file, in words for people.
    kind: str
    # Makes the requests; may be called more than once.
    list_requests: Callable[[], Iterator[RecordedRequest]]
    # How many requests there are.
    count: int
    # Lines or entries that could not be read.
    skipped: int = 0


# Requests that are cut out of a history


@dataclass(slots=True)
class CutRequest:
    """A request whose history is the first `end` of some items. Its body is made when it is asked for: all
    bodies together are many times the file.
    """

    path: str
    # Name and raw JSON of what stands before the history.
    fields: Sequence[tuple[str, bytes]]
    items: Sequence[SupportsBytes]
    end: int
    reply: list[SupportsBytes]
    headers: tuple[tuple[str, str], ...] = ()
    usage: RecordedUsage | None = None

    def render(self) -> RecordedRequest:
        fields = b"".join(msgspec.json.encode(name) + b":" + raw + b"," for name, raw in self.fields)
        name = b"input" if self.path == RESPONSES_PATH else b"messages"
        history = [bytes(item) for item in self.items[: self.end]] or [b""]
        # One copy, as it may have megabytes.
        history[0] = b'{%b"%b":[' % (fields, name) + history[0]
        history[-1] += b"]}"
        return RecordedRequest(
            path=self.path,
            body=b",".join(history),
            headers=self.headers,
            usage=self.usage,
            reply=tuple(map(bytes, self.reply)),
        )


class History:
    """Messages or items as they were said. Replies in a row are one; the first one cuts a request, which gets
    the fields and the headers of that time. What a history begins with is no reply to anything.

    cuts: where the requests go; those of several histories may be in one list.
    """

    def __init__(
        self, path: str, fields: Sequence[tuple[str, bytes]] = (), cuts: list[CutRequest] | None = None
    ) -> None:
        self.fields = fields
        self.headers: tuple[tuple[str, str], ...] = ()
        self.cuts: list[CutRequest] = [] if cuts is None else cuts
        self.is_replying = False
        self._path = path
        # Cuts refer to it, so it only grows or gives way to another one.
        self._items: list[SupportsBytes] = []
        self._newest: CutRequest | None = None

    @property
    def items(self) -> Sequence[SupportsBytes]:
        return self._items

    def add(self, item: SupportsBytes, *, is_reply: bool = False) -> None:
        if is_reply and not self.is_replying:
            self._newest = self._cut() if self._items else None
        if is_reply and self._newest is not None:
            self._newest.reply.append(item)
        self.is_replying = is_reply
        self._items.append(item)

    def restart(self, items: Sequence[SupportsBytes] = ()) -> None:
        self._items = [*items]
        self.is_replying = False

    def finish(self) -> None:
        """What has no reply was a request, too."""
        if self._items and not self.is_replying:
            self._cut()

    def make_recording(self, kind: str, skipped: int) -> Recording:
        cuts = self.cuts
        return Recording(
            kind=kind, list_requests=lambda: (cut.render() for cut in cuts), count=len(cuts), skipped=skipped
        )

    def _cut(self) -> CutRequest:
        cut = CutRequest(self._path, self.fields, self._items, len(self._items), [], self.headers)
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


def read_usage(fields: RecordedFields, name: str = "usage") -> RecordedUsage | None:
    """A usage in any of the forms of the APIs; None if there is none."""
    value = find_value(fields, name)
    found = find_usage(value) if isinstance(value, Mapping) else None
    return RecordedUsage(found.prompt_tokens, found.output_tokens) if found is not None else None


def describe_keys(document: RecordedFile) -> str:
    """What a file that no reader understands looks like, without its values."""
    names = ", ".join(repr(name)[:40] for name in [*document.objects[0]][:_SHOWN_KEYS])
    what = "lines of JSON objects" if document.is_lines else "a JSON object"
    return f"{what} with {names or 'no keys'}"
