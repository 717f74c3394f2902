"""What the span of a request says: who asked, what was done, and what it took. Without content."""

from typing import TYPE_CHECKING, Final

from gateway.conversations.turn import Turn
from gateway.http.request import RequestHead
from gateway.http.request_note import RequestNote
from gateway.traces import names
from gateway.traces.carrier import find_carried

if TYPE_CHECKING:
    # Not imported where traces are off: the libraries may be missing.
    from gateway.traces.spans import OpenSpan
    from gateway.traces.tracer import Tracer

# Plans that send less than the whole conversation.
_COMPACTED: Final = frozenset({"pivot", "pivot+pruned", "digest", "pruned", "cut"})
_MINIMUM_ERROR: Final = 400


def begin_span(tracer: "Tracer", head: RequestHead) -> "OpenSpan":
    """Continues the trace of the client, if it has one."""
    return tracer.begin(names.RELAY, find_carried(head.headers), {names.METHOD: head.method})


def describe_turn(span: "OpenSpan", turn: Turn) -> None:
    envelope = turn.received.body.envelope
    span.rename(names.name_chat(turn.model))
    span.describe(
        {
            names.OPERATION: names.CHAT,
            names.PROVIDER: names.find_provider(turn.upstream.base_url, turn.upstream.name),
            names.REQUEST_MODEL: names.shorten(turn.model),
            names.REQUEST_MAX_TOKENS: envelope.requested_tokens,
            names.REQUEST_STREAM: True if envelope.is_streaming else None,
            names.CONVERSATION: turn.conversation_id,
            names.TENANT: turn.tenant.display_name,
        }
    )


def end_span(span: "OpenSpan", note: RequestNote, status: int, end_seconds: float) -> None:
    """status: 0 if nothing was sent to the client."""
    usage, is_followed, plan = note.usage, bool(note.conversation), note.name_plan()
    span.describe(
        {
            names.FORMAT: note.format,
            names.PLAN: plan,
            names.UPSTREAM: note.upstream,
            names.COMPACTED: True if plan in _COMPACTED else None,
            names.STATUS: status or None,
            names.RECEIVED_TOKENS: note.received if is_followed else None,
            names.SENT_TOKENS: note.sent if is_followed else None,
            names.INPUT_TOKENS: usage.prompt_tokens if usage is not None else None,
            names.OUTPUT_TOKENS: usage.output_tokens if usage is not None else None,
            names.CACHED_TOKENS: usage.cached_tokens if usage is not None else None,
            names.CACHE_WRITE_TOKENS: usage.cache_write_tokens if usage is not None else None,
            names.FINISH_REASONS: (
                (names.shorten(note.finish_reason),) if note.finish_reason is not None else None
            ),
            names.FIRST_BYTE_SECONDS: note.first_byte_seconds,
            names.OWN_SECONDS: note.count_own_seconds(end_seconds),
            names.WAITED_SECONDS: note.waited_seconds or None,
            names.RECALL_SEARCHES: note.recall_searches or None,
        }
    )
    if status >= _MINIMUM_ERROR or not status:
        span.fail(str(status) if status else "client_gone")
    span.end()
