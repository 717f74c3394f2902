"""Stores in memory, the state in front of them, and heads."""

from typing import Any

from gateway.core.history.conversation import Conversation
from gateway.state import State
from gateway.state import make_state as make_state_of
from gateway.state.record_cache import Storage
from gateway.state.trip import Trip
from gateway.store import Store
from gateway.store.keys import make_key, make_tag
from gateway.store.memory import MemoryStore
from tests.toy.shared_store import SharedStore, ToyServer


async def make_store() -> MemoryStore:
    """An open one."""
    store = MemoryStore()
    await store.open()
    return store


def make_storage(store: Store, **fields: Any) -> Storage:
    defaults: dict[str, Any] = {"keep_seconds": 60, "max_bytes": 1 << 20}
    return Storage(store=store, **(defaults | fields))


def make_state(store: Store, **fields: Any) -> State:
    return make_state_of(make_storage(store, **fields))


async def connect(server: ToyServer) -> tuple[SharedStore, State]:
    """One process of several that share a store."""
    store = server.connect()
    await store.open()
    return store, make_state(store)


async def look_for_marker(state: State, received: Conversation, owner: str = "t") -> None:
    """As for a request of this conversation: a marker that another process left there waits for it then."""
    trip = Trip(state.store)
    state.tasks.ask(trip, owner, received, None)
    await trip.run()


def stored_key(kind: str, name: str, owner: str = "t") -> str:
    """The key of a record in the store."""
    return make_key(make_tag(owner), kind, name)
