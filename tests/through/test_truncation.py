"""An upstream that cuts the prompt silently and reports the usage of the rest, like Ollama."""

import logging

import aiohttp
import pytest

from tests.toy.agent import Session, Shape, make_session
from tests.toy.chat import CHAT
from tests.toy.dialect import Dialect
from tests.toy.dialects import DIALECTS
from tests.toy.product import serve
from tests.toy.reply import Reply
from tests.toy.running import ask
from tests.toy.upstream import Request, ToyUpstream

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
