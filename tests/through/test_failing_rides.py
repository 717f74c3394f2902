"""A summary that rides and fails, in whatever way: the history is quoted then, and one call more was made."""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import aiohttp
import pytest

from tests.covering import choose
from tests.toy.agent import Session, Shape, make_session
from tests.toy.chat import CHAT
from tests.toy.delivery import STREAM_HEADERS, Delivery, RawAnswer
from tests.toy.dialect import Dialect, Request
from tests.toy.house import make_settings
from tests.toy.messages import MESSAGES
from tests.toy.product import Product, serve
from tests.toy.reply import Reply, ToolCall, render_named
from tests.toy.responses import RESPONSES
from tests.toy.running import ask
from tests.toy.upstream import Seen, ToyUpstream

WINDOW: Final = 32_000
SESSION: Final = make_session(30, 3, "one_user", 900)
DIALECTS: Final[tuple[Dialect, ...]] = (CHAT, RESPONSES, MESSAGES)
CACHED: Final = "{input: 1, cached: 0.1, output: 8}"
POLICY: Final = (
    "policies:\n  default: {economy: 0, compaction: {prune: false}, summary: {timeout_seconds: %d}}\n"
)
# Of the window: above the soft threshold, and below the hard one.
_LEAST, _MOST = 0.71, 0.74
_CALL: Final = ToolCall(id="call_x", name="read_file", arguments='{"path": "/a"}')
_HEADED: Final = (
    "## Goal\nPort it.\n\n## Done\nHalf.\n\n## Open\nThe rest.\n\n## Files\na.py\n\n## Next step\nTest it."
)
_QUOTED: Final = Reply(text="The storage layer is half ported.")


def _error(status: int, message: str, code: str | None = None) -> RawAnswer:
    error = {"message": message, "type": "invalid_request_error", "code": code}
    return RawAnswer(status=status, pieces=(json.dumps({"type": "error", "error": error}).encode(),))


REPLIES: Final[dict[str, Reply]] = {
    "calls a tool": Reply(text=None, tool_calls=(_CALL,)),
    "calls a tool behind a summary": Reply(text=_HEADED, tool_calls=(_CALL,)),
    "answers the task": Reply(text="Done: the storage layer is ported, and all of its tests pass."),
    "answers the task under headings of its own": Reply(text="## Result\nPorted.\n\n## Tests\nThey pass."),
    "goes on with the task": Reply(text="Next I read the file and look for the goal of the caller."),
    "sums up without headings": Reply(text="We ported half of it. The rest is open, then come the tests."),
    "has too few of the headings": Reply(text="## Goal\nPort it.\n\n## Done\nHalf of it."),
    "mentions the headings in a sentence": Reply(text="Goal, Done, Open, Files and Next step: all is said."),
    "refuses": Reply(text="I'm sorry, but I can't help with that."),
    "is filtered": Reply(text=_HEADED, finish_reason="content_filter"),
    "is cut": Reply(text=_HEADED, finish_reason="length"),
    "says nothing": Reply(text=""),
    "says blanks": Reply(text=" \n\t"),
    "only thinks": Reply(text=f"<think>{_HEADED}</think>"),
    "never stops": Reply(text=_HEADED + " And so on." * 6_000),
    "is as long as what it replaces": Reply(text=_HEADED + " word" * 20_000),
}
# Of the upstream, whatever its format.
ANSWERS: Final[dict[str, RawAnswer]] = {
    "refuses such a request": _error(400, "Conversation roles must alternate user/assistant"),
    "finds it over the window": _error(400, "This model's maximum context length is 20000 tokens."),
    "knows no such model": _error(404, "The model does not exist", "model_not_found"),
    "wants another key": _error(401, "no"),
    "has enough": _error(429, "Rate limit reached"),
    "breaks": _error(500, "oops"),
    "says that it failed, with 200": _error(200, "no"),
    "sends a page": RawAnswer(headers=(("Content-Type", "text/html"),), pieces=(b"<html>Sign in.</html>",)),
}
_GOOD_STARTS: Final[Mapping[str, bytes]] = {
    CHAT.path: b'data: {"choices": [{"index": 0, "delta": {"content": "## Goal\\nPort it."}}]}\n\n',
    RESPONSES.path: render_named({"type": "response.output_text.delta", "delta": "## Goal\nPort it."}),
    MESSAGES.path: render_named(
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "## Goal"}}
    ),
}
_STREAMED: Final[Mapping[str, tuple[bytes, Delivery]]] = {
    "breaks off": (b"", Delivery(ending="abort")),
    "ends without an end": (b"", Delivery()),
    "reports an error in the stream": (b'event: error\ndata: {"type":"error","error":{}}\n\n', Delivery()),
}
NAMES: Final = (*REPLIES, *ANSWERS, *_STREAMED)
# Those that each format says in its own way.
ABROAD: Final = (
    *(
        "calls a tool",
        "calls a tool behind a summary",
        "answers the task",
        "refuses",
        "is filtered",
        "is cut",
    ),
    *("says nothing", "never stops", "finds it over the window", "has enough", *_STREAMED),
)


def find_answer(dialect: Dialect, name: str) -> RawAnswer | None:
    if name in _STREAMED:
        rest, delivery = _STREAMED[name]
        pieces = (_GOOD_STARTS[dialect.path], rest)
        return RawAnswer(headers=STREAM_HEADERS, pieces=pieces, length=False, delivery=delivery)
    return ANSWERS.get(name)


@dataclass
class Failing:
    """What becomes of the ride of each model."""

    dialect: Dialect
    by_model: dict[str, str]

    def summary(self, request: Request) -> Reply:
        return REPLIES[self.by_model[str(request["model"])]] if request.get("tools") else _QUOTED

    def intercept(self, seen: Seen) -> RawAnswer | None:
        if not is_ride(seen):
            return None
        return find_answer(self.dialect, self.by_model[str(seen.request["model"])])


def is_ride(seen: Seen) -> bool:
    return seen.is_summary and bool(seen.request.get("tools"))


def make_own_session(number: int) -> Session:
    """A conversation of its own, with a model of its own: one that failed is not ridden again."""
    task = {"role": "user", "content": f"Task {number}: port the storage layer."}
    return replace(SESSION, model=f"toy-{number}", opening=(task,))


def choose_turn(toy: ToyUpstream, dialect: Dialect, shape: Shape) -> int:
    sizes = [dialect.count(toy.counter, SESSION.envelope(turn, shape)) for turn in range(len(SESSION))]
    return next(turn for turn, size in enumerate(sizes) if _LEAST * WINDOW < size < _MOST * WINDOW)


@pytest.mark.parametrize("dialect", choose(DIALECTS, [1]), ids=lambda each: each.path)
async def test_a_ride_that_fails_ends_in_a_quoted_summary(
    dialect: Dialect, caplog: pytest.LogCaptureFixture
) -> None:
    names = NAMES if dialect is CHAT else ABROAD
    caplog.set_level(logging.INFO, "gateway.compactor")
    by_model = {make_own_session(number).model: name for number, name in enumerate(names)}
    failing, shape = Failing(dialect, by_model), Shape(dialect=dialect, max_tokens=1_000, stream=True)
    async with (
        ToyUpstream(window=WINDOW) as toy,
        serve(make_settings(toy, price=CACHED, more=POLICY % 60)) as gateway,
    ):
        toy.summary, toy.intercept = failing.summary, failing.intercept
        turn = choose_turn(toy, dialect, shape)
        for number, name in enumerate(names):
            before = len(toy.summaries)
            session = make_own_session(number)
            # The client goes on with its conversations, so that it is known how large they are.
            await send(gateway, dialect, *(session.request(at, shape) for at in (0, turn - 4, turn)))
            made = toy.summaries[before:]
            assert [is_ride(seen) for seen in made] == [True, False], name
    lines = [record.getMessage() for record in caplog.records if record.name == "gateway.compactor"]
    assert [line.partition(" covers")[0] for line in lines] == ["compacted"] * len(names)


async def test_a_ride_that_never_ends_is_given_up_for_a_quoted_summary() -> None:
    async with (
        ToyUpstream(window=WINDOW) as toy,
        serve(make_settings(toy, price=CACHED, more=POLICY % 2)) as gateway,
    ):
        toy.summary = lambda _: _QUOTED
        toy.intercept = lambda seen: RawAnswer(delivery=Delivery(never=True)) if is_ride(seen) else None
        for number, dialect in enumerate(DIALECTS):
            shape, session = Shape(dialect=dialect, max_tokens=1_000, stream=True), make_own_session(number)
            turn = choose_turn(toy, dialect, shape)
            await ask_all(gateway, dialect, *(session.request(at, shape) for at in (0, turn - 4, turn)))
        await gateway.at_rest()
    for dialect in DIALECTS:
        made = [is_ride(seen) for seen in toy.summaries if seen.dialect is dialect]
        assert made == [True, False]


async def send(gateway: Product, dialect: Dialect, *bodies: bytes) -> None:
    await ask_all(gateway, dialect, *bodies)
    await gateway.at_rest()


async def ask_all(gateway: Product, dialect: Dialect, *bodies: bytes) -> None:
    async with aiohttp.ClientSession(headers=dialect.headers("sk-toy")) as client:
        for body in bodies:
            assert (await ask(client, f"{gateway.base_url}{dialect.path}", body)).is_whole
