"""What an examination found, as values. A finding never holds a key, and quotes no text of an upstream."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

Level = Literal["ok", "warning", "problem"]
# The exit status of a level; that of an examination is the worst of its findings.
STATUSES: Final[dict[Level, int]] = {"ok": 0, "warning": 1, "problem": 2}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """fix: the line to write or the command to run; None where nothing has to be done."""

    subject: str
    level: Level
    what: str
    fix: str | None = None


def note_ok(subject: str, what: str) -> Finding:
    return Finding(subject=subject, level="ok", what=what)


def warn(subject: str, what: str, fix: str) -> Finding:
    return Finding(subject=subject, level="warning", what=what, fix=fix)


def blame(subject: str, what: str, fix: str) -> Finding:
    """For what keeps the gateway from working."""
    return Finding(subject=subject, level="problem", what=what, fix=fix)


def choose_level(findings: Iterable[Finding]) -> Level:
    """The worst."""
    return max((finding.level for finding in findings), key=STATUSES.__getitem__, default="ok")
