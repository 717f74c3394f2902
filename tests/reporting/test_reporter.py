from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from gateway.activity.book import ActivityBook
from gateway.core.compaction.cut import Cut
from gateway.core.compaction.request import (
    CompactionReason,
    CompactionRequest,
    CompactionResult,
    make_digest_request,
)
from gateway.core.compaction.summary import Rejected
from gateway.core.history.pivot import Mark
from gateway.core.refusal.overflow import Overflow
from gateway.originals.archive import OriginalsArchive
from gateway.reporting.compaction_log import CompactionLogWriter, LogEntry
from gateway.reporting.events import (
    Bus,
    CompactBoundary,
    CompactionFailed,
    Event,
    Overflowed,
    Pruned,
    SessionCompacted,
    Subscription,
)
from gateway.reporting.metrics import Metrics
from gateway.reporting.reporter import NOTHING_TO_COMPACT, Reporter
from gateway.store.keys import make_tag
from tests.builders.chat import make_batch, make_pivot, make_plan, make_turn, read, render
from tests.builders.state import make_store
from tests.state.talk import MESSAGES

_DIGEST = make_digest_request(CompactionReason.HARD_THRESHOLD)
_TURN = make_turn(read(render(MESSAGES)))
_CUT = Cut(base=None, start=1, covers=5, replaced_tokens=800, cap_tokens=50)
_PIVOT = make_pivot(_TURN.received.conversation, 5, saved_tokens=700, tokens=60)
_REQUEST = CompactionRequest(reason=CompactionReason.SOFT_THRESHOLD, calls=3)
_NOW = 1_000.0


@dataclass
class Told:
    """Everything that a reporter tells."""

    reporter: Reporter
    metrics: Metrics
    subscription: Subscription
    log_writer: CompactionLogWriter
    archive: OriginalsArchive

    async def events(self, count: int) -> list[Event]:
        return [await self.subscription.next() for _ in range(count)]

    async def entries(self) -> tuple[LogEntry, ...]:
        log = await self.log_writer.load(make_tag(_TURN.owner), _TURN.conversation_id)
        return log.entries if log is not None else ()

    async def archived(self) -> list[list[int]]:
        await self.archive.finish()
        listing = await self.archive.load_lists(make_tag(_TURN.owner), _TURN.conversation_id, 100)
        return [[original.position for original in removed.originals] for removed in listing.lists]

    def counts(self, line: str) -> bool:
        return line in self.metrics.render().decode().splitlines()


@asynccontextmanager
async def reporting() -> AsyncIterator[Told]:
    store, metrics, bus = await make_store(), Metrics(), Bus()
    writer, archive = CompactionLogWriter(store, 60), OriginalsArchive(store, 60)
    with bus.subscribe() as subscription:
        reporter = Reporter(metrics, bus, writer, archive, ActivityBook(1 << 20), clock=lambda: _NOW)
        yield Told(reporter, metrics, subscription, writer, archive)


async def test_a_compaction_is_logged_counted_published_and_archived(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "gateway.compactor")
    result = CompactionResult(
        _PIVOT, calls=2, riding_calls=1, model="m" * 200, pre_tokens=2_000, post_tokens=1_300
    )
    async with reporting() as told:
        told.reporter.note_compaction(_TURN, _CUT, result, _REQUEST, seconds=1.26)
        boundary, compacted = await told.events(2)
        entries = await told.entries()
        archived = await told.archived()
        assert told.counts('gateway_compactions_total{kind="summary",result="done"} 1.0')
    assert isinstance(boundary, CompactBoundary) and boundary.compact_metadata.pre_tokens == 2_000
    assert isinstance(compacted, SessionCompacted)
    assert (compacted.kind, compacted.pre_tokens, compacted.post_tokens) == ("summary", 2_000, 1_300)
    assert (compacted.covers, compacted.trigger) == (5, "auto")
    entry = LogEntry(
        at_seconds=_NOW,
        kind="summary",
        trigger="auto",
        reason="soft_threshold",
        pre_tokens=2_000,
        post_tokens=1_300,
        messages=5,
        summary_tokens=60,
        model="m" * 128,
        calls=2,
        seconds=1.26,
    )
    assert entries == (entry,)
    assert archived == [[1, 2, 3, 4]]
    text = "compacted covers=5 of=5 conversation=c replaced_tokens=800"
    text += " reason=soft_threshold calls=2 riding=1 seconds=1.3"
    assert [record.getMessage() for record in caplog.records] == [text]


async def test_a_digest_is_told_as_a_digest() -> None:
    result = CompactionResult(replace(_PIVOT, is_digest=True), calls=0, pre_tokens=2_000)
    async with reporting() as told:
        told.reporter.note_compaction(_TURN, _CUT, result, _DIGEST, seconds=0.0)
        _, compacted = await told.events(2)
        (entry,) = await told.entries()
        assert told.counts('gateway_compactions_total{kind="digest",result="done"} 1.0')
    assert isinstance(compacted, SessionCompacted) and compacted.kind == entry.kind == "digest"


async def test_a_digest_for_one_request_is_counted_and_nothing_about_it_is_stored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "gateway.compactor")
    async with reporting() as told:
        told.reporter.note_held_digest(_TURN, replace(_PIVOT, is_digest=True), _DIGEST)
        assert told.counts('gateway_compactions_total{kind="digest",result="done"} 1.0')
        assert await told.entries() == () and await told.archived() == []
    assert caplog.records == []


async def test_a_failed_compaction_is_told_with_its_reason_and_archives_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    result = CompactionResult(Rejected("empty"), calls=1)
    async with reporting() as told:
        told.reporter.note_compaction(_TURN, _CUT, result, _REQUEST, seconds=0.0)
        (failed,) = await told.events(1)
        (entry,) = await told.entries()
        assert await told.archived() == []
        assert told.counts('gateway_compactions_total{kind="summary",result="empty"} 1.0')
    assert isinstance(failed, CompactionFailed) and failed.reason == "empty"
    assert (entry.outcome, entry.messages, entry.pre_tokens, entry.post_tokens) == ("empty", 5, None, None)
    assert "compaction failed: empty covers=5" in caplog.text


async def test_a_manual_compaction_with_nothing_to_fold_is_told() -> None:
    request = CompactionRequest(reason=CompactionReason.MANUAL, is_awaited=True, calls=1, trigger="manual")
    async with reporting() as told:
        told.reporter.note_nothing_to_compact(_TURN, request)
        (failed,) = await told.events(1)
        (entry,) = await told.entries()
    assert isinstance(failed, CompactionFailed) and (failed.reason, failed.trigger) == (
        NOTHING_TO_COMPACT,
        "manual",
    )
    assert (entry.outcome, entry.at_seconds) == (NOTHING_TO_COMPACT, _NOW)


async def test_a_pruning_is_told_and_the_marked_messages_are_archived() -> None:
    batch = make_batch(_TURN.received.conversation, [Mark(1), Mark(3, 20)], saved_tokens=90)
    async with reporting() as told:
        told.reporter.note_pruning(_TURN, batch, sent_tokens=500)
        (pruned,) = await told.events(1)
        (entry,) = await told.entries()
        assert await told.archived() == [[1, 3]]
        assert told.counts("gateway_prunings_total 1.0")
    assert isinstance(pruned, Pruned) and (pruned.marks, pruned.saved_tokens) == (2, 90)
    assert (entry.kind, entry.pre_tokens, entry.post_tokens, entry.messages) == ("prune", 590, 500, 2)


async def test_a_refusal_is_told_in_numbers(caplog: pytest.LogCaptureFixture) -> None:
    plan = replace(make_plan(), sent=9_000)
    overflow = Overflow(context=8_000, used=9_100)
    async with reporting() as told:
        told.reporter.note_refusal(_TURN, plan, overflow, is_retried=True)
        (event,) = await told.events(1)
        assert told.counts('gateway_overflow_refusals_total{kind="tokens",retried="true"} 1.0')
    assert isinstance(event, Overflowed)
    assert (event.kind, event.retried, event.sent_tokens) == ("tokens", True, 9_000)
    assert (event.context, event.input, event.used) == (8_000, None, 9_100)
    text = "kind=tokens retried=True sent=9000 context=8000 input=None used=9100"
    assert text in caplog.text


async def test_a_silent_truncation_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async with reporting() as told:
        told.reporter.note_truncation(_TURN, prompt_tokens=4_096, before=7_000, added=500)
        (event,) = await told.events(1)
        assert told.counts("gateway_silent_truncations_total 1.0")
    assert isinstance(event, Overflowed)
    assert (event.kind, event.sent_tokens, event.used) == ("truncation", 7_500, 4_096)
    assert "prompt_tokens=4096 previous=7000 added=500" in caplog.text
