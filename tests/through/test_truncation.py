"""An upstream that cuts the prompt silently and reports the usage of the rest, like Ollama."""

import json
import logging
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from tests.toy.agent import Session, Shape, make_session
from tests.toy.chat import CHAT
from tests.toy.dialect import Dialect
from tests.toy.dialects import DIALECTS
from tests.toy.house import make_settings
from tests.toy.messages import MESSAGES
from tests.toy.product import serve
from tests.toy.reply import Reply
from tests.toy.responses import RESPONSES
from tests.toy.running import ask
from tests.toy.upstream import Request, ToyUpstream
from tests.toy.validity import Rules

WINDOW = 8_192
USAGE = {
    "/chat/completions": ("prompt_tokens", "completion_tokens"),
    "/responses": ("input_tokens", "output_tokens"),
    "/messages": ("input_tokens", "output_tokens"),
}


def cut_silently(toy: ToyUpstream, session: Session, turn: int, dialect: Dialect) -> None:
    """The toy accepts any request and never reports more than its window."""
    prompt_name, reply_name = USAGE[dialect.path]

    def reply(request: Request) -> Reply:
        prompt = min(dialect.count(toy.counter, request), WINDOW)
        usage = {prompt_name: prompt, reply_name: 40}
        said = session.reply(turn)
        return Reply(text=said.text, tool_calls=said.tool_calls, usage=usage)

    toy.reply = reply


async def play(toy: ToyUpstream, session: Session, shape: Shape) -> None:
    settings = f'store: "memory:"\nupstreams:\n  default: {{base_url: "{toy.base_url}", discover: false}}\n'
    dialect = shape.dialect
    headers = dialect.headers("sk-toy")
    async with serve(settings) as gateway, aiohttp.ClientSession(headers=headers) as client:
        for turn in range(len(session)):
            cut_silently(toy, session, turn, dialect)
            answer = await ask(client, f"{gateway.base_url}{dialect.path}", session.request(turn, shape))
            assert answer.is_whole
            # The gateway learns from a response in the background, while a client runs its tools.
            await gateway.at_rest()


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.path)
async def test_usage_that_stops_growing_counts_as_an_overflow(
    dialect: Dialect, caplog: pytest.LogCaptureFixture
) -> None:
    toy = ToyUpstream(window=1_000_000)
    with caplog.at_level(logging.WARNING):
        async with toy:
            shape = Shape(dialect=dialect, max_tokens=500, stream=dialect is not CHAT)
            await play(toy, make_session(40, 3, "one_user", 700), shape)
    said = [record.message for record in caplog.records if "left out a part" in record.message]
    assert len(said) == 1
    sizes = [seen.prompt_tokens for seen in toy.chats]
    # It is noticed before half of the prompt is missing, and does not happen again.
    assert max(sizes) < 2 * WINDOW
    assert all(size <= WINDOW for size in sizes[sizes.index(max(sizes)) + 1 :])
    assert toy.summaries


# An upstream that removes messages on request, or has compacted them itself, does not truncate silently.
Fields = dict[str, Any]

TRIGGER = 15_000
KEPT = 6_000
EDITS = {"edits": [{"type": "clear_tool_uses_20250919"}]}
FOLDED = {"type": "compaction", "encrypted_content": "c2VhbGVk"}


def add_fold(request: Fields) -> Fields:
    return request | {"input": [FOLDED, *request["input"]]}


CASES: dict[str, tuple[Dialect, Callable[[Fields], Fields]]] = {
    "Messages is asked to clear": (MESSAGES, lambda request: request | {"context_management": EDITS}),
    "Responses is asked to compact": (
        RESPONSES,
        lambda request: request | {"context_management": [{"type": "compaction"}]},
    ),
    "Responses has compacted": (RESPONSES, add_fold),
}


@pytest.mark.parametrize("name", CASES)
async def test_a_deliberately_smaller_prompt_teaches_no_window(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    dialect, change = CASES[name]
    session = make_session(30, 3, "one_user", 700)
    shape = Shape(dialect=dialect, max_tokens=500)
    toy = ToyUpstream(window=200_000, rules=Rules(foreign_secrets=True, unknown_items=True))
    caplog.set_level(logging.WARNING)
    toy.reply = lambda request: make_reply(dialect, toy, request)
    headers = {"anthropic-version": "2023-06-01"}
    async with (
        toy,
        serve(make_settings(toy)) as gateway,
        aiohttp.ClientSession(headers=headers) as client,
    ):
        for turn in range(len(session)):
            body = json.dumps(change(json.loads(session.request(turn, shape)))).encode()
            answer = await ask(client, f"{gateway.base_url}{dialect.path}", body)
            assert answer.status == 200
            # The gateway learns from a response in the background.
            await gateway.at_rest()
    assert max(seen.prompt_tokens for seen in toy.chats) > 1.2 * TRIGGER
    assert not [record for record in caplog.records if "left out a part" in record.message]


def make_reply(dialect: Dialect, toy: ToyUpstream, request: Request) -> Reply:
    whole = dialect.count(toy.counter, request)
    told = KEPT if whole > TRIGGER else whole
    return Reply(text="Done.", usage={"input_tokens": told, "output_tokens": 40})
