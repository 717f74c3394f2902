"""Real sessions, far larger than the window they are played on, in each of the formats."""

import math

import pytest

from tests.shared_data import requires_shared
from tests.toy.agent import Shape
from tests.toy.counting import TokenCounter
from tests.toy.dialect import Dialect
from tests.toy.economics import measure, simulate
from tests.toy.gateway import make_settings, running_gateway
from tests.toy.messages import MESSAGES
from tests.toy.responses import RESPONSES, Responses
from tests.toy.running import run_session
from tests.toy.transcripts import find_large, load_transcript
from tests.toy.upstream import ToyUpstream

# Spread over 0.7 to 1.6 by the place in the list, so that every file meets a low and a high one.
_BIASES = (0.7, 1.0, 1.3, 1.6)


def list_cases() -> list[tuple[str, int, float]]:
    try:
        files = find_large()
    except FileNotFoundError:
        return [("absent", 0, 1.0)]
    return [
        (file, window, _BIASES[(place + shift) % len(_BIASES)])
        for place, file in enumerate(files)
        for window, shift in ((32_000, 0), (64_000, 2))
    ]


async def play(file: str, window: int, bias: float, shape: Shape) -> None:
    session = load_transcript(file)
    toy = ToyUpstream(window=window, bias=bias)
    async with toy, running_gateway(make_settings(toy)) as gateway:
        run = await run_session(session, gateway.base_url, toy, shape)
    ideal = simulate(measure(session, TokenCounter(bias), shape), window)

    assert run.failed == []
    assert run.refusals == []
    assert max(seen.prompt_tokens for seen in run.outgoing) <= window
    # A summary that was prepared when the session ended has not been needed.
    assert len(run.summaries) <= math.ceil(1.5 * ideal.summaries) + (ideal.summaries == 0)


@requires_shared
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("file", "window", "bias"), list_cases())
async def test_a_real_session_is_answered_to_its_end(file: str, window: int, bias: float) -> None:
    await play(file, window, bias, Shape(max_tokens=4_096, stream=True))


DIALECTS: dict[str, Dialect] = {
    "messages": MESSAGES,
    "responses": RESPONSES,
    "responses-previous": Responses(history="previous"),
}
# Of all of them, the quickest: each format takes the way of chat, and all together take ten minutes.
SAMPLE = (
    ("entire-claude-code/ec-38b74f08e3-3-coll.json", 32_000, 1.3),
    ("entire-claude-code/f6-e8fac5a8d6-0.json", 64_000, 1.6),
    ("entire-claude-code/18-4069756ffc-0-postcompact.json", 32_000, 0.7),
)


@requires_shared
@pytest.mark.timeout(300)
@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
@pytest.mark.parametrize(("file", "window", "bias"), SAMPLE)
async def test_so_is_one_in_another_format(file: str, window: int, bias: float, dialect: Dialect) -> None:
    await play(file, window, bias, Shape(dialect=dialect, max_tokens=4_096, stream=True))
