"""Responses: the responses of one turn that are not streamed as one response, without the calls of the
gateway's tool.
"""

from typing import Final

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

# A larger body passes as it comes.
_MAX_BYTES: Final = 16 * 1024 * 1024


class ResponsesBodyStitcher:
    """See ReplyStitcher."""

    has_shown = False

    def __init__(self) -> None:
        self._turn = ReplyItems()
        # The raw id of the first response, once that has ended.
        self._first_name: bytes | None = None
        # That of this response, if it is another one, and what is shown of those before it.
        self._name: bytes | None = None
        self._before: list[bytes] = []
        self._data = bytearray()
        self._is_over = self._is_passing = self._is_understood = False

    @property
    def reply(self) -> ReplyMark:
        return self._turn.mark

    def feed(self, piece: bytes) -> bytes:
        self._begin_next()
        self._data += piece
        if not self._is_passing and len(self._data) <= _MAX_BYTES:
            return b""
        self._is_passing = self.has_shown = True
        passed = bytes(self._data)
        self._data.clear()
        return passed

    def end(self) -> RecallRequest | None:
        self._begin_next()
        self._is_over = True
        if self._is_passing:
            return None
        try:
            return self._read(bytes(self._data))
        except ITEM_ERRORS:
            return None

    def finish(self) -> bytes:
        data = bytes(self._data)
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

    def _begin_next(self) -> None:
        if self._is_over:
            self._is_over = self._is_understood = False
            self._data.clear()
