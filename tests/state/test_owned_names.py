"""Which tenant may use a name, also after a restart."""

from gateway.state.owned_names import OwnedNames
from tests.builders.state import make_storage, make_store


async def test_a_name_belongs_to_the_tenant_and_the_upstream_that_gave_it() -> None:
    names = OwnedNames(make_storage(await make_store()))
    names.record("key:a", "one", ["resp_1", "msg_1"])
    assert await names.owns("key:a", "one", "resp_1") and await names.owns("key:a", "one", "msg_1")
    assert not await names.owns("key:b", "one", "resp_1")
    assert not await names.owns("key:a", "two", "resp_1")
    assert not await names.owns("key:a", "one", "resp_2")


async def test_names_are_known_after_a_restart() -> None:
    storage = make_storage(await make_store())
    OwnedNames(storage).record("key:a", "one", ["resp_1"])
    assert await OwnedNames(storage).owns("key:a", "one", "resp_1")
    assert not await OwnedNames(storage).owns("key:b", "one", "resp_1")


async def test_a_name_of_any_characters_is_accepted() -> None:
    names = OwnedNames(make_storage(await make_store()))
    names.record("key:a", "one", ["\udce9 \0é:"])
    assert await names.owns("key:a", "one", "\udce9 \0é:")
