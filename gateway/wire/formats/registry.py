"""The wire formats that are understood, each as what can be done with it.

Nobody else asks which format it is: who needs something that differs finds it here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gateway.core.errors import RequestRefused
from gateway.core.history.message import Message
from gateway.core.history.pivot import Mark, Pivot
from gateway.core.history.transcript import TranscriptEntry
from gateway.wire import errors
from gateway.wire.formats.chat import render as chat_own_answer
from gateway.wire.formats.chat import render as chat_rewrite
from gateway.wire.formats.chat import render as chat_summary
from gateway.wire.formats.chat import reply as chat_reply
from gateway.wire.formats.chat import request as chat
from gateway.wire.formats.chat import text as chat_results
from gateway.wire.formats.chat import text as chat_text
from gateway.wire.formats.messages import render as messages_errors
from gateway.wire.formats.messages import render as messages_own_answer
from gateway.wire.formats.messages import render as messages_rewrite
from gateway.wire.formats.messages import render as messages_summary
from gateway.wire.formats.messages import reply as messages_reply
from gateway.wire.formats.messages import request as messages
from gateway.wire.formats.messages import text as messages_results
from gateway.wire.formats.messages import text as messages_text
from gateway.wire.formats.responses import history as responses_history
from gateway.wire.formats.responses import render as responses_errors
from gateway.wire.formats.responses import render as responses_own_answer
from gateway.wire.formats.responses import render as responses_rewrite
from gateway.wire.formats.responses import render as responses_summary
from gateway.wire.formats.responses import reply as responses_reply
from gateway.wire.formats.responses import request as responses
from gateway.wire.formats.responses import text as responses_results
from gateway.wire.formats.responses import text as responses_text
from gateway.wire.local_response import LocalResponse
from gateway.wire.request import RequestBody
from gateway.wire.response.facts import JsonObject
from gateway.wire.response.summary_reply import Said
from gateway.wire.split_results import SplitResults
from gateway.wire.stored_history import NamedHistory
from gateway.wire.summary_request import SummaryRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class WireFormat:
    """name: in settings and in chains; it never changes. path: where its requests go.

    parse_body: a body split; raises Unreadable. read_message: one slice as facts, with the key it is
    remembered by; raises Unreadable. read_spoken: the texts of a slice that was read before.
    open_results: a slice that was read before, and what its tool results hold, apart.
    render_marked: a slice shortened. render_summary: the messages of a pivot before a message of this role,
    as JSON separated by commas. output_key: the usual name of the reply's limit.
    read_said: what one JSON object of an answer says. keepalive: what a waiting stream is sent, at any place
    between its events.
    render_stream_error: an error body, and its status, as one event. render_own_answer: an answer of ours, as
    a stream or whole. headers: what the API wants to see in every call.
    named_history: how a request may name what was said before instead of saying it; None where it cannot.
    """

    name: str
    path: str
    parse_body: Callable[[bytes], RequestBody]
    read_message: Callable[[bytes, bytes], Message]
    read_spoken: Callable[[bytes], TranscriptEntry]
    open_results: Callable[[bytes], SplitResults]
    render_marked: Callable[[bytes, Mark, str], bytes]
    render_summary: Callable[[Pivot, str], bytes]
    output_key: str
    render_summary_request: Callable[[SummaryRequest], bytes]
    read_said: Callable[[JsonObject], Said]
    keepalive: bytes
    render_stream_error: Callable[[bytes, int], bytes]
    render_own_answer: Callable[[LocalResponse], bytes]
    headers: tuple[tuple[str, str], ...] = ()
    named_history: NamedHistory | None = None


CHAT: Final = WireFormat(
    name="chat",
    path="/v1/chat/completions",
    parse_body=chat.parse_body,
    read_message=chat.read_message,
    read_spoken=chat_text.read_spoken,
    open_results=chat_results.open_results,
    render_marked=chat_rewrite.render_marked,
    render_summary=chat_rewrite.render_summary,
    output_key="max_tokens",
    render_summary_request=chat_summary.render_summary_request,
    read_said=chat_reply.read_said,
    keepalive=b": keep-alive\n\n",
    render_stream_error=errors.render_stream_error,
    render_own_answer=chat_own_answer.render_own_answer,
)
MESSAGES: Final = WireFormat(
    name="messages",
    path="/v1/messages",
    parse_body=messages.parse_body,
    read_message=messages.read_message,
    read_spoken=messages_text.read_spoken,
    render_marked=messages_rewrite.render_marked,
    render_summary=messages_rewrite.render_summary,
    output_key="max_tokens",
    render_summary_request=messages_summary.render_summary_request,
    read_said=messages_reply.read_said,
    keepalive=b'event: ping\ndata: {"type": "ping"}\n\n',
    render_stream_error=messages_errors.render_stream_error,
    render_own_answer=messages_own_answer.render_own_answer,
    open_results=messages_results.open_results,
    headers=(("anthropic-version", "2023-06-01"),),
)
RESPONSES: Final = WireFormat(
    name="responses",
    path="/v1/responses",
    parse_body=responses.parse_body,
    read_message=responses.read_message,
    read_spoken=responses_text.read_spoken,
    render_marked=responses_rewrite.render_marked,
    render_summary=responses_rewrite.render_summary,
    output_key="max_output_tokens",
    render_summary_request=responses_summary.render_summary_request,
    read_said=responses_reply.read_said,
    # Codex counts parsed events only: a comment would not keep it waiting.
    keepalive=b'event: keepalive\ndata: {"type":"keepalive"}\n\n',
    render_stream_error=responses_errors.render_stream_error,
    render_own_answer=responses_own_answer.render_own_answer,
    open_results=responses_results.open_results,
    named_history=responses_history.NAMED_HISTORY,
)
FORMATS: Final = {form.name: form for form in (CHAT, RESPONSES, MESSAGES)}


def without_version(path: str) -> str:
    """The path after an optional leading /v1."""
    if path.startswith("/v1/"):
        return path[3:]
    return path[3:] if path.startswith("/v1") and path[3:4] in ("", "?") else path


_BY_PATH: Final = {without_version(form.path): form for form in FORMATS.values()}
# Posted there, a request is only counted.
_COUNTS: Final = {"/messages/count_tokens": MESSAGES}


def read_format(path: str) -> WireFormat | None:
    """The format of the requests that are posted to a path, None where they are only relayed."""
    return _BY_PATH.get(without_version(path.partition("?")[0]))


def read_counted_format(path: str) -> WireFormat | None:
    """The format of the requests that are posted to a path only to learn how many tokens they hold."""
    return _COUNTS.get(without_version(path.partition("?")[0]))


def guess_format(path: str) -> str | None:
    """The name of the API that a path belongs to: `/messages/count_tokens` goes where `/messages` goes."""
    plain = without_version(path)
    return next((form.name for prefix, form in _BY_PATH.items() if plain.startswith(prefix)), None)


def render_error(path: str, error: RequestRefused) -> bytes:
    """An error of ours as the clients of this path know errors."""
    render = messages_errors.render_error if guess_format(path) == "messages" else errors.render_error
    return render(error)
