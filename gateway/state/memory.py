"""What memory holds of the state, in front of the store, and what was deleted of it lately.

Everything that is held has an owner, and most of it a conversation, so that one call forgets either.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, TypeVar

from gateway.lru import ENTRY_WEIGHT_BYTES, Lru
from gateway.state.records import Purged

V = TypeVar("V")

# Some ten thousand deletions.
_PURGED_BYTES: Final = 4 << 20
_PURGED_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 200


class Whose(NamedTuple):
    """tag: of the owner. group: the conversation; empty for what belongs to none."""

    tag: str
    group: str = ""


class _Shelf(NamedTuple):
    held: Lru[Any, Any]
    whose: Callable[[Any], Iterable[Whose]]
    on_forgotten: Callable[[Any], None] | None

    def forget(self, tag: str, group: str | None) -> None:
        def is_gone(value: object) -> bool:
            return any(each.tag == tag and group in (None, each.group) for each in self.whose(value))

        gone = [value for value in self.held.values() if is_gone(value)]
        self.held.drop_where(is_gone)
        if self.on_forgotten is not None:
            for value in gone:
                self.on_forgotten(value)


class Memory:
    """generation: grows whenever news may have been missed, or the store may have lost records: what was
    written or read in an earlier one may be gone. purges: the number of the newest deletion of an owner or of
    a conversation, for `was_purged`: what is under way must not bring back what it has read before.
    """

    def __init__(self) -> None:
        self.generation = 0
        self.purges = 0
        # The newest deletion: by tag alone, of anything of an owner; with a group or None, of this
        # conversation, or of the whole owner. A request is never under way while so many others are deleted.
        self._purged: Lru[tuple[str | None, ...], int] = Lru(_PURGED_BYTES)
        self._shelves: list[_Shelf] = []

    def shelf(
        self,
        whose: Callable[[V], Iterable[Whose]],
        max_bytes: int,
        on_forgotten: Callable[[V], None] | None = None,
        max_items: int | None = None,
    ) -> Lru[Any, V]:
        """A cache of its own, from which values are forgotten. whose: to whom a value belongs. on_forgotten:
        is told of each that was.
        """
        held: Lru[Any, V] = Lru(max_bytes, max_items)
        self._shelves.append(_Shelf(held, whose, on_forgotten))
        return held

    def forget(self, tag: str, group: str | None = None) -> None:
        """All of an owner, or of one conversation. Looks at everything that is held."""
        self.purges += 1
        for purged in ((tag,), (tag, group)):
            self._purged.put(purged, self.purges, _PURGED_WEIGHT_BYTES)
        for shelf in self._shelves:
            shelf.forget(tag, group)

    def was_purged(self, since: int, tag: str, group: str | None = None) -> bool:
        """Whether a conversation, or its whole owner, was deleted since `purges` was this number; without a
        group whether anything of the owner was.
        """
        if since == self.purges:
            return False
        names = ((tag,),) if group is None else ((tag, group), (tag, None))
        return any((self._purged.peek(name) or 0) > since for name in names)

    def check_kept(self, since: int, whose: Whose) -> None:
        """Raises Purged if it was deleted since then."""
        if self.was_purged(since, *whose):
            raise Purged("it was deleted meanwhile")
