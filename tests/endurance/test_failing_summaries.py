"""A summary that fails its checks costs the user nothing: what fits goes on unchanged."""

import aiohttp
import pytest

from tests.toy.agent import Shape, make_session
from tests.toy.delivery import RawAnswer
from tests.toy.gateway import make_settings, running_gateway
from tests.toy.reply import Reply, ToolCall
from tests.toy.running import ask
from tests.toy.upstream import ToyUpstream

WINDOW = 16_000
SHAPE = Shape(max_tokens=1_000)
_CALL = ToolCall(id="a", name="read_file", arguments="{}")

BAD = {
    "empty": Reply(text=""),
    "blank": Reply(text=" \n"),
    "only thinking": Reply(text="<think>hm</think>"),
    "truncated": Reply(text="We did", finish_reason="length"),
    "tool call": Reply(text="We did.", tool_calls=(_CALL,)),
    "filtered": Reply(text="We did.", finish_reason="content_filter"),
    "as long as the history": Reply(text="word " * 11_000),
}


def choose_body(toy: ToyUpstream) -> bytes:
    """A request past the hard line that still fits the window."""
    session = make_session(40, 3, "one_user", 500)
    for turn in range(40):
        prompt = toy.counter.prompt(session.envelope(turn, SHAPE))
        if 0.82 * WINDOW < prompt < 0.88 * WINDOW:
            return session.request(turn, SHAPE)
    raise AssertionError("no such turn")


async def send_twice(toy: ToyUpstream) -> list[int]:
    """The statuses of two equal requests, and what they cost in summary calls."""
    async with running_gateway(make_settings(toy)) as gateway, aiohttp.ClientSession() as client:
        body = choose_body(toy)
        answers = [await ask(client, f"{gateway.base_url}/chat/completions", body) for _ in range(2)]
    assert [seen.body for seen in toy.chats] == [body, body]
    assert {answer.header("x-gateway-plan") for answer in answers} == {"passthrough"}
    return [answer.status for answer in answers]


@pytest.mark.parametrize("summary", BAD.values(), ids=BAD.keys())
async def test_a_bad_summary_is_not_stored_and_the_request_goes_on(summary: Reply) -> None:
    async with ToyUpstream(window=WINDOW) as toy:
        toy.summary = lambda _: summary
        assert await send_twice(toy) == [200, 200]
        # Three compactions with one retry each, then the breaker is open: never a loop.
        assert len(toy.summaries) <= 6


@pytest.mark.parametrize("status", [200, 401, 429, 500])
async def test_an_error_in_place_of_a_summary_is_none(status: int) -> None:
    async with ToyUpstream(window=WINDOW) as toy:
        error = RawAnswer(status=status, pieces=(b'{"error": {"message": "no"}}',))
        toy.summary_failures = [error] * 9
        assert await send_twice(toy) == [200, 200]
        assert len(toy.summaries) <= 6
