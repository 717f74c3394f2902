"""An answer that no upstream gave: one text of ours. How it looks is for the wire formats.

It cost no tokens: a format whose clients need usage says 0, the others say nothing.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalResponse:
    """id: without the prefix that each format puts before it. is_streamed: as it was asked for."""

    id: str
    model: str
    created_seconds: int
    text: str
    is_streamed: bool
