"""A purge: nothing of a tenant or a conversation stays, nothing comes back, and others keep theirs."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.originals.archive import Removals
from gateway.purge import Purge, PurgeCount
from gateway.store.interface import Key, Lookup
from gateway.store.keys import make_tag
from gateway.store.stores import Stores, make_stores
from tests.builders.originals import make_search
from tests.toy.running import wait_until

_ONE, _OTHER = make_tag("tenant:one"), make_tag("tenant:other")


async def fill(stores: Stores, tag: str, group: str) -> None:
    stores.state.put(Key(tag, "head", f"00{group}"), b"canary", 60, group=group)
    await stores.originals.put(tag, group, {"original": b"canary"})
    await stores.named.put(tag, group, {"turn": b"canary"})


async def list_kept(stores: Stores, tag: str, group: str) -> list[str]:
    (head,) = await stores.state.get(tag, [Lookup("head", [f"00{group}"])])
    kept = ["head"] if head is not None else []
    kept += await stores.originals.get(tag, group, ["original"])
    return kept + list(await stores.named.get(tag, group, ["turn"]))


_ALL = ["head", "original", "turn"]


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncIterator[Stores]:
    url = f"disk:{tmp_path}/store"
    made = make_stores(url, originals_bytes=1 << 20, named_bytes=1 << 20, keep_seconds=60)
    await made.open()
    yield made
    await made.close()


def make_purge(stores: Stores) -> Purge:
    return Purge(stores, make_search(Removals(stores.state, 60), stores.originals))


async def test_a_tenant_leaves_every_store_and_the_others_stay(stores: Stores) -> None:
    for tag, group in ((_ONE, "aa"), (_ONE, "bb"), (_OTHER, "aa")):
        await fill(stores, tag, group)
    purge = make_purge(stores)
    assert await purge.run(_ONE) == PurgeCount(state=2, originals=2, named=2)
    assert await list_kept(stores, _ONE, "aa") == await list_kept(stores, _ONE, "bb") == []
    assert await list_kept(stores, _OTHER, "aa") == _ALL
    assert await purge.run(_ONE) == PurgeCount()


async def test_a_conversation_leaves_every_store_and_the_others_stay(stores: Stores) -> None:
    for group in ("aa", "bb"):
        await fill(stores, _ONE, group)
    assert await make_purge(stores).run_conversation(_ONE, "aa") == PurgeCount(state=1, originals=1, named=1)
    assert await list_kept(stores, _ONE, "aa") == []
    assert await list_kept(stores, _ONE, "bb") == _ALL


async def test_no_byte_of_it_is_left_in_any_file(stores: Stores, tmp_path: Path) -> None:
    await fill(stores, _ONE, "aa")
    assert await list_kept(stores, _ONE, "aa") == _ALL
    await make_purge(stores).run_conversation(_ONE, "aa")

    def is_clean() -> bool:
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        return not any(b"canary" in path.read_bytes() for path in files)

    await wait_until(is_clean)
