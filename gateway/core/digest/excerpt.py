"""Texts of the history as the items of a list, cut where there is no room for all of them.

An item begins with a dash, its further lines are indented: no line of a text can stand where a heading would.
What is cut says so.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gateway.core.digest.allocation import allocate
from gateway.core.history.transcript import neutralize

_DASH: Final = "- "
_INDENT: Final = "  "
# Below this the long note would take a good part of what is left to say.
_SHORT_CHARS: Final = 160
_SHORT_NOTE: Final = " … "
# Less than this of a text says nothing.
_LEAST_CHARS: Final = 120
_LEFT_OUT: Final = re.compile(r"\[(\d{1,9}) more left out\]")
# The longest such line, with its dash and line end.
_LEFT_OUT_CHARS: Final = 32
# A longer text is always cut. By the text alone, not by the room: an item may be shorter than its text.
_WHOLE_CHARS: Final = 100_000
# JSON can write half of a character that takes two; no encoder sends it.
_HALF: Final = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Items:
    """texts: as they are listed. order: their positions, the most important first; weights: in that order.
    missing: how many had been left out before.
    """

    texts: Sequence[str]
    order: Sequence[int]
    weights: Sequence[int]
    missing: int = 0


def render_items(items: Items, room: int) -> str:
    """In at most `room` characters: what does not fit is cut in the middle or left out.

    A room that does not hold everything must have at least 90.
    """
    whole = _render_what_may_fit(items, room)
    if _fits(items, whole, room):
        return _render_lines(items, whole)
    order = items.order[: room // 3]
    # With its line end; a text that is longer than the room cannot fit.
    needs = [(len(whole[at]) if at in whole else room + 1) + 1 for at in order]
    shares = allocate(needs, items.weights, room - _LEFT_OUT_CHARS, _LEAST_CHARS)
    if not any(shares):
        shares = [room - _LEFT_OUT_CHARS]
    lines = {
        at: whole[at] if need <= share else _cut(items.texts[at], share - 1)
        for at, need, share in zip(order, needs, shares, strict=False)
        if share
    }
    return _render_lines(items, lines)


def render_whole_items(items: Items, room: int) -> str:
    """The same for names: what does not fit whole is left out."""
    whole = _render_what_may_fit(items, room)
    if _fits(items, whole, room):
        return _render_lines(items, whole)
    lines: dict[int, str] = {}
    left = room - _LEFT_OUT_CHARS
    for at, line in whole.items():
        if len(line) < left:
            lines[at] = line
            left -= len(line) + 1
    return _render_lines(items, lines)


def _render_what_may_fit(items: Items, room: int) -> dict[int, str]:
    """By position, the most important first. An item and its line end take three characters at least; more
    than such could fill the room are not even looked at.
    """
    order = items.order[: room // 3 + 1]
    return {at: _render_item(items.texts[at]) for at in order if len(items.texts[at]) <= _WHOLE_CHARS}


def _fits(items: Items, whole: dict[int, str], room: int) -> bool:
    size = sum(map(len, whole.values())) + len(whole) - 1
    return not items.missing and len(whole) == len(items.texts) and size <= room


def _render_lines(items: Items, lines: dict[int, str]) -> str:
    """In their place; the number of those left out goes first."""
    missing = items.missing + len(items.texts) - len(lines)
    note = [f"{_DASH}[{min(missing, 999_999_999)} more left out]"] if missing else []
    return "\n".join([*note, *(lines[at] for at in sorted(lines))])


def parse_left_out(text: str) -> int | None:
    """How many an item says were left out, if that is what it says."""
    found = _LEFT_OUT.fullmatch(text)
    return int(found[1]) if found else None


def parse_items(lines: Sequence[str]) -> list[str]:
    """The texts that were written as items."""
    texts: list[list[str]] = []
    for line in lines:
        if line.startswith(_DASH):
            texts.append([line[len(_DASH) :]])
        elif texts:
            texts[-1].append(line.removeprefix(_INDENT))
    return ["\n".join(text).rstrip() for text in texts]


def _cut(text: str, room: int) -> str:
    """An item in at most `room` characters, at least 50: the text's head and tail, and how long it was."""
    text = text.strip()
    note = f"\n{_INDENT}[... cut; {len(text)} characters in all ...]\n{_INDENT}"
    if room < _SHORT_CHARS:
        note = _SHORT_NOTE
    keep = room - len(note)
    tail = keep // 3
    head = _render_item(text[:room])[: keep - tail].rstrip()
    # A longer word may end as a fence does where it is cut.
    head = neutralize(head)[: keep - tail]
    return head + note + _render_item(text[-room:])[-tail:]


def _render_item(text: str) -> str:
    lines = neutralize(_HALF.sub("\ufffd", text)).strip().splitlines()
    return _DASH + "\n".join(_INDENT + line if line.strip() else "" for line in lines)[len(_INDENT) :]
