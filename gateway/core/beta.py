"""Did the caller ask for the long window? By the beta flag of document 003 §8, on a Sonnet model.

Knows nothing of limits. The document lists Sonnet 4 and 4.5; to a Sonnet of the third generation the
flag means nothing.
"""

from collections.abc import Iterable
from typing import Final

_HEADER: Final = b"anthropic-beta"
_LONG_WINDOW: Final = b"context-1m-2025-08-07"
_MODEL: Final = "sonnet"
# claude-3-5-sonnet, claude-3.7-sonnet, sonnet-3.5: 200K, whatever a header says.
_THIRD_GENERATION: Final = ("claude-3", "claude3", "sonnet-3")


def has_long_window(model: str, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """`headers`: names and values as they came. Of other models the headers are not even looked at."""
    if _MODEL not in model or any(name in model for name in _THIRD_GENERATION):
        return False
    return any(
        _LONG_WINDOW in [flag.strip() for flag in value.split(b",")]
        for name, value in headers
        if len(name) == len(_HEADER) and name.lower() == _HEADER
    )
