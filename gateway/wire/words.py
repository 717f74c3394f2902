"""The words of a content part that no format names, and what is no word: bytes in base64."""

from collections.abc import Iterator
from typing import Final

# No word is that long.
_BLOB_CHARACTERS: Final = 1_024


def iter_words(value: object) -> Iterator[str]:
    """The strings in a JSON value, in order, without those that are bytes in base64."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            if not _is_blob(value):
                yield value
        elif isinstance(value, dict):
            waiting.extend(reversed(value.values()))
        elif isinstance(value, list):
            waiting.extend(reversed(value))


def _is_blob(text: str) -> bool:
    if text.startswith("data:"):
        return True
    start = text[:_BLOB_CHARACTERS]
    return len(start) == _BLOB_CHARACTERS and start.isascii() and not any(map(str.isspace, start))
