"""Rows of the list of conversations."""

from typing import Any

from msgspec.structs import replace

from gateway.activity.rows import Row, make_row
from tests.activity.talk import make_book, plan, turn

_TIME = "2026-11-23T05:00:00.{:03}+00:00"


def row(identity: str, milliseconds: int, **more: Any) -> Row:
    """Seen at this time."""
    book = make_book()
    book.note_request(turn(identity), plan(), None)
    activity = book.find(identity)
    assert activity is not None
    return replace(make_row(activity), last_seen=_TIME.format(milliseconds), **more)
