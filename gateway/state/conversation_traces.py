"""Which records belong to one conversation: those that its heads name, and those at links of its chain.

Found in memory, where it is known, and in the store. Another conversation that began alike may use some of
them, too.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from gateway.core.history.cleared_results import ResultHashesRecord
from gateway.core.history.head import Head
from gateway.core.history.pivot import Pivot
from gateway.core.history.trimmed import HistoryEnd
from gateway.state.records import Marker, find_owner, parse_record
from gateway.store import Store
from gateway.store.keys import make_key

R = TypeVar("R")

# Records under the key of a pivot, and under a link at which a request ended.
_PIVOT_KINDS: Final = ("pivot", "versions")
_LINK_KINDS: Final = ("marker", "command", "history", "outline")
# So many are looked at together.
_TOGETHER: Final = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class ConversationTraces:
    """All in hex. links: of its chain, at which a request ended or may have. pivots, batches,
    recalls: their keys."""

    links: frozenset[str] = field(default_factory=frozenset)
    pivots: frozenset[str] = field(default_factory=frozenset)
    batches: frozenset[str] = field(default_factory=frozenset)
    recalls: frozenset[str] = field(default_factory=frozenset)

    def join(self, other: "ConversationTraces") -> "ConversationTraces":
        return ConversationTraces(
            links=self.links | other.links,
            pivots=self.pivots | other.pivots,
            batches=self.batches | other.batches,
            recalls=self.recalls | other.recalls,
        )


def trace_heads(heads: Iterable[Head]) -> ConversationTraces:
    """What the heads of a conversation name."""
    links, pivots, batches, recalls = set[str](), set[str](), set[str](), set[str]()
    for head in heads:
        links.add(head.key)
        batches.update(head.batches)
        recalls.update(head.recalls)
        if head.pivot is not None:
            pivots.add(head.pivot)
    return ConversationTraces(
        links=frozenset(links),
        pivots=frozenset(pivots),
        batches=frozenset(batches),
        recalls=frozenset(recalls),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredTraces:
    """names: of the records in the store. traces: as far as the store knows them, with those that were
    known.
    """

    names: list[str]
    traces: ConversationTraces


async def find_newest_head(store: Store, tag: str, conversation_id: str) -> Head | None:
    """The newest head of a conversation that the store has.

    Looks at all heads of the tenant, in a thread: for what happens seldom.
    """
    heads = await store.scan(make_key(tag, "head", ""))
    own = await asyncio.to_thread(_choose, heads, Head, _is_of(conversation_id))
    return max((head for _, head in own), key=_tell_age, default=None)


async def find_stored(
    store: Store, tag: str, conversation_id: str, known: ConversationTraces
) -> StoredTraces:
    """Everything that the store of the state has of a conversation, but its logs. tag: of its owner.

    Looks at all heads and markers of the tenant, in a thread: for what happens seldom.
    """
    heads = await store.scan(make_key(tag, "head", ""))
    own = await asyncio.to_thread(_choose, heads, Head, _is_of(conversation_id))
    traces = known.join(trace_heads(head for _, head in own))
    names = [name for name, _ in own]
    for kind in _LINK_KINDS:
        found = await store.scan(make_key(tag, kind, ""))
        names += await asyncio.to_thread(_choose_linked, found, kind, conversation_id, traces)
    traces = traces.join(ConversationTraces(pivots=await _find_origins(store, tag, traces.pivots)))
    wanted = [make_key(tag, kind, key) for kind in _PIVOT_KINDS for key in sorted(traces.pivots)]
    wanted += [make_key(tag, "batch", key) for key in sorted(traces.batches)]
    wanted += [make_key(tag, "recall", key) for key in sorted(traces.recalls)]
    return StoredTraces(names=[*names, *await _keep_existing(store, wanted)], traces=traces)


async def _find_origins(store: Store, tag: str, pivots: Iterable[str]) -> frozenset[str]:
    """The pivots of which these are copies: they say the same."""
    found = await _read_all(store, [make_key(tag, "pivot", key) for key in sorted(pivots)])
    read = [_read(Pivot, data) for _, data in found]
    return frozenset(pivot.origin for pivot in read if pivot is not None and pivot.origin is not None)


async def _keep_existing(store: Store, names: Sequence[str]) -> list[str]:
    return [name for name, _ in await _read_all(store, names)]


async def _read_all(store: Store, names: Sequence[str]) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for start in range(0, len(names), _TOGETHER):
        some = await store.read_groups([(name,) for name in names[start : start + _TOGETHER]])
        found += [each for each in some if each is not None]
    return found


def _tell_age(head: Head) -> tuple[float, int]:
    """When it was answered, and its length where that is not known."""
    return head.ledger.answered_seconds if head.ledger is not None else 0.0, head.length


def _is_of(conversation_id: str) -> Callable[[Head], bool]:
    return lambda head: head.conversation == conversation_id


def _choose(
    found: Sequence[tuple[str, bytes]], kind: type[R], is_chosen: Callable[[R], bool]
) -> list[tuple[str, R]]:
    read = ((name, _read(kind, data)) for name, data in found)
    return [(name, record) for name, record in read if record is not None and is_chosen(record)]


def _choose_linked(
    found: Sequence[tuple[str, bytes]], kind: str, conversation_id: str, traces: ConversationTraces
) -> list[str]:
    """The names of those that belong to the conversation."""
    match kind:
        case "history":
            ends = _choose(found, HistoryEnd, lambda end: _is_end_of(end, traces))
            return [name for name, _ in ends]
        case "outline":
            hashes = _choose(
                found, ResultHashesRecord, lambda record: _names(record, conversation_id, traces)
            )
            return [name for name, _ in hashes]
        case "marker":
            markers = _choose(found, Marker, lambda marker: marker.key in traces.links)
            return [name for name, _ in markers]
        case _:
            return [name for name, _ in found if name.partition("}")[2] in traces.links]


def _is_end_of(end: HistoryEnd, traces: ConversationTraces) -> bool:
    return end.chain in traces.links or end.pivot in traces.pivots


def _names(record: ResultHashesRecord, conversation_id: str, traces: ConversationTraces) -> bool:
    """A record may also hold hashes of conversations that began alike: they make a new summary at worst."""
    return any(
        hashes.conversation == conversation_id or hashes.pivot in traces.pivots for hashes in record.outlines
    )


def _read(kind: type[R], data: bytes) -> R | None:
    owner = find_owner(data)
    return parse_record(kind, owner, data) if owner is not None else None
