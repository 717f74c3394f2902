"""Which tool call a piece of a stream belongs to, and whether that call is one of the gateway's own tool.

Servers number calls in different ways: an index for each; index 0 for all; no index. Some give the id and the
name with the first piece only, some with each, and some send the name itself in pieces.
"""

import hashlib
from typing import Final, Literal

import msgspec

from gateway.wire.body import JSON_ERRORS, JsonFields
from gateway.wire.raw_json import encode_json, join_halves
from gateway.wire.recall import RECALL_TOOL, RecallCall

# unknown: its name may still become that of the gateway's tool.
CallOwner = Literal["unknown", "client", "gateway"]

_READ_KEYS: Final = frozenset({"index", "id", "type", "function"})
# Of arguments. No query is so long, and servers without ids send each call as one piece.
_LONGEST_CHARS: Final = 16_384
_READ_FUNCTION_KEYS: Final = frozenset({"name", "arguments"})


class TrackedCall:
    """One call, as far as its pieces have come.

    at: calls of the client before it. is_moved: one of the gateway's calls stands before it. is_shown: the
    client has seen a piece of it.
    """

    def __init__(self) -> None:
        self.owner: CallOwner = "unknown"
        self.id = ""
        self.at = 0
        self.is_moved = self.is_shown = False
        self._name = ""
        self._arguments: list[str] = []
        # What else the upstream says of it: some want signatures back that they send here.
        self._fields: JsonFields = {}
        self._function_fields: JsonFields = {}

    def add(self, piece: JsonFields) -> None:
        function = _object(piece.get("function"))
        self.id = self.id or _text(piece.get("id"))
        arguments = read_arguments(function)
        if not self._is_repeated(arguments):
            self._arguments.append(arguments)
        _keep(self._fields, piece, _READ_KEYS)
        _keep(self._function_fields, function, _READ_FUNCTION_KEYS)
        if self.owner == "unknown":
            self._name += _text(function.get("name"))
            self.owner = _find_owner(self._name, piece)

    def may_end_before(self, piece: JsonFields) -> bool:
        """Whether a piece with the same index, or without one, begins another call."""
        function = _object(piece.get("function"))
        name, call_id = _text(function.get("name")), _text(piece.get("id"))
        if not name:
            return False
        if call_id and self.id:
            return call_id != self.id
        # Without ids, a call that is complete is followed by another one.
        return bool(read_arguments(function)) and self._is_complete()

    def _is_repeated(self, arguments: str) -> bool:
        """Some servers send a call once more as a whole, at its end."""
        is_own = self.owner == "gateway" and bool(arguments)
        return is_own and self._is_complete() and arguments == "".join(self._arguments)

    def _is_complete(self) -> bool:
        """Asked only where it cannot be seen otherwise, and not of calls that are long: it parses them."""
        if sum(map(len, self._arguments)) > _LONGEST_CHARS:
            return False
        return _parse_object("".join(self._arguments)) is not None

    def read_call(self) -> RecallCall:
        """Of the gateway's tool."""
        arguments = _parse_object("".join(self._arguments)) or {}
        query = arguments.get("query")
        if not isinstance(query, str) or not query.strip():
            return RecallCall(self.id, None)
        return RecallCall(self.id, join_halves(query))

    def render(self) -> bytes:
        """As one call of a message, for the upstream. Templates of some servers fail on arguments that are no
        JSON object, so these are left out.
        """
        arguments = join_halves("".join(self._arguments))
        function = {
            "name": RECALL_TOOL,
            "arguments": arguments if _parse_object(arguments) is not None else "{}",
            **self._function_fields,
        }
        return encode_json({"id": self.id, "type": "function", "function": function, **self._fields})


class CallTracker:
    """The calls of one response, in the order in which they began."""

    def __init__(self) -> None:
        self.calls: list[TrackedCall] = []
        self._by_index: dict[int, TrackedCall] = {}

    def add(self, piece: object) -> TrackedCall:
        """The call that a piece belongs to. The piece of an unknown kind is a call of the client."""
        fields = _object(piece)
        index = fields.get("index")
        number = index if isinstance(index, int) and not isinstance(index, bool) else None
        call = self._find(number, fields)
        if call is None or call.may_end_before(fields):
            call = TrackedCall()
            self.calls.append(call)
        if number is not None:
            self._by_index[number] = call
        call.add(fields)
        return call

    def add_whole(self, item: object) -> None:
        """A call that has come as one, in a message."""
        call = TrackedCall()
        self.calls.append(call)
        call.add(_object(item))

    def close(self) -> None:
        """No further piece comes: a call whose name is not complete is no call of the gateway's tool."""
        for call in self.calls:
            if call.owner == "unknown":
                call.owner = "client"

    def place(self) -> None:
        """Counts the calls, as far as their owners are known."""
        at = 0
        is_moved = False
        for call in self.calls:
            call.at, call.is_moved = at, is_moved
            at += call.owner == "client"
            is_moved = is_moved or call.owner == "gateway"

    def name_calls(self, salt: str) -> None:
        """A call has to be answered by its id, so those without get one. salt: of this response only."""
        for number, call in enumerate(self.calls):
            if not call.id and call.owner == "gateway":
                seed = f"{salt} {number}".encode("utf-8", "surrogatepass")
                call.id = "call_" + hashlib.sha256(seed).hexdigest()[:24]

    def list_own(self) -> list[TrackedCall]:
        """Calls of the gateway's tool."""
        return [call for call in self.calls if call.owner == "gateway"]

    def _find(self, number: int | None, piece: JsonFields) -> TrackedCall | None:
        if number is not None:
            return self._by_index.get(number)
        call_id = _text(piece.get("id"))
        named = (call for call in self.calls if call_id and call.id == call_id)
        return next(named, self.calls[-1] if self.calls else None)


def read_arguments(function: JsonFields) -> str:
    """As a text. Some servers send the object itself."""
    arguments = function.get("arguments")
    if isinstance(arguments, dict):
        return encode_json(arguments).decode()
    return _text(arguments)


def _find_owner(name: str, piece: JsonFields) -> CallOwner:
    if name == RECALL_TOOL:
        return "gateway"
    is_function = piece.get("type", "function") in ("function", "", None) and "custom" not in piece
    return "unknown" if is_function and RECALL_TOOL.startswith(name) else "client"


def _keep(kept: JsonFields, piece: JsonFields, read: frozenset[str]) -> None:
    for key, value in piece.items():
        if key not in read and value not in (None, ""):
            kept[key] = value


def _parse_object(text: str) -> JsonFields | None:
    try:
        value = msgspec.json.decode(join_halves(text))
    except JSON_ERRORS:
        return None
    return value if isinstance(value, dict) else None


def _object(value: object) -> JsonFields:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
