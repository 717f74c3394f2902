"""Blocks in tags inside of a text: what clients put beside a user's words, and calls that models write."""

import re
from collections.abc import Iterator
from typing import NamedTuple


class TaggedBlock(NamedTuple):
    """start, end: with its tags. text: between them."""

    start: int
    end: int
    name: str
    text: str


def iter_blocks(text: str, opening: re.Pattern[str]) -> Iterator[TaggedBlock]:
    """In their order, without those inside of others. opening: an opening tag, with its name as the first
    group. What is not closed is no block. Looks at each place once, and for each name until one is not
    closed.
    """
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
        at = closing + len(tag) + 3
        yield TaggedBlock(found.start(), at, tag, text[found.end() : closing])


def without_blocks(text: str, opening: re.Pattern[str]) -> str:
    """A block that is not closed stays; a text without blocks is returned unchanged."""
    if "<" not in text:
        return text
    kept, at = list[str](), 0
    for block in iter_blocks(text, opening):
        kept.append(text[at : block.start])
        at = block.end
    return "".join((*kept, text[at:]))
