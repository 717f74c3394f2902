"""What checks are given and what they find, as values. A finding never holds a key, and quotes no text of an
upstream.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from gateway.http.client import Client
from gateway.settings import Settings

Level = Literal["ok", "warning", "problem"]
# The exit status of a level; that of an examination is the worst of its findings.
STATUSES: Final[dict[Level, int]] = {"ok": 0, "warning": 1, "problem": 2}


class Diagnosis(NamedTuple):
    """fix: the line to write or the command to run; None where nothing has to be done."""

    level: Level
    what: str
    fix: str | None = None


def note_ok(what: str) -> Diagnosis:
    return Diagnosis("ok", what)


def warn(what: str, fix: str) -> Diagnosis:
    return Diagnosis("warning", what, fix)


def blame(what: str, fix: str) -> Diagnosis:
    """For what keeps the gateway from working."""
    return Diagnosis("problem", what, fix)


class UpstreamReport(NamedTuple):
    """names: of the models in its list. date: of its response. is_usable: whether requests can reach it."""

    finding: Diagnosis
    names: frozenset[str] = frozenset()
    date: str = ""
    is_usable: bool = True


@dataclass(frozen=True, kw_only=True)
class Examined:
    """A set-up, and what was asked once for all checks.

    file: of the settings; None for the built-in ones. models: that clients use. asked: the model that may be
    asked for one token. reports: by the name of the upstream. has_other_token: the gateway that runs refuses
    the admin.token of the settings.
    """

    settings: Settings
    file: str | None
    models: Sequence[str]
    asked: str | None
    client: Client
    reports: Mapping[str, UpstreamReport]
    has_other_token: bool


Check = Callable[[Examined], AsyncIterator[Diagnosis]]
