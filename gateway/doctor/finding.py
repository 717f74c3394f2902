"""What an examination found, as values. A finding never holds a key, and quotes no text of an upstream."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

Level = Literal["ok", "warning", "problem"]
# The exit status of a level; that of an examination is the worst of its findings.
STATUSES: Final[dict[Level, int]] = {"ok": 0, "warning": 1, "problem": 2}


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """fix: the line to write or the command to run; None where nothing has to be done."""

    subject: str
    level: Level
    what: str
    fix: str | None = None


def note_ok(subject: str, what: str) -> Diagnosis:
    return Diagnosis(subject=subject, level="ok", what=what)


def warn(subject: str, what: str, fix: str) -> Diagnosis:
    return Diagnosis(subject=subject, level="warning", what=what, fix=fix)


def blame(subject: str, what: str, fix: str) -> Diagnosis:
    """For what keeps the gateway from working."""
    return Diagnosis(subject=subject, level="problem", what=what, fix=fix)


def choose_level(findings: Iterable[Diagnosis]) -> Level:
    """The worst."""
    return max((finding.level for finding in findings), key=STATUSES.__getitem__, default="ok")
