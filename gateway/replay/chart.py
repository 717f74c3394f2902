"""Tokens of each request of a session as block characters: what was received, and what was sent of it."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from rich.text import Text

from gateway.replay.numbers import show_tokens
from gateway.replay.runs import RequestRun

_HEIGHT: Final = 10
_LABEL_COLUMNS: Final = 7
_LEAST_COLUMNS: Final = 20
# Far above the window the shape of what was received says nothing, and would flatten the rest.
_MOST_WINDOWS: Final = 1.25
_SENT, _RECEIVED, _BEYOND = "█", "░", "▲"
_HARD, _SOFT = "╌", "┄"
_MARKS: Final = {"compaction": "C", "pruning": "P", "history": "H"}


class _Column(NamedTuple):
    """Some requests in a row."""

    received: int
    sent: int
    mark: str


def render_chart(requests: Sequence[RequestRun], columns: int) -> Text:
    """columns: of the terminal."""
    if not requests:
        return Text()
    width = max(_LEAST_COLUMNS, columns - _LABEL_COLUMNS - 1)
    bars = _make_columns(requests, width)
    newest = requests[-1]
    top = _find_top(requests)
    lines = {
        _find_row(newest.soft, top): (_SOFT, "soft"),
        # In a row with the soft one it matters more.
        _find_row(newest.hard, top): (_HARD, "hard"),
    }
    text = Text()
    for row in range(_HEIGHT, 0, -1):
        sign, name = lines.get(row, (" ", ""))
        label = show_tokens(top) if row == _HEIGHT else name
        text.append(f"{label:>{_LABEL_COLUMNS}} ")
        for bar in bars:
            _append_cell(text, bar, row, top, sign)
        text.append("\n")
    text.append(" " * (_LABEL_COLUMNS + 1))
    for bar in bars:
        text.append(bar.mark, style="bold")
    text.append("\n" + " " * (_LABEL_COLUMNS + 1))
    text.append(
        f"{_SENT} sent  {_RECEIVED} received only  C compacted  P pruned  H changed by the client", "dim"
    )
    return text


def _append_cell(text: Text, bar: _Column, row: int, top: int, sign: str) -> None:
    low = (row - 0.5) * top / _HEIGHT
    if bar.sent > low:
        text.append(_SENT, style="green")
    elif bar.received > top and row == _HEIGHT:
        text.append(_BEYOND, style="dim")
    elif bar.received > low:
        text.append(_RECEIVED, style="dim")
    else:
        text.append(sign, style="red" if sign == _HARD else "yellow")


def _find_top(requests: Sequence[RequestRun]) -> int:
    """Of the scale."""
    largest = max(max(run.received, run.sent) for run in requests)
    window = requests[-1].window
    if window is None:
        return max(1, largest)
    most = int(max(_MOST_WINDOWS * window, *(run.sent for run in requests)))
    return max(1, min(max(largest, requests[-1].hard or 0), most))


def _find_row(tokens: int | None, top: int) -> int:
    """0 for none."""
    return min(_HEIGHT, round(tokens * _HEIGHT / top + 0.5)) if tokens else 0


def _make_columns(requests: Sequence[RequestRun], width: int) -> list[_Column]:
    """At most `width` columns; the largest request of each, and whatever happened in it."""
    count = min(width, len(requests))
    edges = [at * len(requests) // count for at in range(count + 1)]
    return [_make_column(requests[start:end]) for start, end in pairwise(edges)]


def _make_column(requests: Sequence[RequestRun]) -> _Column:
    changes = {run.change for run in requests}
    mark = next((sign for change, sign in _MARKS.items() if change in changes), "─")
    return _Column(max(run.received for run in requests), max(run.sent for run in requests), mark)
