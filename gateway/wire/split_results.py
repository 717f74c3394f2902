"""A slice of a body with the contents of its tool results taken out, and those contents."""

from typing import NamedTuple


class SplitResults(NamedTuple):
    """frame: the slice with nothing in place of each content. contents: as JSON values, in their order."""

    frame: bytes
    contents: tuple[object, ...]
