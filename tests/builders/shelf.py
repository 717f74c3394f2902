"""Originals of several tenants on a shelf, which is searched without an index."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.originals.search import FoundPiece, MentionedFile, OriginalText, Scope
from gateway.store import StoreError

_TIME_SECONDS = 1_790_000_000.0


@dataclass
class Shelf:
    """originals: texts by tag and conversation, the position of each is that in its list.

    error: raised by every look-up. asked: the tags and scopes of all look-ups.
    """

    originals: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    files: dict[tuple[str, str], list[MentionedFile]] = field(default_factory=dict)
    error: Exception | None = None
    asked: list[tuple[str, Scope]] = field(default_factory=list)

    async def search(
        self,
        tag: str,
        scopes: Sequence[Scope],
        query: str,
        *,
        most: int = 5,
        max_tokens: int = 1_600,
        by_meaning: bool = True,
    ) -> list[FoundPiece]:
        words = query.lower().split()
        found = [
            FoundPiece(
                conversation=conversation,
                position=position,
                role="tool",
                tool="bash",
                text=text,
                start=0,
                end=len(text),
                time_seconds=_TIME_SECONDS,
            )
            for conversation, position, text in self._list(tag, scopes)
            if any(word in text.lower() for word in words)
        ]
        return found[:most]

    async def read(
        self, tag: str, scopes: Sequence[Scope], position: int, *, start: int = 0, max_chars: int = 20_000
    ) -> OriginalText | None:
        texts = [each for each in self._list(tag, scopes) if each[1] == position]
        if not texts:
            return None
        conversation, _, text = texts[0]
        return OriginalText(
            conversation=conversation,
            position=position,
            role="tool",
            tool="bash",
            text=text[start : start + max_chars],
            total_chars=len(text),
            time_seconds=_TIME_SECONDS,
        )

    async def list_files(self, tag: str, scopes: Sequence[Scope], *, most: int = 200) -> list[MentionedFile]:
        self._list(tag, scopes)
        return [file for scope in scopes for file in self.files.get((tag, scope.conversation_id), [])][:most]

    async def has_originals(self, tag: str, conversation_id: str) -> bool:
        return (tag, conversation_id) in self.originals

    def _list(self, tag: str, scopes: Sequence[Scope]) -> list[tuple[str, int, str]]:
        self.asked += [(tag, scope) for scope in scopes]
        if self.error is not None:
            raise self.error
        return [
            (scope.conversation_id, position, text)
            for scope in scopes
            for position, text in enumerate(self.originals.get((tag, scope.conversation_id), []))
            if scope.before is None or position < scope.before
        ]


def make_broken_shelf() -> Shelf:
    return Shelf(error=StoreError("the store is away"))
