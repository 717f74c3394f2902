"""Takes blocks in tags out of a text: what clients put beside a user's words."""

import re
from collections.abc import Iterator


def without_blocks(text: str, opening: re.Pattern[str]) -> str:
    """opening: an opening tag, with its name as the first group. A block that is not closed stays; a text
    without blocks is returned unchanged.
    """
    if "<" not in text:
        return text
    return "".join(_list_kept(text, opening))


def _list_kept(text: str, opening: re.Pattern[str]) -> Iterator[str]:
    at = 0
    unclosed: set[str] = set()
    for found in opening.finditer(text):
        tag = found.group(1)
        if found.start() < at or tag in unclosed:
            continue
        closing = text.find(f"</{tag}>", found.end())
        if closing < 0:
            unclosed.add(tag)
            continue
        yield text[at : found.start()]
        at = closing + len(tag) + 3
    yield text[at:]
