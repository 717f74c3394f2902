"""Replacing slices of a body and leaving every other byte where it is."""

from collections.abc import Iterable
from typing import NamedTuple


class Edit(NamedTuple):
    """Replace `start:end` of the body by `new`. An empty range inserts."""

    start: int
    end: int
    new: bytes


def apply_edits(data: bytes, edits: Iterable[Edit]) -> bytes:
    """The body with all edits applied. Edits must not overlap; their order does not matter."""
    pieces: list[bytes | memoryview] = []
    view = memoryview(data)
    at = 0
    for edit in sorted(edits):
        if edit.start < at:
            raise ValueError("edits overlap")
        pieces += [view[at : edit.start], edit.new]
        at = edit.end
    if not pieces:
        return data
    return b"".join([*pieces, view[at:]])
