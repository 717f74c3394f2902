"""Makes the bodies of requests that repeat a growing history, without writing the history anew."""

from collections.abc import Iterable, Sequence

import msgspec


class GrowingBody:
    """A body whose last field is a list of messages or items."""

    def __init__(self, fields: Iterable[tuple[str, bytes]], list_name: str) -> None:
        """fields: name and raw JSON of what stands before the list."""
        parts = [msgspec.json.encode(name) + b":" + raw for name, raw in fields]
        self._data = bytearray(b"{" + b",".join([*parts, msgspec.json.encode(list_name) + b":["]))
        self._is_empty = True

    def add(self, items: Sequence[bytes]) -> None:
        for item in items:
            if not self._is_empty:
                self._data += b","
            self._data += item
            self._is_empty = False

    def render(self) -> bytes:
        return bytes(self._data) + b"]}"
