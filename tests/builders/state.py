"""Stores in memory, the state in front of them, and heads."""

from typing import Any

from gateway.core.history.conversation import Conversation
from gateway.core.history.head import Head
from gateway.core.history.pivot import Pivot
from gateway.state import State
from gateway.state.cached import Storage
from gateway.state.single import LeaseTimes
from gateway.store.interface import Store
from tests.toy.shared_store import SharedStore, ToyServer


async def make_store(*, clock: Any = None) -> SharedStore:
    """An open one of a process alone."""
    store = ToyServer(*([clock] if clock is not None else []), is_shared=False).connect()
    await store.open()
    return store


def make_state(
    store: Store, times: LeaseTimes | None = None, *, keep_seconds: float = 60, max_bytes: int = 1 << 20
) -> State:
    return State(Storage(store, keep_seconds, max_bytes), times)


async def connect(server: ToyServer) -> tuple[SharedStore, State]:
    """One process of several that share a store."""
    store = server.connect()
    await store.open()
    return store, make_state(store)


async def save_pivot(state: State, pivot: Pivot) -> None:
    """Durably, also in the place of another one, as a compaction does."""
    async with state.single.hold(pivot.owner, pivot.key, 20.0) as lease:
        assert await state.pivots.save_leased(lease, pivot) is pivot


async def load_head(state: State, conversation: Conversation, owner: str = "t") -> Head | None:
    """The nearest head, after looking in the store."""
    trip = state.begin_trip(owner)
    state.heads.ask(trip, conversation, "s")
    await trip.run()
    return state.heads.find(conversation, "s")


async def look_for_marker(state: State, received: Conversation, owner: str = "t") -> None:
    """As for a request of this conversation: a marker that another process left there waits for it then."""
    trip = state.begin_trip(owner)
    state.tasks.ask(trip, received, None)
    await trip.run()
