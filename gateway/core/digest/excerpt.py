"""Quotes texts of the history as items of a list, cut if there is no room for all of them.

An item begins with a dash, and its other lines are indented, so that no line of a text looks like a heading.
Cut texts and left-out items are noted.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gateway.core.digest.allocation import allocate
from gateway.core.history.transcript import neutralize

_DASH: Final = "- "
_INDENT: Final = "  "
# In a smaller room the long note would take too much of it.
_SHORT_CHARS: Final = 160
_SHORT_NOTE: Final = " … "
# A shorter excerpt says nothing.
_MIN_CHARS: Final = 120
_LEFT_OUT: Final = re.compile(r"\[(\d{1,9}) more left out\]")
# The longest such line, including its dash and line end.
_LEFT_OUT_CHARS: Final = 32
# A longer text is always cut. That depends on the text alone, because a rendered item may be shorter.
_WHOLE_CHARS: Final = 100_000
# JSON may contain a lone surrogate, which cannot be encoded.
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Items:
    # In the order of the list.
    texts: Sequence[str]
    # Positions of the texts, the most important first.
    order: Sequence[int]
    # In the order of importance.
    weights: Sequence[int]
    # The number of items that were left out before.
    missing: int = 0


def render_items(items: Items, room: int) -> str:
    """The list in at most `room` characters; what does not fit is cut in the middle or left out.

    The room must have at least 90 characters unless everything fits.
    """
    whole = _render_candidates(items, room)
    if _fits(items, whole, room):
        return _render_lines(items, whole)
    order = items.order[: room // 3]
    # Including the line end. A text longer than the room cannot fit.
    needs = [(len(whole[at]) if at in whole else room + 1) + 1 for at in order]
    shares = allocate(needs, items.weights, room - _LEFT_OUT_CHARS, _MIN_CHARS)
    if not any(shares):
        shares = [room - _LEFT_OUT_CHARS]
    lines = {
        at: whole[at] if need <= share else _cut(items.texts[at], share - 1)
        for at, need, share in zip(order, needs, shares, strict=False)
        if share
    }
    return _render_lines(items, lines)


def render_whole_items(items: Items, room: int) -> str:
    """The same for names: what does not fit as a whole is left out."""
    whole = _render_candidates(items, room)
    if _fits(items, whole, room):
        return _render_lines(items, whole)
    lines: dict[int, str] = {}
    left = room - _LEFT_OUT_CHARS
    for at, line in whole.items():
        if len(line) < left:
            lines[at] = line
            left -= len(line) + 1
    return _render_lines(items, lines)


def _render_candidates(items: Items, room: int) -> dict[int, str]:
    """Items that may fit, by position, the most important first.

    An item and its line end have at least three characters, which limits the number of candidates.
    """
    order = items.order[: room // 3 + 1]
    return {at: _render_item(items.texts[at]) for at in order if len(items.texts[at]) <= _WHOLE_CHARS}


def _fits(items: Items, whole: dict[int, str], room: int) -> bool:
    size = sum(map(len, whole.values())) + len(whole) - 1
    return not items.missing and len(whole) == len(items.texts) and size <= room


def _render_lines(items: Items, lines: dict[int, str]) -> str:
    """The lines in the order of the list, after the number of items that are left out."""
    missing = items.missing + len(items.texts) - len(lines)
    note = [f"{_DASH}[{min(missing, 999_999_999)} more left out]"] if missing else []
    return "\n".join([*note, *(lines[at] for at in sorted(lines))])


def parse_left_out(text: str) -> int | None:
    """The number in a note on left-out items; None for any other text."""
    found = _LEFT_OUT.fullmatch(text)
    return int(found[1]) if found else None


def parse_items(lines: Sequence[str]) -> list[str]:
    """The texts of a rendered list."""
    texts: list[list[str]] = []
    for line in lines:
        if line.startswith(_DASH):
            texts.append([line[len(_DASH) :]])
        elif texts:
            texts[-1].append(line.removeprefix(_INDENT))
    return ["\n".join(text).rstrip() for text in texts]


def _cut(text: str, room: int) -> str:
    """An item of at most `room` characters (at least 50): head and tail of the text, and its length."""
    text = text.strip()
    note = f"\n{_INDENT}[... cut; {len(text)} characters in all ...]\n{_INDENT}"
    if room < _SHORT_CHARS:
        note = _SHORT_NOTE
    keep = room - len(note)
    tail = keep // 3
    head = _render_item(text[:room])[: keep - tail].rstrip()
    # The cut may produce the beginning of a fence.
    head = neutralize(head)[: keep - tail]
    return head + note + _render_item(text[-room:])[-tail:]


def _render_item(text: str) -> str:
    lines = neutralize(_SURROGATE.sub("\ufffd", text)).strip().splitlines()
    return _DASH + "\n".join(_INDENT + line if line.strip() else "" for line in lines)[len(_INDENT) :]
