"""How much a client brings into its conversation, and how few summary calls that needs.

A message counts once, where it is sent for the first time. A client that drops its oldest messages, or that
lets the server hold them, brings as much as one that sends its whole history.
"""

from collections.abc import Iterator, Mapping, Sequence

from tests.toy.counting import TokenCounter, render_compact
from tests.toy.dialect import Dialect
from tests.toy.economics import Sizes, simulate
from tests.toy.memory import read_items
from tests.toy.reply import Reply

Request = Mapping[str, object]
# Above the fewest possible: summaries are prepared before the window is full, and one may come to nothing.
_FACTOR, _MORE = 1.5, 2


def measure_material(
    dialect: Dialect, counter: TokenCounter, requests: Sequence[Request], replies: Sequence[Reply] = ()
) -> Sizes:
    """Tokens of the first request (the floor), and what each later request adds, as `dialect` counts them.

    replies: those that the server holds, the first one to the first request. A reply that a request contains
    counts there instead.
    """
    if not requests:
        return Sizes(0, ())
    seen: set[str] = set()
    added = [_count_new(dialect, counter, request, seen) for request in requests]
    sent = [render_compact(request) for request in requests] if replies else []
    held = [0 if _is_in(reply, sent) else _count_reply(counter, reply) for reply in replies]
    for place, tokens in enumerate(held[: len(added) - 1], start=1):
        added[place] += tokens
    # `simulate` wants what follows each request. Nothing follows the last one.
    return Sizes(dialect.count(counter, requests[0]), (*added[1:], 0))


def count_material(sizes: Sizes) -> int:
    """All of it, in tokens."""
    return sizes.floor_tokens + sum(sizes.groups)


def fewest_summaries(sizes: Sizes, window: int) -> int:
    """The summary calls of an ideal gateway (`simulate` in tests/toy/economics.py).

    It waits until a prompt exceeds three quarters of the window (less above 100K), and keeps the floor, one
    summary and a tail of 15 % of the window. What one call frees is the difference between these sizes.
    """
    return simulate(sizes, window).summaries


def most_summaries(fewest: int) -> int:
    """The most summary calls that a trial may cause, where `fewest` are possible."""
    return int(_FACTOR * fewest) + _MORE


def _count_new(dialect: Dialect, counter: TokenCounter, request: Request, seen: set[str]) -> int:
    """Tokens of the messages that are not in `seen` yet. They are then."""
    name = "messages" if "messages" in request else "input"
    nothing = dialect.count(counter, {name: []})
    return sum(
        dialect.count(counter, {name: [message]}) - nothing
        for message in _take_new(dialect, name, request, seen)
    )


def _take_new(dialect: Dialect, name: str, request: Request, seen: set[str]) -> Iterator[object]:
    """Compared without cache marks and spellings that mean the same."""
    messages = request.get("messages") or read_items(request)
    for message in messages if isinstance(messages, list) else ():
        key = render_compact(dialect.items({name: [message]}))
        if key not in seen:
            seen.add(key)
            yield message


def _is_in(reply: Reply, sent: Sequence[str]) -> bool:
    """By the reply's text, which no other reply has."""
    text = render_compact(reply.text or "")[1:-1]
    return any(text in request for request in sent)


def _count_reply(counter: TokenCounter, reply: Reply) -> int:
    calls = [call.render() for call in reply.tool_calls]
    return counter.message({"role": "assistant", "content": reply.text, "tool_calls": calls})
