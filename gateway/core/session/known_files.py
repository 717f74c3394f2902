"""What is known of the texts of files, from what the session read and wrote. Bounded in characters.

A file may be known whole or in parts. What is known may be out of date: any command may change a file. So a
whole text counts as certain only until the next command that may write.
"""

from dataclasses import dataclass, field
from typing import Final

from gateway.core.session.line_diff import CONTEXT_LINES, LineDiff, diff_lines
from gateway.core.session.patches import Replacement

_MOST_CHARS: Final = 1 << 20
_LONGEST_FILE_CHARS: Final = 1 << 18
_MOST_PARTS: Final = 12
_MOST_ABSENT: Final = 1_000


@dataclass(slots=True)
class KnownText:
    """Whole lines. is_certain: nothing ran since that may have changed the file."""

    text: str
    is_whole: bool
    is_certain: bool = True


@dataclass(slots=True)
class KnownFiles:
    """Newest use last. chars: of all texts."""

    texts: dict[str, list[KnownText]] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)
    chars: int = 0
    # Those that may be certain: a command need not look at all files.
    certain: list[KnownText] = field(default_factory=list)

    def doubt(self) -> None:
        """Something ran that may have changed any file."""
        self.absent.clear()
        for part in self.certain:
            part.is_certain = False
        self.certain.clear()

    def forget(self, path: str) -> None:
        self.absent.discard(path)
        self.chars -= sum(len(part.text) for part in self.texts.pop(path, ()))

    def put_absent(self, path: str) -> None:
        self.forget(path)
        if len(self.absent) < _MOST_ABSENT:
            self.absent.add(path)

    def put_whole(self, path: str, text: str) -> None:
        self.forget(path)
        self._put(path, [KnownText(text, is_whole=True)])

    def put_part(self, path: str, text: str) -> None:
        parts = self.texts.get(path, [])
        self.forget(path)
        self._put(path, [*parts[-_MOST_PARTS + 1 :], KnownText(text, is_whole=False)])

    def _put(self, path: str, parts: list[KnownText]) -> None:
        size = sum(len(part.text) for part in parts)
        if size > _LONGEST_FILE_CHARS:
            return
        self.texts[path] = parts
        self.certain += [part for part in parts if part.is_certain]
        self.chars += size
        while self.chars > _MOST_CHARS:
            self.forget(next(iter(self.texts)))

    def find_whole(self, path: str, *, is_checked: bool) -> str | None:
        """The text of the file, if it is certain. is_checked: the agent has checked that what it read is the
        file's text.
        """
        parts = self.texts.get(path, [])
        return next((part.text for part in parts if part.is_whole and (part.is_certain or is_checked)), None)

    def replace(self, path: str, replacement: Replacement, *, is_checked: bool = False) -> LineDiff | None:
        """What a replacement does to the file, if its place is known. What is out of date is forgotten.

        is_checked: see `find_whole`. All places are known only where the file is.
        """
        parts = self.texts.get(path, [])
        changed: list[KnownText] = []
        found: LineDiff | None = None
        for part in parts:
            times = part.text.count(replacement.old)
            if times == 0 and not part.is_whole:
                changed.append(part)
            is_known = part.is_whole and (part.is_certain or is_checked)
            if not _fits(part, replacement, times):
                continue
            if (is_known and times) if replacement.is_everywhere else times == 1:
                text = part.text.replace(replacement.old, replacement.new)
                found = _diff_around(part, replacement) if times == 1 else diff_lines(part.text, text)
                changed.append(KnownText(text, part.is_whole, part.is_certain))
        self.forget(path)
        if changed:
            self._put(path, changed)
        return found


def _fits(part: KnownText, replacement: Replacement, times: int) -> bool:
    """Whether what comes of it may be kept: a letter replaced everywhere by a page is very long."""
    growth = times * (len(replacement.new) - len(replacement.old))
    return len(part.text) + growth <= _LONGEST_FILE_CHARS


def _diff_around(part: KnownText, replacement: Replacement) -> LineDiff | None:
    """The difference of the lines around the only place of a text. All others are the same."""
    text = part.text
    start = text.index(replacement.old)
    end = start + len(replacement.old)
    first = _go_back(text, start, CONTEXT_LINES)
    last = end
    for _ in range(CONTEXT_LINES + 1):
        last = text.find("\n", last) + 1 or len(text)
    before, after = text[first:start], text[end:last]
    line = text.count("\n", 0, first) + 1 if part.is_whole and part.is_certain else None
    return diff_lines(text[first:last], f"{before}{replacement.new}{after}", line)


def _go_back(text: str, at: int, lines: int) -> int:
    """The beginning of the line that many lines before a place."""
    at = text.rfind("\n", 0, at) + 1
    for _ in range(lines):
        at = text.rfind("\n", 0, max(at - 1, 0)) + 1
    return at
