"""How requests name earlier responses or items that the upstream stores, and how responses give the names.

This module replaces names by what they stand for; `conversations.stored_responses` remembers that. Of
Responses `previous_response_id` stands for the history up to a response, `item_reference` for one item.
`threads` has those of Messages.

Where one key serves all tenants, a name is a way to what another tenant stored. So the guard reads names with
suspicion: a body that cannot be read here must not be one that the upstream reads.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol

import msgspec
from msgspec import Raw

from gateway.core.errors import Unreadable
from gateway.wire.body import (
    JSON_ERRORS,
    BodyBounds,
    Fields,
    Slice,
    mend_surrogates,
    or_none,
    parse_value,
    skip_spaces,
    split_fields_or_text,
)
from gateway.wire.edits import Edit, apply_edits
from gateway.wire.reading import ResponseDocument, list_nested, read_nested, read_text

# A million tokens, more than any reply. A larger response is not collected.
_MAX_BYTES: Final = 4 * 1024 * 1024
# An ASCII letter, or `_`, that is written as an escape. No serializer does that.
_ESCAPED: Final = re.compile(rb"\\u00(?:4[1-9a-fA-F]|5[0-9aAfF]|6|7[0-9aA])")
_NULL: Final = b"null"
_SPACES: Final = b" \t\r\n"
_decode = msgspec.json.Decoder().decode
_decode_list = msgspec.json.Decoder(list[Raw]).decode
_decode_items = msgspec.json.Decoder(list[dict[str, Raw]]).decode


@dataclass(frozen=True, slots=True)
class UsedNames:
    """What a request names instead of repeating it."""

    # The response that it continues.
    previous: str | None = None
    items: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NamedHistory:
    """The history up to a response."""

    # What the first request brought, a body.
    first: bytes
    # All of it, as raw items: messages and replies.
    items: list[bytes]


class StoredNames(Protocol):
    """What is stored under the names of one tenant; None if it is unknown.

    Raises BeyondBounds if it is larger than any body may be.
    """

    def find_response(self, name: str) -> NamedHistory | None:
        """With the response itself."""

    def find_item(self, name: str) -> bytes | None: ...


@dataclass(frozen=True, slots=True)
class Expanded:
    """A request with every name replaced by what it stands for."""

    # The body; the received object if it held no name.
    data: bytes
    # The response that the request continues, None if the request held the whole history.
    previous: str | None
    # A body with only the items that this request added, without names.
    own: bytes


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response that a later request may name: the items, and the name of each item that has one."""

    name: str
    items: tuple[bytes, ...]
    names: tuple[str | None, ...]


class ResponseCollector(ABC):
    """Puts one response together as the items that stand for it in a later request.

    A response that cannot be put together for certain is none.
    """

    def __init__(self) -> None:
        self._items: list[bytes] = []
        # Negative once there is nothing more to collect.
        self._room = _MAX_BYTES
        self._data: bytes | None = None

    def feed(self, documents: Sequence[ResponseDocument], data: bytes | None = None) -> StoredResponse | None:
        """Is fed the JSON objects of each event. The response, once, at the event that completes it.

        data: of the event. What does not stand in it word for word, as a reader had to mend it, is not kept.
        """
        if self._room < 0:
            return None
        self._data = data
        try:
            return self._collect(documents)
        except (ValueError, KeyError, RecursionError):
            self._room = -1
            self._items.clear()
            return None

    @abstractmethod
    def _collect(self, documents: Sequence[ResponseDocument]) -> StoredResponse | None:
        """Raises ValueError, KeyError or RecursionError for what is not understood."""

    def _take(self, raw: Raw) -> Raw:
        """Raises ValueError if it is too much, or not what was received."""
        self._room -= len(raw)
        if self._room < 0:
            raise ValueError("too large")
        if self._data is not None and bytes(raw) not in self._data:
            raise ValueError("mended")
        return raw


class StoredHistory(ABC):
    """How a request may name an earlier response or item that the upstream stores."""

    # Status and code of the API's own error for a name that it does not know.
    unknown_status: ClassVar[int]
    unknown_code: ClassVar[str]
    # After this error clients send their whole history.
    is_replayed: ClassVar[bool]
    # A new one for each response.
    collect: ClassVar[type[ResponseCollector]]
    # In lower case. A body without any of them, and without another spelling of them, names nothing.
    _words: ClassVar[tuple[bytes, ...]]

    @abstractmethod
    def find_names(self, data: bytes) -> UsedNames | None:
        """The names in a body. None if it is not understood. Raises BeyondBounds, and nothing else."""

    @abstractmethod
    def expand(self, data: bytes, names: StoredNames) -> Expanded | None:
        """None if a name is unknown, or the body is not understood. Raises BeyondBounds as the names do, and
        nothing else.
        """

    def find_used_paths(self, body: bytes, bounds: BodyBounds) -> set[str]:
        """The names in a body as paths of what is stored: `responses/ID`, also for items,
        `conversations/ID` or `messages/ID`.

        Raises Unreadable for a body that may name something in a way that is not understood, or beyond the
        bounds. Nearly every body names nothing for certain, after 1 ms for a megabyte: it holds neither the
        words, nor escaped letters, nor the NUL bytes of another encoding than UTF-8.
        """
        lowered = body.lower()
        is_suspicious = b"\0" in body or any(word in lowered for word in self._words)
        if not is_suspicious and _ESCAPED.search(body) is None:
            return set()
        try:
            return set(_make_paths(self._list_used(body, bounds)))
        except JSON_ERRORS as error:
            raise Unreadable("the body may name something stored") from error

    @abstractmethod
    def list_items(self, own: bytes) -> list[bytes]:
        """The items of a body that `expand` gave as `own`."""

    def may_be_name(self, raw: bytes) -> bool:
        """May this raw item be a name and nothing else? Cheap; a wrong yes only costs time."""
        return False

    @abstractmethod
    def find_given_names(self, documents: Sequence[ResponseDocument]) -> set[str]:
        """The names that an event of a response gives, by its JSON objects. Never raises.

        The first event names the response, so a response that is broken off has an owner, too.
        """

    @abstractmethod
    def _list_used(self, body: bytes, bounds: BodyBounds) -> Iterator[tuple[str, object]]:
        """Each name with the first part of its path; one that is no text may be another spelling of one.
        Keys are taken in any case, as some servers do.
        """


def _make_paths(named: Iterator[tuple[str, object]]) -> Iterator[str]:
    for kind, name in named:
        if name is not None and not isinstance(name, str):
            raise Unreadable("a name that is not text")
        if name is not None:
            yield f"{kind}/{name}"


class _ItemCollector(ResponseCollector):
    """Of Responses: from a stream one by one, from a whole body at once."""

    def _collect(self, documents: Sequence[ResponseDocument]) -> StoredResponse | None:
        if len(documents) != 1:
            return None
        (document,) = documents
        if document.type == "response.output_item.done" and document.item:
            self._items.append(bytes(self._take(document.item)))
            return None
        if document.type in ("response.completed", "response.incomplete"):
            response = document.response
        else:
            # A whole body, which is a response itself and has no type.
            is_final = document.type is None and document.status in ("completed", "incomplete")
            response = document if is_final else None
        if response is None:
            return None
        # Not parsed where the items came one by one: it repeats them.
        items = self._items or [bytes(item) for item in _decode_list(self._take(response.output) or b"[]")]
        self._room = -1
        name = read_text(response.id)
        names = [read_text(read_nested(Raw(item)).id) or None for item in items]
        return StoredResponse(name, tuple(items), tuple(names)) if name else None


class _Responses(StoredHistory):
    unknown_status = 400
    unknown_code = "previous_response_not_found"
    is_replayed = False
    collect = _ItemCollector
    _words = (b"previous_response_id", b"conversation", b"item_reference", b'"id"')

    _PREVIOUS: Final = "previous_response_id"
    _CONVERSATION: Final = "conversation"
    _REFERENCE: Final = "item_reference"
    _NAMING_EVENTS: Final = ("response.created", "response.output_item.added", "response.output_item.done")
    # Values that say nothing, without the spaces in them.
    _NOTHING: Final = frozenset({b"null", b"[]", b"{}", b'""'})
    # The fields of an item that only names what is stored.
    _NAMING_FIELDS: Final = frozenset({"id", "type", "status"})

    def _list_used(self, body: bytes, bounds: BodyBounds) -> Iterator[tuple[str, object]]:
        fields = split_fields_or_text(body, "input", bounds)
        for key, raw in fields.values.items():
            if key.lower() == self._PREVIOUS:
                yield "responses", _decode(raw)
            elif key.lower() == self._CONVERSATION:
                value = _decode(raw)
                yield "conversations", value.get("id") if isinstance(value, dict) else value
        place = fields.array
        array = body[place.start : place.end]
        for item in _decode_items(mend_surrogates(array)) if not array.startswith(b'"') else ():
            if self._is_reference(item):
                yield "responses", _decode(item["id"])

    def _is_reference(self, item: dict[str, Raw]) -> bool:
        """The type of a reference may be left out. Any other item that holds nothing but an id stands for
        what is stored under it, too: an image, or what the model has thought.
        """
        if "id" not in item:
            return False
        kind, role = (_decode(item.get(key, _NULL)) for key in ("type", "role"))
        if kind == self._REFERENCE or (kind is None and role is None):
            return True
        return all(
            key in self._NAMING_FIELDS or bytes(raw).translate(None, _SPACES) in self._NOTHING
            for key, raw in item.items()
        )

    def find_given_names(self, documents: Sequence[ResponseDocument]) -> set[str]:
        document = documents[0] if len(documents) == 1 else ResponseDocument()
        kind = document.type or ""
        if kind.startswith("response.") and kind not in self._NAMING_EVENTS:
            return set()
        holders = [response for response in (document.response, document) if response is not None]
        named = [nested for response in holders for nested in list_nested(response.output)]
        named.append(read_nested(document.item))
        ids = [each.id for each in (*named, *holders) if each is not document or not kind]
        return {name for name in map(read_text, ids) if name}

    def _split(self, data: bytes) -> Fields | None:
        """None for a body that names a `conversation`: others may add to it beside the gateway."""
        fields = split_fields_or_text(data, "input")
        return fields if fields.values.get(self._CONVERSATION, _NULL) == _NULL else None

    @or_none
    def find_names(self, data: bytes) -> UsedNames | None:
        fields = self._split(data)
        if fields is None:
            return None
        named = [self._find_reference(data[place.start : place.end]) for place in fields.items]
        return UsedNames(self._find_previous(fields), tuple(filter(None, named)))

    def _find_previous(self, fields: Fields) -> str | None:
        return msgspec.json.decode(fields.values.get(self._PREVIOUS, _NULL), type=str | None)

    @or_none
    def expand(self, data: bytes, names: StoredNames) -> Expanded | None:
        fields = self._split(data)
        if fields is None:
            return None
        own = [self._resolve(data[place.start : place.end], names) for place in fields.items]
        added = [raw for raw in own if raw is not None]
        previous = self._find_previous(fields)
        before = names.find_response(previous) if previous is not None else None
        if (before is None and previous is not None) or len(added) < len(own):
            return None
        if before is not None:
            array = fields.array
            edits = [
                Edit(array.start, array.end, _render_items([*before.items, *added])),
                self._remove_previous(data, fields.places[self._PREVIOUS]),
            ]
        else:
            edits = [
                Edit(place.start, place.end, raw)
                for place, raw in zip(fields.items, added, strict=True)
                if not data.startswith(raw, place.start)
            ]
        return Expanded(apply_edits(data, edits), previous, b'{"input":%s}' % _render_items(added))

    def may_be_name(self, raw: bytes) -> bool:
        return b'"item_reference"' in raw

    def _resolve(self, raw: bytes, names: StoredNames) -> bytes | None:
        """The item itself, or the item that a reference names; None if that is unknown."""
        name = self._find_reference(raw)
        if name is None:
            return raw
        return names.find_item(name) if name else None

    def _find_reference(self, raw: bytes) -> str | None:
        """The id in a reference, empty if it has none; None for any other item."""
        item = parse_value(raw) if self.may_be_name(raw) else None
        if not isinstance(item, dict) or item.get("type") != self._REFERENCE:
            return None
        name = item.get("id")
        return name if isinstance(name, str) else ""

    def list_items(self, own: bytes) -> list[bytes]:
        fields = split_fields_or_text(own, "input")
        return [_as_item(own[place.start : place.end]) for place in fields.items]

    def _remove_previous(self, data: bytes, value: Slice) -> Edit:
        """Removes the field with its key and one comma. Raises ValueError for a key written with escapes."""
        key = b'"%s"' % self._PREVIOUS.encode()
        start = data.rindex(key, 0, value.start)
        if data[start + len(key) : value.start].strip(_SPACES) != b":":
            raise ValueError("the key of the previous response was not found before its value")
        end = skip_spaces(data, value.end)
        if data[end : end + 1] == b",":
            return Edit(start, end + 1, b"")
        before = data[:start].rstrip(_SPACES)
        return Edit(len(before) - before.endswith(b","), value.end, b"")


def _as_item(raw: bytes) -> bytes:
    """A string is a user message."""
    return b'{"role":"user","content":%s}' % raw if raw.startswith(b'"') else raw


def _render_items(items: list[bytes]) -> bytes:
    return b"[" + b",".join(map(_as_item, items)) + b"]"


STORED_RESPONSES: Final = _Responses()
