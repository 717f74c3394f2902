"""The head of a request that came before on the same connection, recognised by its bytes.

Agents send the same lines with each turn, but for the length of the body. What a parser made of them once
stands for all that are equal, byte for byte; nothing else is recognised.
"""

import re
from typing import Final

from gateway.downstream.request import RequestHead

_LENGTH_LINE: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)", re.IGNORECASE)
# A terabyte, less one byte.
_MOST_DIGITS: Final = 12


class RepeatedHead:
    """line: what the parser made of it."""

    def __init__(self, line: RequestHead, before: bytes, after: bytes) -> None:
        """before, after: the bytes around the digits of the length, up to the empty line."""
        self.line = line
        self._before = before
        self._digits_start = len(before)
        self._after = after

    def match(self, data: bytes) -> tuple[int, int] | None:
        """The length of the body, and where it starts in `data`; None unless that begins with the same
        head.
        """
        start = self._digits_start
        end = data.find(b"\r", start, start + _MOST_DIGITS + 1)
        if end < 0 or not data.startswith(self._before) or not data.startswith(self._after, end):
            return None
        digits = data[start:end]
        return (int(digits), end + len(self._after)) if digits.isdigit() else None


def learn_head(line: RequestHead, head: bytes) -> RepeatedHead | None:
    """head: all of it, with the empty line. None where it does not tell its length in one line."""
    found = _LENGTH_LINE.search(head)
    if found is None or _LENGTH_LINE.search(head, found.end()) is not None:
        return None
    return RepeatedHead(line, head[: found.start(1)], head[found.end(1) :])
