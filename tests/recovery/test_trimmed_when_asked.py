"""An upstream that removes messages on request, or has compacted them itself, does not truncate silently."""

import json
import logging
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from tests.toy.agent import Shape, make_session
from tests.toy.dialect import Dialect
from tests.toy.gateway import make_settings, running_gateway
from tests.toy.messages import Messages
from tests.toy.reply import Reply
from tests.toy.responses import Responses
from tests.toy.running import ask
from tests.toy.upstream import Request, ToyUpstream
from tests.toy.validity import Rules

Fields = dict[str, Any]

TRIGGER = 15_000
KEPT = 6_000
EDITS = {"edits": [{"type": "clear_tool_uses_20250919"}]}
FOLDED = {"type": "compaction", "encrypted_content": "c2VhbGVk"}


def add_fold(request: Fields) -> Fields:
    return request | {"input": [FOLDED, *request["input"]]}


CASES: dict[str, tuple[Dialect, Callable[[Fields], Fields]]] = {
    "Messages is asked to clear": (Messages(), lambda request: request | {"context_management": EDITS}),
    "Responses is asked to compact": (
        Responses(),
        lambda request: request | {"context_management": [{"type": "compaction"}]},
    ),
    "Responses has compacted": (Responses(), add_fold),
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
        running_gateway(make_settings(toy)) as gateway,
        aiohttp.ClientSession(headers=headers) as client,
    ):
        for turn in range(len(session)):
            body = json.dumps(change(json.loads(session.request(turn, shape)))).encode()
            answer = await ask(client, f"{gateway.base_url}{dialect.path}", body)
            assert answer.status == 200
            # The gateway learns from a response in the background.
            await gateway.settle()
    assert max(seen.prompt_tokens for seen in toy.chats) > 1.2 * TRIGGER
    assert not [record for record in caplog.records if "left out a part" in record.message]


def make_reply(dialect: Dialect, toy: ToyUpstream, request: Request) -> Reply:
    whole = dialect.count(toy.counter, request)
    told = KEPT if whole > TRIGGER else whole
    return Reply(text="Done.", usage={"input_tokens": told, "output_tokens": 40})
