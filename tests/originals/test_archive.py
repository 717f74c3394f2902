import zlib
from pathlib import Path
from typing import Any

import pytest

from gateway.conversations.turn import Turn
from gateway.core.compaction.cut import Cut
from gateway.core.history.pivot import Mark
from gateway.core.policy import Originals, Policy
from gateway.originals.archive import OriginalsArchive
from gateway.originals.removed import RemovedMessages
from gateway.store import Store, StoreError
from gateway.store.disk import DiskStore
from gateway.store.keys import make_key, make_tag
from gateway.store.memory import MemoryStore
from tests.builders.chat import JSON, make_batch, make_pivot, make_turn, read, render, render_message
from tests.builders.state import make_store

_TAG = make_tag("t")
# The archive.

_TALK: list[JSON] = [
    {"role": "user", "content": "Fix it."},
    *(
        message
        for number in range(6)
        for message in (
            {"role": "assistant", "content": f"I did {number}."},
            {"role": "user", "content": f"And {number}?"},
        )
    ),
]


def talk(messages: int, conversation: str = "c", **fields: Any) -> Turn:
    return make_turn(read(render(_TALK[:messages])), conversation_id=conversation, **fields)


def cut_at(start: int, covers: int) -> Cut:
    return Cut(base=None, start=start, covers=covers, replaced_tokens=100, cap_tokens=50)


def compact(archive: OriginalsArchive, turn: Turn, start: int, covers: int, **fields: Any) -> None:
    pivot = make_pivot(turn.received.conversation, covers, **fields)
    archive.keep_compacted(turn, cut_at(start, covers), pivot)


async def read_positions(archive: OriginalsArchive, conversation: str = "c") -> list[list[int]]:
    """Of each list, the oldest first."""
    await archive.finish()
    lists = await read_lists(archive, conversation)
    return [[original.position for original in removed.originals] for removed in lists[::-1]]


async def read_lists(archive: OriginalsArchive, conversation: str = "c") -> list[RemovedMessages]:
    """The newest first."""
    return (await archive.load_lists(_TAG, conversation, 1_000)).lists


async def test_the_first_list_holds_all_that_a_pivot_covers_and_the_next_only_new_messages() -> None:
    archive = OriginalsArchive(await make_store(), keep_seconds=60)
    # As after a restart: the messages up to 3 were compacted before.
    compact(archive, talk(9), 3, 5)
    compact(archive, talk(13), 5, 7)
    assert await read_positions(archive) == [[1, 2, 3, 4], [5, 6]]


async def test_a_summary_in_place_of_a_digest_lists_all_messages_that_it_replaces() -> None:
    archive = OriginalsArchive(await make_store(), keep_seconds=60)
    compact(archive, talk(9), 1, 5, is_digest=True)
    compact(archive, talk(13), 1, 7)
    assert await read_positions(archive) == [[1, 2, 3, 4], [1, 2, 3, 4, 5, 6]]
    assert [removed.kind for removed in await read_lists(archive)] == ["summary", "digest"]


async def test_an_opening_that_is_sent_cut_is_archived_whole() -> None:
    archive = OriginalsArchive(await make_store(), keep_seconds=60)
    compact(archive, talk(9), 1, 3)
    compact(archive, talk(9), 3, 5, opening_chars=4)
    assert await read_positions(archive) == [[1, 2], [0, 1, 2, 3, 4]]


async def test_an_edited_history_is_archived_from_its_beginning() -> None:
    archive = OriginalsArchive(await make_store(), keep_seconds=60)
    compact(archive, talk(9), 1, 5)
    edited = [*_TALK[:2], {"role": "user", "content": "No, otherwise."}, *_TALK[3:]]
    compact(archive, make_turn(read(render(edited))), 5, 7)
    assert await read_positions(archive) == [[1, 2, 3, 4], [1, 2, 3, 4, 5, 6]]


async def test_the_marked_messages_of_a_batch_are_archived() -> None:
    archive = OriginalsArchive(await make_store(), keep_seconds=60)
    turn = talk(9)
    archive.keep_pruned(turn, make_batch(turn.received.conversation, [Mark(2), Mark(6, 20)]))
    assert await read_positions(archive) == [[2, 6]]
    (removed,) = await read_lists(archive)
    raws = [await archive.load(_TAG, "c", original.digest) for original in removed.originals]
    assert raws == [render_message(_TALK[2]), render_message(_TALK[6])]


async def test_the_newest_lists_come_first_and_the_others_are_counted() -> None:
    archive = OriginalsArchive(await make_store(), keep_seconds=60)
    for covers in (3, 5, 7):
        compact(archive, talk(13), covers - 2, covers)
    await archive.finish()
    for most, wanted in ((0, [6]), (3, [6]), (4, [6, 4]), (6, [6, 4, 2])):
        listing = await archive.load_lists(_TAG, "c", most)
        assert [removed.originals[-1].position for removed in listing.lists] == wanted
        assert listing.left_off == 3 - len(wanted)


async def test_a_listing_goes_on_behind_another_one_although_there_are_new_lists() -> None:
    archive = OriginalsArchive(await make_store(), keep_seconds=60)
    for covers in (3, 5, 7):
        compact(archive, talk(13), covers - 2, covers)
    await archive.finish()
    positions, behind = list[int](), None
    for left_off in (2, 1, 0):
        listing = await archive.load_lists(_TAG, "c", 1, behind)
        positions += [removed.originals[-1].position for removed in listing.lists]
        assert listing.left_off == left_off
        behind = listing.last
        compact(archive, talk(13), 7, 9)
        await archive.finish()
    assert positions == [6, 4, 2]
    assert (await archive.load_lists(_TAG, "c", 1, behind)).lists == []


async def test_the_policy_decides_how_long_originals_are_kept() -> None:
    now = 1_000_000.0
    store = MemoryStore(clock=lambda: now)
    await store.open()
    archive = OriginalsArchive(store, keep_seconds=86_400)
    compact(archive, talk(9, policy=Policy(originals=Originals(days=3))), 1, 5)
    compact(archive, talk(9, conversation="d"), 1, 5)
    assert await read_positions(archive, "c") == await read_positions(archive, "d") == [[1, 2, 3, 4]]
    now += 2 * 86_400
    assert await read_positions(archive, "c") == [[1, 2, 3, 4]]
    assert await read_positions(archive, "d") == []
    now += 2 * 86_400
    assert await store.scan("") == []


@pytest.mark.parametrize("damage", ["cut off", "not compressed", "another message", "gone"])
async def test_a_damaged_original_is_none(damage: str) -> None:
    store = await make_store()
    archive = OriginalsArchive(store, keep_seconds=60)
    compact(archive, talk(9), 1, 5)
    await archive.finish()
    (removed,) = await read_lists(archive)
    key = make_key(_TAG, "original", removed.originals[0].digest)
    whole = await store.read(key) or b""
    assert zlib.decompress(whole) == render_message(_TALK[1])
    instead = {
        "cut off": whole[:-3],
        "not compressed": render_message(_TALK[1]),
        "another message": zlib.compress(render_message(_TALK[2])),
    }
    if damage in instead:
        store.write(key, instead[damage], keep_seconds=60)
    else:
        store.delete(key)
    assert await archive.load(_TAG, "c", removed.originals[0].digest) is None
    assert await archive.load(_TAG, "c", removed.originals[1].digest) == render_message(_TALK[2])


@pytest.mark.parametrize("damage", [b"", b"x", zlib.compress(b'{"owner":'), zlib.compress(b"\xff")])
async def test_a_damaged_list_is_left_out(damage: bytes) -> None:
    store = await make_store()
    archive = OriginalsArchive(store, keep_seconds=60)
    store.write(make_key(_TAG, "taken", f"c:{0:016x}"), damage, keep_seconds=60)
    compact(archive, talk(9), 1, 5)
    assert await read_positions(archive) == [[1, 2, 3, 4]]
    (removed,) = await read_lists(archive)
    assert await archive.load(_TAG, "c", removed.originals[0].digest) is not None
    assert await archive.load(_TAG, "c", "0" * 64) is None


class _FullStore(MemoryStore):
    """Accepts a number of durable writes and no more."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room

    async def write_durably(self, key: str, value: bytes, *, keep_seconds: float) -> None:
        if self.room == 0:
            raise StoreError("full")
        self.room -= 1
        await super().write_durably(key, value, keep_seconds=keep_seconds)


async def test_a_list_never_names_an_original_that_could_not_be_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # Two slices and the list.
    long_talk = [{"role": "user", "content": "x" * 300_000 + str(number)} for number in range(9)]
    turn = make_turn(read(render([_TALK[0], _TALK[1], *long_talk])))
    for room in range(4):
        store = _FullStore(room)
        await store.open()
        archive = OriginalsArchive(store, keep_seconds=60)
        compact(archive, turn, 1, 10)
        compact(archive, turn, 1, 10)
        assert await read_positions(archive) == ([list(range(1, 10))] if room == 3 else [])
    # Logged once for each archive.
    assert caplog.text.count("originals are not kept") == 4


async def test_a_long_history_is_read_back_whole_from_the_disk(tmp_path: Path) -> None:
    texts = [str(number) * (1 + number % 7 * 40_000) for number in range(60)]
    messages: list[JSON] = [_TALK[0], _TALK[1], *({"role": "user", "content": text} for text in texts)]
    turn = make_turn(read(render(messages)))
    store: Store = DiskStore(tmp_path / "store", linger_seconds=0.01)
    await store.open()
    archive = OriginalsArchive(store, keep_seconds=60)
    compact(archive, turn, 1, 61)
    await archive.finish()
    (removed,) = await read_lists(archive)
    raws = [await archive.load(_TAG, "c", original.digest) for original in removed.originals]
    await store.close()
    assert raws == [render_message(message) for message in messages[1:61]]
