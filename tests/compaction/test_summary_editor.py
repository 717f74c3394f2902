"""A person's text takes the place of a summary, and a compaction that builds on the old one does not win."""

import asyncio
import logging
from dataclasses import replace

import pytest

from gateway.compaction.job import EDITED
from gateway.compaction.summary_editor import EditRefused
from gateway.core.compaction.request import CompactionReason, CompactionRequest
from gateway.core.history.cleared_results import rekey
from gateway.core.history.pivot import Pivot
from gateway.store import StoreError
from tests.builders.compaction import (
    CompactionParts,
    compaction_parts,
    make_cut,
    make_situation,
    receive,
    turn_of,
)
from tests.builders.processes import AWAITED, RECEIVED, processes
from tests.builders.state import make_store
from tests.toy.running import wait_until

_TURN = turn_of(RECEIVED)
_SITUATION = make_situation(RECEIVED)
_REQUEST = CompactionRequest(reason=CompactionReason.SOFT_THRESHOLD, calls=8)


async def summarize(parts: CompactionParts, covers: int = 5, base: Pivot | None = None) -> Pivot:
    result = await parts.job.compact(_TURN, _SITUATION, make_cut(covers, base), _REQUEST)
    assert result.pivot is not None
    return result.pivot


async def edit(parts: CompactionParts, pivot: Pivot, text: str, based_on: int | None = None) -> Pivot:
    edited = await parts.editor.edit(_TURN, pivot.key, text, based_on)
    assert isinstance(edited, Pivot)
    return edited


def cause(outcome: Pivot | EditRefused) -> str:
    assert isinstance(outcome, EditRefused)
    return outcome.cause


async def test_the_text_is_used_and_the_one_before_can_be_restored() -> None:
    async with compaction_parts() as parts:
        pivot = await summarize(parts)
        edited = await edit(parts, pivot, "A person knows better.")
        assert parts.state.pivots.find(pivot.key) == edited
        assert (edited.version, edited.summary) == (2, "A person knows better.")
        restored = await parts.editor.restore(_TURN, pivot.key, 1)
    assert isinstance(restored, Pivot)
    assert (restored.version, restored.summary) == (3, pivot.summary)
    assert (restored.tokens, restored.saved_tokens) == (pivot.tokens, pivot.saved_tokens)


async def test_a_longer_text_counts_as_longer() -> None:
    async with compaction_parts() as parts:
        pivot = await summarize(parts)
        edited = await edit(parts, pivot, "word " * 200)
    assert edited.tokens > pivot.tokens + 100
    assert edited.saved_tokens < pivot.saved_tokens - 100


async def test_the_log_has_ids_and_sizes_and_no_text(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gateway.compactor")
    async with compaction_parts() as parts:
        pivot = await summarize(parts)
        await edit(parts, pivot, "SECRET TEXT")
    (line,) = [record.getMessage() for record in caplog.records if "summary edited" in record.getMessage()]
    assert f"key={pivot.key} version=2 chars=11" in line
    assert "SECRET" not in caplog.text


@pytest.mark.parametrize(("text", "word"), [("  ", "empty"), ("word " * 9_000, "at most")])
async def test_a_text_that_does_not_pass_its_checks_changes_nothing(text: str, word: str) -> None:
    async with compaction_parts() as parts:
        pivot = await summarize(parts)
        refused = await parts.editor.edit(_TURN, pivot.key, text)
        assert parts.state.pivots.find(pivot.key) == pivot
    assert isinstance(refused, EditRefused) and refused.cause == "flawed" and word in refused.reason


async def test_of_two_edits_of_one_version_the_second_is_refused() -> None:
    async with compaction_parts() as parts:
        pivot = await summarize(parts)
        outcomes = await asyncio.gather(
            *(parts.editor.edit(_TURN, pivot.key, text, 1) for text in ("By one.", "By the other."))
        )
        (edited,) = [each for each in outcomes if isinstance(each, Pivot)]
        assert parts.state.pivots.find(pivot.key) == edited
        (refused,) = [each for each in outcomes if isinstance(each, EditRefused)]
        assert refused.cause == "outdated"


async def test_edits_without_a_version_come_one_after_the_other() -> None:
    async with compaction_parts() as parts:
        pivot = await summarize(parts)
        await asyncio.gather(*(parts.editor.edit(_TURN, pivot.key, text) for text in ("One.", "Two.")))
        known = await parts.state.edits.load_versions("t", pivot.key)
        assert [each.version for each in known.versions] == [1, 2]
        newest = parts.state.pivots.find(pivot.key)
    assert newest is not None and newest.version == 3


async def test_a_summary_of_another_conversation_or_of_none_is_not_in_use() -> None:
    async with compaction_parts() as parts:
        pivot = await summarize(parts)
        other = turn_of(receive(3, chars=50))
        assert cause(await parts.editor.edit(other, pivot.key, "Mine.")) == "not in use"
        assert cause(await parts.editor.edit(_TURN, "ab" * 32, "Mine.")) == "not in use"
        assert cause(await parts.editor.restore(_TURN, pivot.key, 7)) == "unknown version"


async def test_a_summary_whose_place_a_newer_one_has_taken_cannot_be_edited() -> None:
    async with compaction_parts() as parts:
        pivot = await summarize(parts)
        newer = await summarize(parts, 9, pivot)
        assert cause(await parts.editor.edit(_TURN, pivot.key, "Mine.")) == "not in use"
        assert (await edit(parts, newer, "Mine.")).version == 2


async def test_a_compaction_that_began_on_the_old_text_is_thrown_away() -> None:
    async with compaction_parts() as parts:
        pivot = await summarize(parts)
        parts.model.gate.clear()
        calls = len(parts.model.requests)
        task = asyncio.create_task(parts.job.compact(_TURN, _SITUATION, make_cut(9, pivot), _REQUEST))
        await wait_until(lambda: len(parts.model.requests) > calls)
        edited = await edit(parts, pivot, "A person knows better.")
        parts.model.gate.set()
        assert (await task).outcome is EDITED
        assert parts.state.pivots.list_on_chain(RECEIVED.conversation) == [edited]
        newer = await summarize(parts, 9, edited)
        assert parts.state.pivots.list_on_chain(RECEIVED.conversation) == [edited, newer]


async def test_a_summary_does_not_take_the_place_of_a_digest_that_was_edited() -> None:
    async with processes() as group:
        parts = group.one.parts
        assert await parts.job.digest(_TURN, _SITUATION, make_cut(9), CompactionReason.HARD_THRESHOLD)
        digest = group.one.find()
        assert digest is not None
        task = await group.one.start_calling()
        edited = await edit(parts, digest, "A person knows better.")
        parts.model.gate.set()
        assert (await task).outcome is EDITED
        assert group.one.find() == edited and not edited.is_digest


async def test_a_summary_in_the_place_of_a_digest_is_its_next_version() -> None:
    async with compaction_parts() as parts:
        await parts.job.digest(_TURN, _SITUATION, make_cut(9), CompactionReason.HARD_THRESHOLD)
        result = await parts.compactor.start(_TURN, _SITUATION, make_cut(9), AWAITED)
    assert result.pivot is not None and (result.pivot.version, result.pivot.is_digest) == (2, False)


async def test_a_compaction_of_another_process_is_thrown_away_too() -> None:
    async with processes() as group:
        pivot = await summarize(group.one.parts)
        assert await group.other.parts.state.pivots.load("t", pivot.key) == pivot
        calls = group.one.calls
        group.one.parts.model.gate.clear()
        cut = make_cut(9, pivot)
        making = asyncio.create_task(group.one.parts.job.compact(_TURN, _SITUATION, cut, _REQUEST))
        await wait_until(lambda: group.one.calls > calls)
        edited = await edit(group.other.parts, pivot, "A person knows better.")
        group.one.parts.model.gate.set()
        assert (await making).outcome is EDITED
        assert await group.one.parts.state.pivots.load("t", pivot.key) == edited


async def test_of_two_processes_that_edit_one_version_one_is_refused() -> None:
    async with processes() as group:
        pivot = await summarize(group.one.parts)
        outcomes = await asyncio.gather(
            group.one.parts.editor.edit(_TURN, pivot.key, "By one.", 1),
            group.other.parts.editor.edit(_TURN, pivot.key, "By the other.", 1),
        )
        assert sorted(type(each).__name__ for each in outcomes) == ["EditRefused", "Pivot"]


async def test_the_original_of_a_copy_follows_because_it_is_what_is_found_again() -> None:
    async with compaction_parts() as parts:
        original = await summarize(parts)
        cleared = receive(14, chars=3_900)
        copy = rekey(original, cleared.conversation)
        assert copy.origin == original.key
        await parts.state.pivots.save(copy)
        edited = await parts.editor.edit(turn_of(cleared), copy.key, "A person knows better.")
        assert isinstance(edited, Pivot) and (edited.key, edited.origin) == (copy.key, original.key)
        followed = parts.state.pivots.find(original.key)
        assert followed is not None and (followed.summary, followed.origin) == (edited.summary, None)
        known = await parts.state.edits.load_versions("t", original.key)
    assert [each.text for each in known.versions] == [original.summary]


async def test_what_cannot_be_stored_is_not_used() -> None:
    store = await make_store()
    async with compaction_parts(store=store) as parts:
        pivot = await summarize(parts)
        await store.close()
        with pytest.raises(StoreError):
            await parts.editor.edit(_TURN, pivot.key, "Mine.")
        assert parts.state.pivots.find(pivot.key) == replace(pivot)
