"""Tokens of each request of a session: what was received, and what was sent of it. As block characters, and
as an SVG file with one panel for each policy, light and dark, which refers to nothing outside.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple
from xml.sax.saxutils import escape

from rich.text import Text

from gateway.replay.numbers import show_tokens
from gateway.replay.results import RequestRun

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


# As a file

_WIDTH: Final = 800
_PANEL: Final = 240
_TOP: Final = 44
_LEFT: Final = 64
_RIGHT: Final = 16
_PLOT_HEIGHT: Final = 160
_TICKS: Final = 4
_STYLE: Final = """
  :root { --ink: #1c2024; --faint: #8b949e; --page: #ffffff; --received: #9aa4b1; --sent: #1a7f4b;
    --hard: #c4321f; --soft: #9a6700; --mark: #5b3fd1; }
  @media (prefers-color-scheme: dark) { :root { --ink: #e8eaed; --faint: #858d97; --page: #14171a;
    --received: #6b7480; --sent: #4cc38a; --hard: #ff8b7c; --soft: #e2b340; --mark: #b3a1ff; } }
  .page { fill: var(--page); } text { fill: var(--ink); font: 12px system-ui, sans-serif; }
  .name { font-weight: 600; font-size: 14px; } .faint { fill: var(--faint); }
  .axis { stroke: var(--faint); stroke-width: 1; } .grid { stroke: var(--faint); stroke-opacity: .25; }
  .received { fill: none; stroke: var(--received); stroke-width: 1.5; }
  .sent { fill: none; stroke: var(--sent); stroke-width: 2; }
  .hard { stroke: var(--hard); stroke-dasharray: 6 4; } .soft { stroke: var(--soft); stroke-dasharray: 2 3; }
  .mark { stroke: var(--mark); stroke-width: 1.5; } .pruning { stroke-dasharray: 3 2; }
"""


class Panel(NamedTuple):
    """A session under one policy."""

    policy: str
    requests: Sequence[RequestRun]


class _Scale(NamedTuple):
    requests: int
    top: int
    # Of the panel.
    y: int

    def x(self, number: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * number / max(1, self.requests - 1)

    def height(self, tokens: float) -> float:
        return self.y + _TOP + _PLOT_HEIGHT * (1 - tokens / self.top)


def render_svg(session: str, panels: Sequence[Panel]) -> str:
    """session: its name."""
    height = _TOP + _PANEL * len(panels)
    top = max((max(run.received, run.sent) for panel in panels for run in panel.requests), default=1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-labelledby="title desc">',
        f'<title id="title">Tokens per request of {escape(session)}</title>',
        f'<desc id="desc">{escape(_describe(panels))}</desc>',
        f"<style>{_STYLE}</style>",
        f'<rect class="page" width="{_WIDTH}" height="{height}"/>',
        f'<text class="name" x="{_LEFT}" y="26">{escape(session)}</text>',
        *_render_legend(),
    ]
    for place, panel in enumerate(panels):
        scale = _Scale(len(panel.requests), max(1, top), 20 + place * _PANEL)
        parts += _render_panel(panel, scale)
    return "\n".join([*parts, "</svg>", ""])


def _describe(panels: Sequence[Panel]) -> str:
    """What the picture shows, for those who do not see it."""
    lines = []
    for panel in panels:
        received, sent = sum(run.received for run in panel.requests), sum(run.sent for run in panel.requests)
        changes = sum(run.change == "compaction" for run in panel.requests)
        lines.append(
            f"{panel.policy}: {len(panel.requests)} requests, {show_tokens(received)} tokens received, "
            f"{show_tokens(sent)} sent, the summary changes {changes} times."
        )
    return " ".join(lines)


def _render_legend() -> Iterator[str]:
    entries = (
        ("received", "received"),
        ("sent", "sent"),
        ("hard", "hard"),
        ("soft", "soft"),
        ("mark", "compacted"),
    )
    for place, (style, name) in enumerate(entries):
        x = _WIDTH - 420 + 82 * place
        yield f'<line class="{style}" x1="{x}" y1="22" x2="{x + 18}" y2="22"/>'
        yield f'<text x="{x + 23}" y="26">{name}</text>'


def _render_panel(panel: Panel, scale: _Scale) -> Iterator[str]:
    yield f'<text class="name" x="{_LEFT}" y="{scale.y + 36}">{escape(panel.policy)}</text>'
    for tick in range(_TICKS + 1):
        tokens = scale.top * tick // _TICKS
        y = scale.height(tokens)
        style, right = "grid" if tick else "axis", _WIDTH - _RIGHT
        yield f'<line class="{style}" x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>'
        yield _render_end(_LEFT - 6, y + 4, show_tokens(tokens))
    bottom = scale.height(0)
    yield f'<text class="faint" x="{_LEFT}" y="{bottom + 16:.1f}">request 1</text>'
    yield _render_end(_WIDTH - _RIGHT, bottom + 16, str(len(panel.requests)))
    for name in ("hard", "soft"):
        yield _render_line(name, [run.hard if name == "hard" else run.soft for run in panel.requests], scale)
    yield _render_line("received", [run.received for run in panel.requests], scale)
    yield _render_line("sent", [run.sent for run in panel.requests], scale)
    yield from _render_marks(panel, scale)


def _render_end(x: int, y: float, words: str) -> str:
    """A text that ends at a point."""
    return f'<text class="faint" text-anchor="end" x="{x}" y="{y:.1f}">{words}</text>'


def _render_line(name: str, values: Sequence[int | None], scale: _Scale) -> str:
    """Only the points where it turns."""
    points = [
        f"{scale.x(number):.1f},{scale.height(value):.1f}"
        for number, value in enumerate(values)
        if value is not None and _is_turn(values, number)
    ]
    return f'<polyline class="{name}" fill="none" points="{" ".join(points)}"/>' if points else ""


def _is_turn(values: Sequence[int | None], number: int) -> bool:
    if not 0 < number < len(values) - 1:
        return True
    return not values[number - 1] == values[number] == values[number + 1]


def _render_marks(panel: Panel, scale: _Scale) -> Iterator[str]:
    for number, run in enumerate(panel.requests):
        if run.change is None:
            continue
        x, title = scale.x(number), f"request {number + 1}: {run.change}, {show_tokens(run.sent)} tokens sent"
        yield (
            f'<line class="mark {run.change}" x1="{x:.1f}" y1="{scale.height(0):.1f}" x2="{x:.1f}" '
            f'y2="{scale.height(run.sent):.1f}"><title>{escape(title)}</title></line>'
        )
