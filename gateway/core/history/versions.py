"""The earlier versions of a summary that a person has edited.

A pivot holds the text in use. What it held before is kept beside it, under the same key, and can be restored.
"""

from dataclasses import dataclass, replace
from typing import Final

from gateway.core.history.pivot import Pivot

# The oldest versions go first; a person who edits more often restores the newest ones.
MAX_VERSIONS: Final = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class SummaryVersion:
    """An earlier text of a pivot."""

    version: int
    text: str
    # When this version was made or written.
    created_seconds: float
    # A person wrote it.
    is_edited: bool
    is_digest: bool
    # As in Pivot.
    tokens: int
    saved_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class VersionsRecord:
    """A record. versions: those before the one in use, the newest last."""

    owner: str
    # Of the pivot.
    key: str
    versions: tuple[SummaryVersion, ...] = ()

    def find(self, version: int) -> SummaryVersion | None:
        return next((each for each in self.versions if each.version == version), None)


def read_version(pivot: Pivot) -> SummaryVersion:
    """The version that the pivot holds."""
    edited_seconds = pivot.edited_seconds
    return SummaryVersion(
        version=pivot.version,
        text=pivot.summary,
        created_seconds=pivot.created_seconds if edited_seconds is None else edited_seconds,
        is_edited=pivot.is_edited,
        is_digest=pivot.is_digest,
        tokens=pivot.tokens,
        saved_tokens=pivot.saved_tokens,
    )


def with_version(known: VersionsRecord, pivot: Pivot) -> VersionsRecord:
    """With what the pivot holds now, before something else takes its place."""
    others = [each for each in known.versions if each.version != pivot.version]
    return replace(known, versions=(*others, read_version(pivot))[-MAX_VERSIONS:])


def edit_pivot(pivot: Pivot, text: str, raw_tokens: int, true_tokens: int, now_seconds: float) -> Pivot:
    """The next version of a pivot. raw_tokens, true_tokens: by how many the new text is longer."""
    return replace(
        pivot,
        summary=text,
        version=pivot.version + 1,
        edited_seconds=now_seconds,
        # A person's text is not replaced by a summary of the same messages, as a digest is.
        is_digest=False,
        tokens=max(0, pivot.tokens + raw_tokens),
        saved_tokens=max(0, pivot.saved_tokens - true_tokens),
    )
