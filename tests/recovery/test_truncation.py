"""An upstream that cuts the prompt without a word, and tells the usage of what is left (Ollama)."""

import asyncio
import logging

import aiohttp
import pytest

from tests.toy.agent import Session, Shape, make_session
from tests.toy.gateway import running_gateway
from tests.toy.reply import Reply
from tests.toy.running import ask
from tests.toy.upstream import Request, ToyUpstream

WINDOW = 8_192
SHAPE = Shape(max_tokens=500)


def cut_silently(toy: ToyUpstream, session: Session, turn: int) -> None:
    """The toy answers whatever it gets, and never tells more than its window."""

    def reply(request: Request) -> Reply:
        prompt = min(toy.counter.prompt(request), WINDOW)
        usage = {"prompt_tokens": prompt, "completion_tokens": 40, "total_tokens": prompt + 40}
        said = session.reply(turn)
        return Reply(text=said.text, tool_calls=said.tool_calls, usage=usage)

    toy.reply = reply


async def play(toy: ToyUpstream, session: Session) -> None:
    settings = f'store: "memory:"\nupstreams:\n  default: {{base_url: "{toy.base_url}", discover: false}}\n'
    async with running_gateway(settings) as gateway, aiohttp.ClientSession() as client:
        for turn in range(len(session)):
            cut_silently(toy, session, turn)
            answer = await ask(client, f"{gateway.base_url}/chat/completions", session.request(turn, SHAPE))
            assert answer.is_whole
            # A client is busy with its tools meanwhile; what is learned is learned then.
            await asyncio.sleep(0.05)


async def test_usage_that_stops_growing_counts_as_an_overflow(caplog: pytest.LogCaptureFixture) -> None:
    toy = ToyUpstream(window=1_000_000)
    with caplog.at_level(logging.WARNING):
        async with toy:
            await play(toy, make_session(40, 3, "one_user", 700))
    said = [record.message for record in caplog.records if "left out a part" in record.message]
    assert len(said) == 1
    sizes = [seen.prompt_tokens for seen in toy.chats]
    # Noticed before what is left out is as long as what is not, and never again.
    assert max(sizes) < 2 * WINDOW
    assert all(size <= WINDOW for size in sizes[sizes.index(max(sizes)) + 1 :])
    assert toy.summaries
