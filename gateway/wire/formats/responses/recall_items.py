"""Responses: the items of one turn, with calls of the gateway's tool taken out."""

from collections.abc import Sequence
from typing import Final

import msgspec

from gateway.core.errors import Unreadable
from gateway.core.history.recall import ReplyMark, make_reply_mark
from gateway.wire.body import JSON_ERRORS, parse_raw_fields, parse_value, place_fields, place_items
from gateway.wire.edits import Edit
from gateway.wire.formats.responses.items import Item, find_call, kind_of, parse_items
from gateway.wire.recall import RECALL_TOOL, RecallCall, RecallRequest

# What is raised for an item that is not understood.
ITEM_ERRORS: Final = (Unreadable, ValueError, KeyError, *JSON_ERRORS)
_RECALL_BYTES: Final = RECALL_TOOL.encode()
_NO_ARGUMENTS: Final = msgspec.Raw(b'"{}"')


def parse_item(raw: bytes) -> Item:
    """Raises ITEM_ERRORS."""
    (item,) = parse_items(raw)
    return item


def is_recall(item: Item) -> bool:
    return kind_of(item) == "function_call" and item.get("name") == RECALL_TOOL


def is_thought(item: Item) -> bool:
    return kind_of(item) == "reasoning"


def mark_items(items: Sequence[Item]) -> ReplyMark:
    calls = [call.id for item in items if (call := find_call(item)) is not None]
    return make_reply_mark(calls, [text for item in items for text in _list_texts(item)])


def _list_texts(item: Item) -> list[str]:
    content = item.get("content") if kind_of(item) == "message" else None
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return [text for text in texts if isinstance(text, str)]


class ReplyItems:
    """Is given the items of each response of one turn."""

    def __init__(self) -> None:
        self._shown: list[Item] = []
        # The same, as the upstream sent them.
        self.raws: list[bytes] = []

    @property
    def mark(self) -> ReplyMark:
        return mark_items(self._shown)

    def add(self, raws: Sequence[bytes], is_completed: bool) -> RecallRequest | None:
        """The items of a response, and whether it has come to its end.

        Calls stand where the first one of the response stood: reasoning and the item behind it are one unit.
        Raises ITEM_ERRORS; then nothing is added.
        """
        items = [(raw, parse_item(raw)) for raw in raws]
        calls = [(_as_call(raw, item), item) for raw, item in items if is_recall(item)]
        seen = [(raw, item) for raw, item in items if not is_recall(item)]
        first = next((index for index, (_, item) in enumerate(items) if is_recall(item)), len(items))
        before = [*self._shown, *(item for _, item in items[:first])]
        self._shown += [item for _, item in seen]
        self.raws += [raw for raw, _ in seen]
        found = tuple(RecallCall(str(item.get("call_id") or ""), _find_query(item)) for _, item in calls)
        if not found or not is_completed or not all(call.id for call in found):
            return None
        is_parallel = any(find_call(item) is not None for _, item in seen)
        behind = [(raw, item) for raw, item in items[first:] if not is_recall(item)]
        told = [raw for raw, item in [*items[:first], *calls, *behind] if _can_be_sent(item)]
        return RecallRequest(
            calls=found,
            call=b",".join(raw for raw, _ in calls).decode(),
            reply="" if is_parallel else b",".join(told).decode(),
            shown=len(before),
            said=sum(not is_thought(item) for item in before),
            is_parallel=is_parallel,
        )


def _as_call(raw: bytes, item: Item) -> bytes:
    """The call as it is sent back. An item with an id is looked up where the upstream stores items, and this
    one is not stored. Servers parse the arguments, so those that cannot be read are empty.
    """
    fields = parse_raw_fields(raw)
    fields.pop("id", None)
    if _find_query(item) is None:
        fields["arguments"] = _NO_ARGUMENTS
    return msgspec.json.encode(fields)


def _can_be_sent(item: Item) -> bool:
    """Reasoning that is not stored is known only by its encrypted content."""
    return not is_thought(item) or isinstance(item.get("encrypted_content"), str)


def _find_query(item: Item) -> str | None:
    arguments = item.get("arguments")
    try:
        given = parse_value(arguments.encode()) if isinstance(arguments, str) else None
    except (Unreadable, UnicodeEncodeError, *JSON_ERRORS):
        return None
    query = given.get("query") if isinstance(given, dict) else None
    return query if isinstance(query, str) else None


def list_output(response: bytes) -> list[bytes]:
    """The items in a response object. Raises Unreadable."""
    place = place_fields(response).get("output")
    output = response[place.start : place.end] if place is not None else b"[]"
    return _list_raws(output) if output != b"null" else []


def make_response_edits(
    response: bytes, name: bytes | None = None, before: Sequence[bytes] = ()
) -> list[Edit]:
    """Edits of a response object. The tool is taken out of the tools that it repeats, and its calls out of
    the output.

    name: the raw id of the first response of the turn; None for that response itself. before: what was shown
    of the responses before this one. Raises ITEM_ERRORS.
    """
    places = place_fields(response)
    edits = []
    for key, is_ours in (("tools", _is_tool), ("output", is_recall)):
        if key not in places:
            continue
        place = places[key]
        array = response[place.start : place.end]
        kept = [*before] if key == "output" else []
        if not array.startswith(b"[") or (not kept and _RECALL_BYTES not in array):
            continue
        values = [(raw, parse_value(raw)) for raw in _list_raws(array)]
        own = [raw for raw, value in values if not (isinstance(value, dict) and is_ours(value))]
        if not kept and len(own) == len(values):
            continue
        edits.append(Edit(place.start, place.end, b"[%s]" % b",".join([*kept, *own])))
    if name and "id" in places:
        edits.append(Edit(places["id"].start, places["id"].end, name))
    return edits


def _is_tool(tool: Item) -> bool:
    return tool.get("name") == RECALL_TOOL


def _list_raws(array: bytes) -> list[bytes]:
    return [array[place.start : place.end] for place in place_items(array)]
