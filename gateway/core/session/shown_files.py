"""What readers show of a file: with line numbers as `cat -n`, in a frame, or plain."""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

# Readers leave off what is beyond, some of them without a word.
_MOST_LINES: Final = 2_000
_LONGEST_LINE: Final = 2_000
_EDGE_CHARS: Final = 300
_MOST_HEADING_LINES: Final = 12
_MOST_REMINDERS: Final = 5
# `     1→text`, `     1\ttext`, `00001| text`, `1 | text`, `1: text`, `1:text`.
_NUMBERED: Final = re.compile(r" {0,7}(\d{1,7})(→|\t| ?\| ?|: ?)")
# What stands before the first numbered line.
_HEADING: Final = re.compile(r"^\s*$|cat -n|^\[File:|^File:|^<")
_FRAMES: Final = (("<file>\n", "</file>"), ("<content>\n", "</content>"))
_REMINDER: Final = ("<system-reminder>", "</system-reminder>")
# A reader that leaves something off says so.
_CUT: Final = re.compile(
    r"truncated|more lines|\[\.\.\.|use offset|showing lines|lines? omitted|output too large|clipped",
    re.IGNORECASE,
)


class ShownText(NamedTuple):
    """is_numbered: its lines had numbers. is_complete: it is the whole file."""

    text: str
    is_numbered: bool
    is_complete: bool


def parse_shown(result: str) -> ShownText:
    """The text of a file out of a reader's result."""
    shown = _without_frame(result)
    lines = shown.split("\n")
    start = next((at for at, line in enumerate(lines[:_MOST_HEADING_LINES]) if _NUMBERED.match(line)), None)
    numbered = _NUMBERED.match(lines[start]) if start is not None else None
    if start is None or numbered is None:
        return ShownText(shown, is_numbered=False, is_complete=False)
    first, mark = int(numbered.group(1)), numbered.group(2)
    texts = _read_numbered(lines, start, first, mark)
    rest = [line for line in lines[:start] if not _HEADING.search(line)] + lines[start + len(texts) :]
    text = "\n".join(texts)
    is_complete = (
        first == 1
        and not any(line.strip() for line in rest)
        and not _CUT.search(result[:_EDGE_CHARS])
        and not _CUT.search(result[-_EDGE_CHARS:])
        and len(texts) < _MOST_LINES
        and max(map(len, texts)) < _LONGEST_LINE
    )
    # Claude Code numbers the empty text behind the last newline, too; others do not.
    return ShownText(text if mark == "→" else text + "\n", is_numbered=True, is_complete=is_complete)


def _read_numbered(lines: Sequence[str], start: int, first: int, mark: str) -> list[str]:
    """The texts of the lines whose numbers follow each other."""
    texts: list[str] = []
    plain = mark.rstrip(" ")
    for number, line in enumerate(lines[start:], first):
        numbered, label = line.lstrip(" 0"), f"{number}{mark}"
        if not numbered.startswith(label):
            # An empty line may end with the mark, without the space behind it.
            label = f"{number}{plain}"
            if mark in line or not numbered.startswith(label):
                break
        texts.append(numbered[len(label) :])
    return texts


def _without_frame(result: str) -> str:
    """Without tags around the lines, and without what the agent adds behind them."""
    for opening, closing in _FRAMES:
        start, end = result.find(opening), result.rfind(closing)
        if 0 <= start < end:
            inner = result[start + len(opening) : end].rstrip("\n")
            head, _, last = inner.rpartition("\n")
            return head.rstrip("\n") if last.startswith("(End of file") else inner
    opening, closing = _REMINDER
    for _ in range(_MOST_REMINDERS):
        ended = result.rstrip()
        start = ended.rfind(opening) if ended.endswith(closing) else -1
        if start < 0:
            break
        result = ended[:start].rstrip("\n")
    return result
