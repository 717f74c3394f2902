from itertools import count

import msgspec

from gateway.conversations.registry import Registry
from gateway.conversations.turn import Turn
from gateway.store.keys import make_tag
from gateway.tenants import Tenant
from tests.builders.chat import make_plan, make_turn, read, render
from tests.builders.state import make_head

_RECEIVED = read(render([{"role": "user", "content": "Fix it."}]))


def make_registry(max_bodies: int = 64) -> Registry:
    """Its clock goes on by a second with each look."""
    ticks = count(100)
    return Registry(1 << 20, max_bodies, clock=lambda: float(next(ticks)))


def record(registry: Registry, conversation_id: str, tenant: str = "tenant:a") -> Turn:
    turn = make_turn(_RECEIVED, conversation_id=conversation_id, tenant=Tenant(tenant, None, "default"))
    registry.record(turn, make_plan(), make_head(_RECEIVED.conversation, conversation=conversation_id))
    return turn


def test_conversations_are_listed_the_newest_first() -> None:
    registry = make_registry()
    for conversation_id in ("a", "b", "a"):
        record(registry, conversation_id)
    listed = registry.list(None, 10)
    assert [(each.head.conversation, each.seen_seconds) for each in listed] == [("a", 102.0), ("b", 101.0)]


def test_a_list_has_no_more_than_was_asked_for() -> None:
    registry = make_registry()
    for conversation_id in "abc":
        record(registry, conversation_id)
    assert [each.head.conversation for each in registry.list(None, 2)] == ["c", "b"]


def test_a_tenant_sees_its_own_conversations_only() -> None:
    registry = make_registry()
    record(registry, "a", "tenant:one")
    record(registry, "b", "tenant:two")
    assert [each.head.conversation for each in registry.list("one", 10)] == ["a"]


def test_a_conversation_whose_turn_made_room_is_still_listed() -> None:
    registry = make_registry(max_bodies=1)
    record(registry, "a")
    newest = record(registry, "b")
    assert registry.find_turn("a") is None and registry.find_turn("b") is newest
    assert [each.head.conversation for each in registry.list(None, 10)] == ["b", "a"]
    found = registry.find("a")
    assert found is not None and (found.model, found.upstream, found.seen_seconds) == ("toy", "toy", 100.0)


def test_a_conversation_never_seen_is_not_found() -> None:
    registry = make_registry()
    assert registry.find("a") is None and registry.find_turn("a") is None and registry.list(None, 10) == []


def test_a_purged_tenant_is_not_listed_and_has_no_turn() -> None:
    registry = make_registry(max_bodies=1)
    for conversation_id, tenant in (("a", "tenant:one"), ("b", "tenant:one"), ("c", "tenant:two")):
        received = msgspec.structs.replace(_RECEIVED, owner=tenant)
        turn = make_turn(received, conversation_id=conversation_id, tenant=Tenant(tenant, None, "default"))
        head = make_head(received.conversation, owner=tenant, conversation=conversation_id)
        registry.record(turn, make_plan(), head)
    registry.forget(make_tag("tenant:one"))
    assert [each.head.conversation for each in registry.list(None, 10)] == ["c"]


def test_after_a_reload_conversations_are_listed_without_their_turns() -> None:
    registry = make_registry()
    record(registry, "a")
    registry.forget_turns()
    assert [each.head.conversation for each in registry.list(None, 10)] == ["a"]
    assert registry.find_turn("a") is None
