"""Logs of conversations, kept by one process and found by the next."""

from gateway.conversations.turn import Turn
from gateway.reporting.compaction_log import CompactionLogWriter, Entry
from gateway.store.memory import MemoryStore
from gateway.tenants import Tenant
from tests.builders.chat import make_turn, read, render

_BODY = render([{"role": "user", "content": "Fix it."}])


def make_entry(number: int) -> Entry:
    return Entry(at_seconds=float(number), kind="summary", trigger="auto", reason="overflow")


def turn_of(tenant: str, conversation_id: str = "c") -> Turn:
    return make_turn(
        read(_BODY, tenant), tenant=Tenant(tenant, None, "default"), conversation_id=conversation_id
    )


async def make_store() -> MemoryStore:
    store = MemoryStore()
    await store.open()
    return store


async def read_times(chronicle: CompactionLogWriter, conversation: str = "c") -> list[float]:
    log = await chronicle.read(conversation)
    return [entry.at_seconds for entry in log.entries] if log is not None else []


async def test_another_process_finds_the_log_and_goes_on_with_it() -> None:
    store = await make_store()
    before = CompactionLogWriter(store, keep_seconds=60)
    for number in range(3):
        before.note(turn_of("t"), make_entry(number))
    await before.finish()
    after = CompactionLogWriter(store, keep_seconds=60)
    after.note(turn_of("t"), make_entry(3))
    assert await read_times(after) == [0, 1, 2, 3]


async def test_what_was_just_noted_is_read_at_once_and_of_that_conversation_alone() -> None:
    chronicle = CompactionLogWriter(await make_store(), keep_seconds=60)
    chronicle.note(turn_of("t", "c"), make_entry(1))
    chronicle.note(turn_of("t", "d"), make_entry(2))
    assert await read_times(chronicle, "c") == [1]
    assert await read_times(chronicle, "d") == [2]
    assert await chronicle.read("e") is None


async def test_a_damaged_log_begins_anew() -> None:
    store = await make_store()
    store.write("log:c", b'{"owner":', keep_seconds=60)
    chronicle = CompactionLogWriter(store, keep_seconds=60)
    assert await chronicle.read("c") is None
    chronicle.note(turn_of("t"), make_entry(1))
    assert await read_times(chronicle) == [1]


async def test_a_log_of_another_tenant_is_never_added_to() -> None:
    store = await make_store()
    chronicle = CompactionLogWriter(store, keep_seconds=60)
    chronicle.note(turn_of("t"), make_entry(1))
    chronicle.note(turn_of("u"), make_entry(2))
    assert await read_times(chronicle) == [2]
