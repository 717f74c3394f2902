"""The charts of docs/economics.md as SVG, light and dark: what bills are made of, and how prompts grow."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from xml.sax.saxutils import escape

from bench.economics.tariffs import PARTS, Bill
from gateway.replay.report import show_tokens
from gateway.replay.results import RequestRun

_IMAGES: Final = Path(__file__).resolve().parents[2] / "docs" / "images"
BILLS_IMAGE: Final = _IMAGES / "economics.svg"
PROMPTS_IMAGE: Final = _IMAGES / "economics-prompts.svg"
_WIDTH: Final = 800
_LEFT: Final = 150
_RIGHT: Final = 60
_TOP: Final = 70
_BAR: Final = 20
_ROW: Final = 26
_GROUP: Final = 22
_PLOT: Final = 180
_COLORS: Final = {
    "cached reads": ("#9ec5e8", "#3f6f9c"),
    "new input": ("#1f6fb2", "#6fb1ec"),
    "sent again": ("#c4321f", "#ff8b7c"),
    "replies": ("#c3c9d1", "#5b636d"),
    "summary input": ("#5b3fd1", "#b3a1ff"),
    "summary output": ("#e2a03a", "#e2b340"),
}
_COLOR_NAMES: Final = {part: f"part{at}" for at, part in enumerate(PARTS)}


class Bar(NamedTuple):
    """One bill beside others. share: of the one that is 1."""

    name: str
    bill: Bill
    share: float


def render_bills(groups: Mapping[str, Sequence[Bar]]) -> str:
    """By the name of the price table."""
    longest = max(bar.share for bars in groups.values() for bar in bars)
    height = _TOP + sum(_GROUP + _ROW * len(bars) for bars in groups.values()) + 12
    parts = [*_render_head("What the same work costs, the bill before = 1", _describe(groups), height)]
    parts += _render_legend()
    y = _TOP
    for group, bars in groups.items():
        parts.append(f'<text class="name" x="16" y="{y + 12}">{escape(group)}</text>')
        y += _GROUP
        for bar in bars:
            parts += _render_bar(bar, y, (_WIDTH - _LEFT - _RIGHT) / longest)
            y += _ROW
    return "\n".join([*parts, "</svg>", ""])


def _render_bar(bar: Bar, y: int, scale: float) -> Iterator[str]:
    yield f'<text class="end" x="{_LEFT - 8}" y="{y + 15}">{escape(bar.name)}</text>'
    x = float(_LEFT)
    for part, usd in zip(PARTS, bar.bill.parts, strict=True):
        width = scale * bar.share * usd / bar.bill.total
        title = f"{part}: {usd / bar.bill.total:.0%} of ${bar.bill.total:.2f}"
        yield (
            f'<rect class="{_COLOR_NAMES[part]}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_BAR}">'
            f"<title>{title}</title></rect>"
        )
        x += width
    yield f'<text x="{x + 6:.1f}" y="{y + 15}">{bar.share:.2f}</text>'


def _render_legend() -> Iterator[str]:
    for at, part in enumerate(PARTS):
        x = 16 + 126 * at
        yield f'<rect class="{_COLOR_NAMES[part]}" x="{x}" y="40" width="12" height="12"/>'
        yield f'<text x="{x + 17}" y="50">{part}</text>'


def _describe(groups: Mapping[str, Sequence[Bar]]) -> str:
    """What the picture shows, for those who do not see it."""
    lines = (
        f"{group}: {', '.join(f'{bar.name} {bar.share:.2f}' for bar in bars)}."
        for group, bars in groups.items()
    )
    return " ".join(lines)


def render_prompts(title: str, lines: Mapping[str, Sequence[RequestRun]]) -> str:
    """The size of each prompt of one conversation under several policies."""
    top = max(run.sent for runs in lines.values() for run in runs)
    height = _TOP + _PLOT + 40
    described = (
        f"{name}: {sum(run.sent for run in runs):,} tokens sent, "
        f"{sum(run.change == 'compaction' for run in runs)} compactions."
        for name, runs in lines.items()
    )
    parts = [*_render_head(title, " ".join(described), height)]
    for tick in range(5):
        y = _TOP + _PLOT * (1 - tick / 4)
        parts.append(f'<line class="grid" x1="64" y1="{y:.1f}" x2="{_WIDTH - 16}" y2="{y:.1f}"/>')
        parts.append(f'<text class="end" x="58" y="{y + 4:.1f}">{show_tokens(top * tick // 4)}</text>')
    for at, (name, runs) in enumerate(lines.items()):
        step = (_WIDTH - 80) / max(1, len(runs) - 1)
        points = " ".join(
            f"{64 + step * place:.1f},{_TOP + _PLOT * (1 - run.sent / top):.1f}"
            for place, run in enumerate(runs)
        )
        parts.append(f'<polyline class="line{at}" points="{points}"/>')
        parts.append(f'<line class="line{at}" x1="{64 + 230 * at}" y1="46" x2="{84 + 230 * at}" y2="46"/>')
        parts.append(f'<text x="{90 + 230 * at}" y="50">{escape(name)}</text>')
    bottom = _TOP + _PLOT + 18
    parts.append(f'<text x="64" y="{bottom}">request 1</text>')
    last = max(map(len, lines.values()))
    parts.append(f'<text class="end" x="{_WIDTH - 16}" y="{bottom}">{last}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _render_head(title: str, description: str, height: int) -> Iterator[str]:
    light = "".join(f" .{_COLOR_NAMES[part]} {{ fill: {pair[0]}; }}" for part, pair in _COLORS.items())
    dark = "".join(f" .{_COLOR_NAMES[part]} {{ fill: {pair[1]}; }}" for part, pair in _COLORS.items())
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        'aria-labelledby="title desc">'
    )
    yield f'<title id="title">{escape(title)}</title>'
    yield f'<desc id="desc">{escape(description)}</desc>'
    yield (
        "<style>.page { fill: #ffffff; } text { fill: #1c2024; font: 12px system-ui, sans-serif; }"
        " .name { font-weight: 600; font-size: 14px; } .end { text-anchor: end; }"
        " .grid { stroke: #8b949e; stroke-opacity: .3; } .line0, .line1 { fill: none; stroke-width: 2; }"
        f" .line0 {{ stroke: #9aa4b1; }} .line1 {{ stroke: #1a7f4b; }}{light}"
        " @media (prefers-color-scheme: dark) { .page { fill: #14171a; } text { fill: #e8eaed; }"
        f" .line0 {{ stroke: #6b7480; }} .line1 {{ stroke: #4cc38a; }}{dark} }}</style>"
    )
    yield f'<rect class="page" width="{_WIDTH}" height="{height}"/>'
    yield f'<text class="name" x="16" y="24">{escape(title)}</text>'
