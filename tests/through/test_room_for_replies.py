"""The reply is clamped to what the window has left, also where little is known of a history any more."""

import json
import random
from dataclasses import replace

import pytest

from tests.toy.agent import Message, Session, Shape, Turn, make_session
from tests.toy.house import make_settings
from tests.toy.material import make_tool_text
from tests.toy.product import serve
from tests.toy.running import Pace, run_session
from tests.toy.upstream import ToyUpstream

_WINDOW = 48_000
# More than is ever left.
_SHAPE = Shape(max_tokens=40_000)


def _make_session(turns: int, outside: str, inside: str) -> Session:
    """Its system prompt takes a third of the window, and is of another kind than its results."""
    rng = random.Random(turns)
    system = make_tool_text(rng, outside, 15_000)
    plain = make_session(1, 1)
    return replace(
        plain,
        name=f"{outside}-{inside}-{turns}",
        leading=({"role": "system", "content": system},),
        turns=tuple(_make_turn(rng, number, inside) for number in range(turns)),
        facts=(),
    )


def _make_turn(rng: random.Random, number: int, kind: str) -> Turn:
    function = {"name": "read_file", "arguments": json.dumps({"path": f"/src/{number}.py"})}
    call = {"id": f"call_{number}", "type": "function", "function": function}
    result: Message = {
        "role": "tool",
        "tool_call_id": f"call_{number}",
        "content": make_tool_text(rng, kind, 2_500),
    }
    return Turn({"role": "assistant", "content": f"Step {number}.", "tool_calls": [call]}, (result,))


@pytest.mark.parametrize(("outside", "inside"), [("json", "log"), ("log", "json")])
async def test_after_a_restart_no_request_is_refused(outside: str, inside: str, store_url: str) -> None:
    """Upstream counts the system prompt by another ratio than what is added behind the restart."""
    session = _make_session(40, outside, inside)
    async with ToyUpstream(window=_WINDOW) as toy:
        settings = make_settings(toy, store=store_url)
        for first in range(0, len(session), 8):
            async with serve(settings) as product:
                pace = Pace(first=first, last=first + 8)
                run = await run_session(session, product.base_url, toy, _SHAPE, pace)
                await product.at_rest()
            assert run.failed == []
            assert run.refusals == []
