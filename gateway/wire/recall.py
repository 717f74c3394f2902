"""What a wire format does for a tool of the gateway's own: it offers the tool, takes its calls out of what
the client is shown, and puts them back into later requests.

The bytes of kept messages never change: all edits insert. Where a request cannot be served right, the tool is
not offered.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from gateway.core.errors import Unreadable
from gateway.core.history.recall import RecallRound, ReplyMark
from gateway.wire.body import place_items
from gateway.wire.request import RequestBody

RECALL_TOOL: Final = "recall_history"
# Read by the model. It is a part of every prompt, so it does not change.
RECALL_DESCRIPTION: Final = (
    "Search the original messages of this conversation that are no longer shown because they were "
    "summarized or cleared. Use it when you need an exact detail (a path, a name, a value, an error, what "
    "the user said) that the summary leaves out. Returns excerpts with their position."
)
RECALL_PARAMETERS: Final = (
    b'{"type":"object","properties":{"query":{"type":"string","description":'
    b'"Words, names or paths to look for."}},"required":["query"]}'
)


class Insertion(NamedTuple):
    """`new` is inserted at a place of the received body. Several at one place keep their order."""

    at: int
    new: bytes


class RecallCall(NamedTuple):
    """query: None if the arguments cannot be read; the model is told so."""

    id: str
    query: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class RecallRequest:
    """The calls of one response, all of the gateway's tool.

    is_parallel: the client's own tools are called, too, so the client answers before the model goes on.
    call, shown, said: as in RecallRound. reply: all that this response said, shown or not, as the upstream
    sent it, for the model to go on; JSON of the wire format, empty if is_parallel.
    """

    calls: tuple[RecallCall, ...]
    call: str
    reply: str
    shown: int
    said: int
    is_parallel: bool


class AnsweredRecall(NamedTuple):
    """A response that is not parallel, and what its calls are answered: `RecallSyntax.render_results`."""

    request: RecallRequest
    results: str


class ReplyStitcher(Protocol):
    """Of one turn: shows the client one reply, made of as many responses as the model took.

    Is fed the responses one after the other, decoded, with status 200; `end` stands between them, also behind
    one that broke off. Another response may follow whatever `end` returned. Never raises for what an upstream
    sends: what is not understood passes as it came, without a recall.
    """

    def feed(self, piece: bytes) -> bytes:
        """What the client may see now. Bytes of a stream pass unchanged, and at once, until the first event
        that belongs to a call of the tool; what ends a response waits for `end`.
        """

    def end(self) -> RecallRequest | None:
        """After the last piece of a response. None if it called the tool nowhere, or was cut off in a call:
        then it was the last one.
        """

    def finish(self) -> bytes:
        """What the client is still to see of the last response: its end. Without a recall in the turn all
        bytes together are those of the response.

        If `end` has returned a request, its calls are taken out: parallel ones leave the client's own, and
        without any call left the reply ends as one that calls nothing does.
        """

    @property
    def has_shown(self) -> bool:
        """Whether `feed` has returned anything that the client sees as content."""

    @property
    def reply(self) -> ReplyMark:
        """What was shown so far."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecallSyntax:
    """The functions of one wire format."""

    # Whether the tool can be offered to a request: see docs/recall.md for each reason against it.
    may_offer: Callable[[RequestBody], bool]
    # Adds the tool at the end of the request's tools. Only if it may be offered.
    make_tool: Callable[[RequestBody], Insertion]
    # One for each turn. The bytes of its first response show whether it is streamed.
    make_stitcher: Callable[[], ReplyStitcher]
    # The results of a request's calls, in their order: `RecallRound.results`.
    render_results: Callable[[RecallRequest, Sequence[str]], str]
    # The rounds of this turn at the end of the array, for the model to go on: with what the client was shown.
    continue_reply: Callable[[RequestBody, Sequence[AnsweredRecall]], list[Insertion]]
    # The rounds of a finished turn, at the same place as when the model went on. The int is the index of the
    # reply's first message in `RequestBody.places`, and the second one that behind its last message. None if
    # the reply is not the one that was shown: then nothing is inserted. Looks at these messages, and at the
    # one behind them for the results of parallel calls, and at nothing else of the body.
    splice: Callable[[RequestBody, int, int, Sequence[RecallRound], ReplyMark], list[Insertion] | None]
    # A user message and the assistant's after it, as JSON separated by commas: for pieces that the gateway
    # has found itself.
    render_exchange: Callable[[str, str], bytes]


def insert_behind_tools(body: RequestBody, tool: bytes) -> Insertion:
    """Directly behind the last tool of the list. Raises ValueError for a request without tools."""
    place = body.envelope.tools_slice
    if place is None:
        raise ValueError("the request has no tools")
    try:
        last = place_items(body.field(place))[-1]
    except (Unreadable, IndexError) as error:
        raise ValueError("the request has no tools") from error
    return Insertion(body.absolute(place.start) + last.end, b"," + tool)
