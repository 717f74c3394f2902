"""What one response asks of the gateway's tool, in the form in which it is kept.

Of a response with calls of this tool only: the assistant's message. Of one that calls the client's tools,
too: an array of pairs, the number of the client's calls before a call, and the call.
"""

from typing import Final

from gateway.wire.formats.chat.assistant_draft import AssistantDraft
from gateway.wire.formats.chat.call_tracker import CallTracker
from gateway.wire.raw_json import join_array
from gateway.wire.recall import RecallRequest
from gateway.wire.response.facts import is_window_exceeded

# The response ended before the model was done. OpenAI, DeepSeek, Mistral, and routers.
_CUT_REASONS: Final = frozenset(
    {"length", "max_tokens", "content_filter", "insufficient_system_resource", "model_length", "error"}
)


def may_follow(finish_reason: str | None, *, is_done: bool) -> bool:
    """Whether the response is whole, so that the model waits for what it called. is_done: it said so itself,
    which counts if it has no finish reason.
    """
    if finish_reason is None:
        return is_done
    return finish_reason not in _CUT_REASONS and not is_window_exceeded(finish_reason)


def make_request(tracker: CallTracker, draft: AssistantDraft, salt: str) -> RecallRequest | None:
    """None if it does not call the tool. salt: the id of the response."""
    own = tracker.list_own()
    if not own:
        return None
    tracker.name_calls(salt)
    is_parallel = len(own) < len(tracker.calls)
    if is_parallel:
        call = join_array([b"[%d,%s]" % (each.at, each.render()) for each in own]).decode()
    else:
        call = draft.render([each.render() for each in own]).decode()
    return RecallRequest(
        calls=tuple([each.read_call() for each in own]),
        call=call,
        reply="" if is_parallel else call,
        shown=own[0].at if is_parallel else 0,
        said=own[0].at if is_parallel else 0,
        is_parallel=is_parallel,
    )
