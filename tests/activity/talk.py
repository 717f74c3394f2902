"""A conversation that goes on by a turn at a time, for tests of the book."""

from typing import Any

from gateway.activity.book import ActivityBook
from gateway.conversations.recognizer import Received
from gateway.conversations.turn import Turn
from gateway.core.compaction.plan import Plan
from gateway.core.history.pivot import Batch, Pivot
from gateway.tenants import Tenant
from tests.builders.chat import make_turn, read, render
from tests.state.talk import MESSAGES
from tests.store.clock import Clock

BOOK_BYTES = 4 << 20


def make_book(max_bytes: int = BOOK_BYTES, clock: Clock | None = None) -> ActivityBook:
    return ActivityBook(max_bytes, clock or make_clock())


def make_clock() -> Clock:
    clock = Clock()
    clock.now = 1_000.0
    return clock


def receive(tenant: str = "t") -> Received:
    return read(render(MESSAGES), tenant)


def turn(conversation_id: str = "c", tenant: str = "t", **fields: Any) -> Turn:
    named = {"tenant": Tenant(tenant, None, "default"), "conversation_id": conversation_id}
    return make_turn(receive(tenant), **(named | fields))


def plan(
    received: int = 100, sent: int = 100, pivot: Pivot | None = None, batches: tuple[Batch, ...] = ()
) -> Plan:
    return Plan(pivot=pivot, batches=batches, new_batch=None, received=received, sent=sent, output=None)
