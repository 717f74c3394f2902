"""The whole index: what a tenant finds in its own conversations, and nothing else."""

import asyncio
import dataclasses
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.conversations.turn import Turn
from gateway.core.history.cleared_results import rekey
from gateway.core.policy import Policy
from gateway.core.search.cutting import estimate_tokens
from gateway.originals.archive import KeptList, OriginalsArchive, make_list_prefix
from gateway.originals.file_locks import FileLocks
from gateway.originals.index import OriginalsIndex
from gateway.originals.removed import parse_removed, render_removed
from gateway.originals.search import MentionedFile, Scope, SearchFailed, SearchImpossible
from gateway.store.keys import make_tag
from tests.builders.chat import JSON, make_pivot, make_turn, read, render
from tests.builders.originals import add_originals, make_search
from tests.builders.state import make_store
from tests.originals.test_archive import compact, cut_at, talk
from tests.originals.test_origins import call

_TAG = make_tag("t")


def say(*texts: str, tenant: str = "t", conversation: str = "c", **fields: Any) -> Turn:
    """A conversation in which a user says these things, behind an opening."""
    messages: list[JSON] = [{"role": "user", "content": "Begin."}, {"role": "assistant", "content": "Yes."}]
    messages += [{"role": "user", "content": text} for text in texts]
    return make_turn(read(render(messages), tenant), conversation_id=conversation, **fields)


async def add(search: OriginalsIndex, turn: Turn, now: float | None = None) -> None:
    await add_originals(search, turn, range(len(turn.received.conversation.messages)), now)


def list_files(directory: Path) -> list[Path]:
    return list(directory.rglob("*.sqlite"))


async def find(search: OriginalsIndex, query: str, tag: str = _TAG, *scopes: Scope) -> list[str]:
    return [piece.text for piece in await search.search(tag, scopes or [Scope("c")], query)]


async def test_what_is_archived_is_found_with_its_origin() -> None:
    store = await make_store()
    search = make_search(store)
    archive = OriginalsArchive(store, 60, search.note_kept)
    messages: list[JSON] = [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "tool_calls": [call("1", "read", '{"path": "src/app.py"}')]},
        {"role": "tool", "tool_call_id": "1", "content": "def main(): return 4711"},
        {"role": "assistant", "content": "It returns 4711 at line 12."},
        {"role": "user", "content": "Good."},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "More."},
    ]
    turn = make_turn(read(render(messages)), conversation_id="c", policy=Policy(recall="tool"))
    compact(archive, turn, 1, 5)
    await archive.finish()
    await search.finish()
    found = await search.search(_TAG, [Scope("c")], "def main")
    assert [(piece.position, piece.role, piece.tool, piece.path) for piece in found] == [
        (2, "tool", "read", "src/app.py")
    ]
    assert (found[0].text, found[0].start, found[0].end) == ("def main(): return 4711", 0, 23)
    text = await search.read(_TAG, [Scope("c")], 2, start=4, max_chars=6)
    assert text is not None and (text.text, text.total_chars, text.tool) == ("main()", 23, "read")
    assert await search.list_files(_TAG, [Scope("c")]) == [
        MentionedFile(path="src/app.py", mentions=1, positions=[1])
    ]
    await search.close()


async def test_a_conversation_is_indexed_from_its_first_search_on(tmp_path: Path) -> None:
    store = await make_store()
    search = make_search(store, tmp_path)
    archive = OriginalsArchive(store, 60, search.note_kept)
    for covers, files in ((3, 0), (5, 1)):
        compact(archive, talk(13), covers - 2, covers)
        await archive.finish()
        await search.finish()
        assert len(list_files(tmp_path)) == files
        assert await find(search, f"{covers // 2 - 1}") != []
    await search.close()


async def test_messages_that_are_archived_again_are_found_once() -> None:
    store = await make_store()
    search = make_search(store)
    turn = talk(9)
    await add_originals(search, turn, range(1, 5))
    await add_originals(search, turn, range(1, 5))
    assert sorted(await find(search, "0")) == ["And 0?", "I did 0."]
    archive = OriginalsArchive(store, 60, search.note_kept)
    compact(archive, turn, 1, 5)
    await archive.finish()
    await search.finish()
    assert sorted(await find(search, "0")) == ["And 0?", "I did 0."]
    await search.close()


async def test_a_branch_finds_its_own_messages_and_those_of_its_pivot() -> None:
    search = make_search(await make_store())
    await add(search, say("alpha one", "alpha two", conversation="parent"))
    await add(search, say("alpha three", conversation="c"))
    scopes = [Scope("c"), Scope("parent", before=3)]
    assert {*await find(search, "alpha", _TAG, *scopes)} == {"alpha three", "alpha one"}
    assert await search.read(_TAG, scopes, 3) is None
    both = [Scope("parent", before=3), Scope("parent")]
    assert {*await find(search, "alpha", _TAG, *both)} == {"alpha one", "alpha two"}
    await search.close()


async def test_pieces_are_bounded_in_number_and_tokens() -> None:
    search = make_search(await make_store())
    await add(search, say(*(f"alpha {'word ' * 100}{number}" for number in range(20))))
    found = await search.search(_TAG, [Scope("c")], "alpha", most=3, max_tokens=10_000)
    assert len(found) == 3
    found = await search.search(_TAG, [Scope("c")], "alpha", most=50, max_tokens=700)
    assert 2 <= len(found) <= 4 and sum(estimate_tokens(piece.text) for piece in found) <= 700
    await search.close()


async def test_a_megabyte_in_one_line_is_searched() -> None:
    search = make_search(await make_store())
    await add(search, say("x" * 500_000 + " needle " + "y" * 500_000))
    (piece,) = await search.search(_TAG, [Scope("c")], "needle")
    assert "needle" in piece.text and len(piece.text) <= 1_000
    text = await search.read(_TAG, [Scope("c")], 2, start=piece.start, max_chars=len(piece.text))
    assert text is not None and text.text == piece.text and text.total_chars == 1_000_008
    await search.close()


async def test_expired_originals_are_not_found(tmp_path: Path) -> None:
    now = 1_000.0
    search = make_search(await make_store(), tmp_path, keep_seconds=60, clock=lambda: now)
    await add(search, say("canary one"), now)
    now += 30
    await add(search, say("canary two", conversation="d"), now)
    now += 31
    assert await find(search, "canary") == []
    assert await find(search, "canary", _TAG, Scope("d")) == ["canary two"]
    assert await search.read(_TAG, [Scope("c")], 2) is None
    await search.close()


async def test_a_start_deletes_what_expired_meanwhile(tmp_path: Path) -> None:
    store = await make_store()
    before = make_search(store, tmp_path, keep_seconds=60, clock=lambda: 1_000.0)
    await add(before, say("canary one"), 1_000.0)
    await before.close()
    after = make_search(store, tmp_path, clock=lambda: 1_061.0)
    after.start()
    assert await find(after, "canary") == []
    while list_files(tmp_path):
        await asyncio.sleep(0.01)
    await after.close()


async def test_forgetting_deletes_files_and_what_was_queued(tmp_path: Path) -> None:
    store = await make_store()
    search = make_search(store, tmp_path)
    await add(search, say("canary", conversation="c"))
    await add(search, say("canary", conversation="d"))
    await add(search, say("canary", tenant="u"))
    search.forget_conversation(_TAG, "c")
    await search.finish()
    assert await find(search, "canary") == []
    assert await find(search, "canary", _TAG, Scope("d")) == ["canary"]
    search.forget(_TAG)
    await search.finish()
    assert await find(search, "canary", _TAG, Scope("d")) == []
    assert await find(search, "canary", make_tag("u")) == ["canary"]
    await search.close()
    assert list_files(tmp_path / _TAG) == []


async def test_a_list_that_was_queued_when_its_conversation_was_forgotten_is_not_indexed(
    tmp_path: Path,
) -> None:
    store = await make_store()
    search = make_search(store, tmp_path)

    def note_kept(kept: KeptList) -> None:
        search.note_kept(kept)
        search.forget(_TAG)

    archive = OriginalsArchive(store, 60, note_kept)
    compact(archive, talk(9, policy=Policy(recall="auto")), 1, 5)
    await archive.finish()
    await search.finish()
    assert list_files(tmp_path) == []
    await search.close()


@pytest.mark.parametrize("name", ["", "*", "../c", "c:0", "c" * 1_000, "é", "c\0"])
async def test_any_id_that_a_model_names_is_only_a_name(name: str) -> None:
    search = make_search(await make_store())
    await add(search, say("canary"))
    assert await find(search, "canary", _TAG, Scope(name)) == []
    assert await search.list_files(_TAG, [Scope(name)]) == []
    await search.close()


async def fail_all(search: OriginalsIndex, match: str) -> None:
    """No way to ask says that nothing is there."""
    with pytest.raises(SearchFailed, match=match):
        await search.search(_TAG, [Scope("c")], "canary")
    with pytest.raises(SearchFailed, match=match):
        await search.read(_TAG, [Scope("c")], 2)
    with pytest.raises(SearchFailed, match=match):
        await search.list_files(_TAG, [Scope("c")])


async def test_a_query_that_takes_too_long_has_failed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    search = make_search(await make_store())
    await add(search, say("canary"))
    with monkeypatch.context() as slow:
        slow.setattr("gateway.originals.index._QUERY_SECONDS", -1.0)
        slow.setattr("gateway.originals.index._STEPS", 1)
        await fail_all(search, "took too long")
    assert await find(search, "canary") == ["canary"]
    await search.close()
    assert caplog.text.count("took too long") == 1 and "canary" not in caplog.text


async def test_a_lock_that_another_process_holds_fails_a_search_unless_another_place_has_something(
    tmp_path: Path,
) -> None:
    search = make_search(await make_store(), tmp_path, lock_seconds=0.0)
    await add(search, say("canary"))
    await add(search, say("canary two", conversation="d"))
    with FileLocks(tmp_path / "locks").exclusive("c.sqlite"):
        await fail_all(search, "another process")
        assert await find(search, "canary", _TAG, Scope("c"), Scope("d")) == ["canary two"]
        with pytest.raises(SearchFailed):
            await find(search, "absent", _TAG, Scope("c"), Scope("d"))
    assert await find(search, "absent", _TAG, Scope("c"), Scope("d")) == []
    await search.close()


async def test_originals_that_cannot_be_indexed_are_not_said_to_be_absent(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = await make_store()
    search = make_search(store, tmp_path / "file" / "search")
    assert await find(search, "0") == []
    archive = OriginalsArchive(store, 60)
    compact(archive, talk(9), 1, 5)
    await archive.finish()
    await fail_all(search, "not all originals are indexed")
    await search.close()


async def test_a_sqlite_that_cannot_search_fails_in_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "gateway.originals.index_file._SCHEMA", "CREATE VIRTUAL TABLE words USING absent(text)"
    )
    search = make_search(await make_store())
    with pytest.raises(SearchImpossible, match="no such module"):
        await find(search, "canary")
    await search.close()


_WORDS = ["canary", "alpha", "日本語", "src/app.py", "getUserName", '"', "OR", "*", "🚀", "é"]
_QUERIES = st.lists(st.one_of(st.sampled_from(_WORDS), st.text(max_size=8)), max_size=8).map(" ".join)


@settings(max_examples=30, deadline=None)
@given(st.data())
async def test_no_query_finds_what_is_another_tenants_or_conversations(data: st.DataObject) -> None:
    search = make_search(await make_store())
    places = [("t", "c"), ("t", "d"), ("u", "c"), ("u", "d")]
    texts = [f"{data.draw(_QUERIES)} canary src/app.py 日本語 🚀" for _ in places]
    for (tenant, conversation), text in zip(places, texts, strict=True):
        await add(search, say(f"{text} {tenant}-{conversation}", tenant=tenant, conversation=conversation))
    for _ in range(8):
        query = data.draw(_QUERIES)
        for tenant, conversation in places:
            found = await find(search, f"{query} canary", make_tag(tenant), Scope(conversation))
            assert len(found) == 1 and found[0].endswith(f"{tenant}-{conversation}")
            found = await find(search, query, make_tag(tenant), Scope(conversation))
            assert all(text.endswith((f"{tenant}-{conversation}", "Begin.", "Yes.")) for text in found)
    await search.close()


def _accept(turn: Turn, *lengths: int) -> Scope:
    """A scope of what these parts of a history prove, by their lengths."""
    proven = {(length - 1, turn.received.conversation.find_link(length)) for length in lengths}
    return Scope("c", accepts=lambda position, link: (position, link) in proven)


async def test_of_two_histories_under_one_id_each_finds_its_own() -> None:
    store = await make_store()
    search = make_search(store)
    # The same words at the same place behind others are kept for both.
    one = say("canary one", "Go on.", policy=Policy(recall="tool"))
    others = [say(*["canary canary"] * 30, f"canary {name}", "Go on.") for name in ("two", "three")]
    archive = OriginalsArchive(store, 60, search.note_kept)
    for turn in (one, *others):
        length = len(turn.received.conversation.messages)
        compact(archive, turn, 1, length)
        await archive.finish()
    found = [piece.text for piece in await search.search(_TAG, [Scope("c")], "canary one", most=200)]
    assert {"canary one", "canary two", "canary three"} <= {*found}
    whole = _accept(one, *range(1, 5))
    assert await find(search, "canary", _TAG, whole) == ["canary one"]
    assert await find(search, "go", _TAG, whole) == ["Go on."]
    # What came before an accepted message is its own, and nothing behind it.
    assert await find(search, "canary", _TAG, _accept(one, 4)) == ["canary one"]
    assert await find(search, "canary two", _TAG, _accept(others[0], 33)) != []
    assert await find(search, "go", _TAG, _accept(one, 3)) == []
    assert await find(search, "canary", _TAG, _accept(one)) == []
    await search.close()


async def test_an_original_without_a_link_is_found_only_by_whoever_asks_for_the_id() -> None:
    store = await make_store()
    search = make_search(store)
    archive = OriginalsArchive(store, 60)
    turn = talk(9)
    compact(archive, turn, 1, 5)
    await archive.finish()
    ((key, data),) = await store.scan(make_list_prefix(_TAG, "c"))
    removed = parse_removed(zlib.decompress(data))
    assert removed is not None
    earlier = [replace(original, link="", link_before="") for original in removed.originals]
    await store.write_durably(
        key, zlib.compress(render_removed(replace(removed, originals=earlier))), keep_seconds=60
    )
    assert await find(search, "did") != []
    assert await find(search, "did", _TAG, Scope("c", accepts=lambda *_: True)) == []
    await search.close()


async def test_what_a_client_has_cleared_before_the_last_summary_is_still_its_own() -> None:
    store = await make_store()
    search = make_search(store)
    archive = OriginalsArchive(store, 60, search.note_kept)
    before, after = say("canary", "Go on.", "More."), say("[cleared]", "Go on.", "More.", "And more.")
    compact(archive, before, 1, 4)
    first = make_pivot(before.received.conversation, 4)
    copy = rekey(first, after.received.conversation)
    assert copy.origin == first.key != copy.key
    second = make_pivot(after.received.conversation, 6)
    archive.keep_compacted(after, dataclasses.replace(cut_at(4, 6), base=copy), second)
    await archive.finish()
    assert await find(search, "canary", _TAG, _accept(after, *range(1, 7))) == ["canary"]
    assert await find(search, "canary", _TAG, _accept(after, 4)) == []
    await search.close()
