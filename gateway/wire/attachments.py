"""The size of content parts that are not text: attachments by their kind, other parts by their words."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from gateway.core.sizing.attachments import ATTACHMENT_TOKENS, Attachment

# No word is this long.
_BLOB_CHARACTERS: Final = 1_024


def measure_parts(
    parts: Iterable[Mapping[str, object]], attachments: Mapping[str, Attachment]
) -> tuple[int, list[str]]:
    """Tokens of the parts whose type is an attachment, and the words of all other parts."""
    tokens = 0
    words: list[str] = []
    for part in parts:
        kind = part.get("type")
        if isinstance(kind, str) and kind in attachments:
            tokens += ATTACHMENT_TOKENS[attachments[kind]]
        else:
            words.extend(iter_words(part))
    return tokens, words


def iter_words(value: object) -> Iterator[str]:
    """The strings in a JSON value, in order, except those that are base64."""
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
