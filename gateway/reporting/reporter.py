"""Tells operators about rare events: a log line, a count, an event, and an entry in the compaction log.

None of these holds text of a conversation. The reporter also hands removed messages to the archive, and tells
the keeper of sessions of turns and summaries.
"""

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gateway.activity.book import ActivityBook
from gateway.conversations.turn import Turn, name_ids
from gateway.core.compaction.cut import Cut
from gateway.core.compaction.plan import Plan
from gateway.core.compaction.request import CompactionReason, CompactionRequest, CompactionResult
from gateway.core.compaction.summary import OVER_BUDGET
from gateway.core.history.pivot import Batch, Pivot
from gateway.core.refusal import Overflow
from gateway.core.sizing.usage import Usage
from gateway.originals.archive import OriginalsArchive
from gateway.reporting.compaction_log import DONE, CompactionLogWriter, LogEntry
from gateway.reporting.events import (
    Bus,
    CompactionFailed,
    Event,
    Overflowed,
    Pruned,
    SessionCompacted,
    make_boundary,
)
from gateway.reporting.metrics import Metrics, definitions
from gateway.sessions.keeper import SessionKeeper

if TYPE_CHECKING:
    from gateway.traces import Fact, Tracer

_compactor: Final = logging.getLogger("gateway.compactor")
_recovery: Final = logging.getLogger("gateway.recovery")
# Dashboards and scripts know this text from metrics, events and the compaction log.
NOTHING_TO_COMPACT: Final = "nothing to fold"
# How the line about a compaction begins; the start screen shows it.
COMPACTED: Final = "compacted covers=%d of=%d"
# Clients choose the name of a model; this much of it is logged.
_MODEL_CHARS: Final = 128


class Reporter:
    """clock: seconds since 1970."""

    def __init__(
        self,
        metrics: Metrics,
        bus: Bus,
        log_writer: CompactionLogWriter,
        archive: OriginalsArchive,
        activity: ActivityBook,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._metrics = metrics
        self._bus = bus
        self._log_writer = log_writer
        self._archive = archive
        self._activity = activity
        self._clock = clock
        # None where traces are off.
        self.tracer: Tracer | None = None
        # None where sessions are not followed.
        self.sessions: SessionKeeper | None = None

    def note_request(self, turn: Turn, plan: Plan, usage: Usage | None, *, is_deleted: bool = False) -> None:
        """An answered request. Called for each of them, so all of this is plain counting.

        usage: as the upstream reported it. is_deleted: its conversation is, and no text of it is kept.
        """
        noted = self._activity.note_request(turn, plan, usage)
        if self.sessions is not None and not is_deleted:
            self.sessions.note_request(turn)
        self._metrics.note_request(turn.tenant.label, plan, usage, noted)

    def note_compaction(
        self, turn: Turn, cut: Cut, result: CompactionResult, request: CompactionRequest, seconds: float
    ) -> None:
        """A summary or a digest that was made, or that failed. The pivot of a made one is durable."""
        where = f"conversation={turn.conversation_id} replaced_tokens={cut.replaced_tokens}"
        where += f" reason={request.reason} calls={result.calls}"
        where += f" riding={result.riding_calls} seconds={seconds:.1f}"
        outcome = result.outcome
        if isinstance(outcome, Pivot):
            self._metrics.count_compaction(request, None)
            _compactor.info(COMPACTED + " %s", outcome.covers, cut.covers, where, extra=name_ids(turn))
            self._bus.publish(make_boundary(turn.conversation_id, request.trigger, result.pre_tokens))
            asked = {name: getattr(request, name) for name in ("kind", "trigger", "reason")}
            tokens = {"pre_tokens": result.pre_tokens, "post_tokens": result.post_tokens}
            self._publish(turn, SessionCompacted, covers=outcome.covers, **asked, **tokens)
            self._archive.keep_compacted(turn, cut, outcome)
            if self.sessions is not None:
                self.sessions.note_summary(turn, outcome)
        else:
            self._metrics.count_compaction(request, outcome.reason)
            level = logging.DEBUG if outcome == OVER_BUDGET else logging.WARNING
            _compactor.log(
                level,
                "compaction failed: %s covers=%d %s",
                outcome.reason,
                cut.covers,
                where,
                extra=name_ids(turn),
            )
            self._publish_failed(turn, outcome.reason, request, result.pre_tokens)
        self._metrics.observe(definitions.COMPACTION_SECONDS, seconds, (request.kind,))
        entry = self._make_entry(cut, result, request, seconds)
        if self.tracer is not None:
            self.tracer.record_compaction(
                seconds, self._clock(), **_list_facts(turn.conversation_id, entry, result.riding_calls)
            )
        self._log_writer.note(turn, entry)
        money = self._activity.note_compaction(turn, result, request, seconds, entry.post_tokens or 0)
        self._metrics.note_summary_money(turn.tenant.label, money)

    def note_unused_summary(self, turn: Turn, result: CompactionResult) -> None:
        """Another process has stored its own, and reports that one. The calls are paid for, so they count."""
        money = self._activity.note_summary_calls(turn, result)
        self._metrics.note_summary_money(turn.tenant.label, money)

    def note_unaffordable_summary(self, turn: Turn) -> None:
        """It was not made because of the tenant's budget."""
        self._metrics.add(definitions.SUMMARIES_OVER_BUDGET, (turn.tenant.display_name,))

    def note_edit(self, turn: Turn, before: Pivot, edited: Pivot) -> None:
        """A person has edited a summary, or restored an earlier version. Ids and sizes, and no text."""
        _compactor.info(
            "summary edited: key=%s version=%d chars=%d before=%d conversation=%s",
            *(edited.key, edited.version, len(edited.told.text), len(before.told.text)),
            turn.conversation_id,
            extra=name_ids(turn),
        )
        entry = LogEntry(
            at_seconds=self._clock(),
            kind="edit",
            trigger="manual",
            reason=CompactionReason.MANUAL,
            messages=edited.covers,
            summary_tokens=edited.tokens,
        )
        self._log_writer.note(turn, entry)

    def note_held_digest(self, turn: Turn, digest: Pivot, request: CompactionRequest) -> None:
        """A digest for one request alone. There may be one for each, so nothing about it is stored."""
        self._metrics.count_compaction(request, None)
        _compactor.debug(
            "digest covers=%d conversation=%s", digest.covers, turn.conversation_id, extra=name_ids(turn)
        )

    def note_nothing_to_compact(self, turn: Turn, request: CompactionRequest) -> None:
        """A person asked for a compaction, and there is nothing to compact."""
        self._metrics.count_compaction(request, NOTHING_TO_COMPACT)
        _compactor.info(
            "manual compaction: %s conversation=%s",
            *(NOTHING_TO_COMPACT, turn.conversation_id),
            extra=name_ids(turn),
        )
        self._publish_failed(turn, NOTHING_TO_COMPACT, request, 0)
        entry = LogEntry(
            at_seconds=self._clock(),
            kind=request.kind,
            trigger=request.trigger,
            reason=request.reason,
            outcome=NOTHING_TO_COMPACT,
        )
        self._log_writer.note(turn, entry)

    def note_pruning(self, turn: Turn, batch: Batch, sent_tokens: int) -> None:
        """Marks that a request was sent and accepted with for the first time. sent_tokens: its estimate."""
        self._archive.keep_pruned(turn, batch)
        entry = LogEntry(
            at_seconds=self._clock(),
            kind="cut" if batch.is_cut else "prune",
            trigger="auto",
            reason=CompactionReason.REFUSED if batch.is_cut else "",
            pre_tokens=sent_tokens + batch.saved_tokens,
            post_tokens=sent_tokens,
            messages=len(batch.marks),
        )
        self._log_writer.note(turn, entry)
        if batch.is_cut:
            _recovery.warning(
                "cut messages that upstream refused as too long: conversation=%s messages=%d cut=%d sent=%d",
                *(turn.conversation_id, len(batch.marks), batch.saved_tokens, sent_tokens),
                extra=name_ids(turn),
            )
            return
        self._metrics.add(definitions.PRUNINGS)
        self._activity.note_pruning(turn)
        self._publish(turn, Pruned, marks=len(batch.marks), saved_tokens=batch.saved_tokens)

    def note_refusal(self, turn: Turn, plan: Plan, overflow: Overflow, *, is_retried: bool) -> None:
        """Upstream said that the request is too large. The text of its error may quote the conversation, so
        only its numbers are reported.
        """
        self._metrics.add(definitions.OVERFLOW_REFUSALS, (overflow.kind, str(is_retried).lower()))
        _recovery.warning(
            "too long for upstream: conversation=%s kind=%s retried=%s sent=%d context=%s input=%s used=%s",
            *(turn.conversation_id, overflow.kind, is_retried, plan.sent),
            *(overflow.context, overflow.input, overflow.used),
            extra=name_ids(turn),
        )
        told = {name: getattr(overflow, name) for name in ("kind", "context", "input", "used")}
        self._publish(turn, Overflowed, retried=is_retried, sent_tokens=plan.sent, **told)

    def note_recovered(self) -> None:
        """A client got the response to a smaller request, after upstream had refused a larger one."""
        self._metrics.add(definitions.OVERFLOW_RECOVERED)

    def note_truncation(self, turn: Turn, prompt_tokens: int, before: int, added: int) -> None:
        """Upstream silently left out a part of the prompt.

        prompt_tokens: its count now. before: its count of the request before. added: tokens added since.
        """
        self._metrics.add(definitions.TRUNCATIONS)
        _recovery.warning(
            "upstream left out a part of the prompt: conversation=%s prompt_tokens=%d previous=%d added=%d",
            *(turn.conversation_id, prompt_tokens, before, added),
            extra=name_ids(turn),
        )
        sent_tokens = before + added
        self._publish(
            turn, Overflowed, kind="truncation", retried=False, sent_tokens=sent_tokens, used=prompt_tokens
        )

    def _publish_failed(self, turn: Turn, reason: str, request: CompactionRequest, pre_tokens: int) -> None:
        kind, trigger = request.kind, request.trigger
        self._publish(
            turn, CompactionFailed, kind=kind, trigger=trigger, pre_tokens=pre_tokens, reason=reason
        )

    def _publish(self, turn: Turn, make: Callable[..., Event], **facts: object) -> None:
        """facts: the fields of the event beside those that say whose it is."""
        self._bus.publish(make(session_id=turn.conversation_id, tenant=turn.tenant.display_name, **facts))

    def _make_entry(
        self, cut: Cut, result: CompactionResult, request: CompactionRequest, seconds: float
    ) -> LogEntry:
        pivot = result.outcome if isinstance(result.outcome, Pivot) else None
        return LogEntry(
            at_seconds=self._clock(),
            kind="digest" if pivot is not None and pivot.is_digest else request.kind,
            trigger=request.trigger,
            reason=request.reason,
            outcome=DONE if isinstance(result.outcome, Pivot) else result.outcome.reason,
            pre_tokens=result.pre_tokens or None,
            post_tokens=result.post_tokens if pivot is not None else None,
            messages=pivot.covers if pivot is not None else cut.covers,
            summary_tokens=pivot.tokens if pivot is not None else None,
            model=result.model[:_MODEL_CHARS] if result.model is not None else None,
            calls=result.calls,
            seconds=seconds,
        )


def _list_facts(conversation_id: str, entry: LogEntry, riding_calls: int) -> "dict[str, Fact]":
    """What the span of a compaction says: the numbers of its entry in the compaction log."""
    is_done = entry.outcome == DONE
    return {
        "conversation": conversation_id,
        "trigger": entry.trigger,
        "reason": entry.reason or None,
        "result": entry.outcome,
        "request_model": entry.model,
        "compacted": is_done or None,
        "error": None if is_done else entry.outcome,
        "covers": entry.messages,
        "calls": entry.calls,
        "riding_calls": riding_calls,
        "tokens_before": entry.pre_tokens,
        "tokens_after": entry.post_tokens,
    }
