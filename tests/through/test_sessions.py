"""A session of several windows goes on, in each format, and every promise holds for each of its requests."""

import pytest

from tests.toy.agent import Shape, Style, make_session, with_thinking
from tests.toy.chat import CHAT
from tests.toy.checks import check_conversation
from tests.toy.house import House
from tests.toy.messages import Messages
from tests.toy.responses import Responses

pytestmark = pytest.mark.asyncio(loop_scope="module")

SHAPES = {
    "chat": Shape(dialect=CHAT, max_tokens=1_000),
    "chat-streamed": Shape(dialect=CHAT, max_tokens=1_000, stream=True),
    "responses-streamed": Shape(dialect=Responses(), max_tokens=1_000, stream=True),
    "messages-streamed": Shape(dialect=Messages(), max_tokens=1_000, stream=True),
    "messages": Shape(dialect=Messages(marks=False), max_tokens=1_000),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("style", ["one_user", "many_users"])
async def test_a_session_of_three_windows_goes_on(house: House, shape: Shape, style: Style) -> None:
    session = make_session(40, 40, style, 600)
    run = await house.play(session, shape)
    sent = check_conversation(session, shape, run)
    assert 1 <= len(run.summaries) <= 6
    assert sent[-1].inserted


async def test_a_session_of_a_model_that_thinks_goes_on(house: House) -> None:
    session = with_thinking(make_session(40, 41, "one_user", 600))
    shape = SHAPES["messages-streamed"]
    check_conversation(session, shape, await house.play(session, shape))
