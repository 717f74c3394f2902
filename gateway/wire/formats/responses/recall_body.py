"""Responses: the responses of one turn that are not streamed as one response, without the calls of the
gateway's tool.
"""

from gateway.core.history.recall import ReplyMark
from gateway.wire.body import parse_value, place_fields
from gateway.wire.edits import apply_edits
from gateway.wire.formats.responses.recall_items import (
    ITEM_ERRORS,
    ReplyItems,
    list_output,
    make_response_edits,
)
from gateway.wire.recall import RecallRequest
from gateway.wire.response.held_body import HeldBody


class ResponsesBodyStitcher:
    """See ReplyStitcher."""

    def __init__(self) -> None:
        self._turn = ReplyItems()
        # The raw id of the first response, once that has ended.
        self._first_name: bytes | None = None
        # That of this response, if it is another one, and what is shown of those before it.
        self._name: bytes | None = None
        self._before: list[bytes] = []
        self._held = HeldBody()
        self._is_understood = False

    @property
    def reply(self) -> ReplyMark:
        return self._turn.mark

    @property
    def has_shown(self) -> bool:
        return self._held.is_passing

    def feed(self, piece: bytes) -> bytes:
        return self._held.feed(piece)

    def end(self) -> RecallRequest | None:
        self._is_understood = False
        data = self._held.end()
        try:
            return self._read(data) if data is not None else None
        except ITEM_ERRORS:
            return None

    def finish(self) -> bytes:
        data = self._held.data
        if not self._is_understood:
            return data
        return apply_edits(data, make_response_edits(data, self._name, self._before))

    def _read(self, data: bytes) -> RecallRequest | None:
        """Raises ITEM_ERRORS."""
        places = place_fields(data)
        values = {key: parse_value(data[places[key].start : places[key].end]) for key in ("object", "status")}
        if values["object"] != "response":
            return None
        items = list_output(data)
        name, before = self._first_name, list(self._turn.raws)
        make_response_edits(data, name, before)
        request = self._turn.add(items, values["status"] == "completed")
        self._name, self._before, self._is_understood = name, before, True
        if self._first_name is None:
            self._first_name = data[places["id"].start : places["id"].end] if "id" in places else b""
        return request
