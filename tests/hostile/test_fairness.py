"""Heavy requests of one tenant take their time; others' requests do not wait for them.

The order of answers shows it, as gateway, upstream and clients share one event loop and its machine.
"""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.wire_through.raw import render_answer, render_request, writing
from tests.wire_through.wiring import Wire, make_chat, opening_wire

# Both windows are so small that every request is counted.
_MODELS = "models:\n  - {match: heavy, context: 400000}\n  - {match: light, context: 64000}\n"
_ANSWER = json.dumps({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 1}}).encode()
_HEALTH = render_request("/healthz", method="GET")
_PROSE = "The parser reads one token at a time and never looks back. "


@pytest_asyncio.fixture
async def wire() -> AsyncIterator[Wire]:
    async with opening_wire(more=_MODELS) as wire:
        wire.upstream.script = writing(render_answer(_ANSWER))
        yield wire


def render_from(tenant: str, body: bytes) -> bytes:
    headers = (("Content-Type", "application/json"), ("Authorization", f"Bearer sk-{tenant}"))
    return render_request(body=body, headers=headers)


def make_heavy(text: str) -> bytes:
    return make_chat(model="heavy", messages=[{"role": "user", "content": text}])


def make_light(number: int) -> bytes:
    """100 KB, so that it needs a thread, too."""
    return make_chat(model="light", messages=[{"role": "user", "content": f"{number} {_PROSE * 1_700}"}])


async def note_order(wire: Wire, heavy: bytes, owner: str) -> list[str]:
    """The order of answers to a heavy request, and to three that begin after it, one after the other."""
    order: list[str] = []

    async def ask_heavy() -> None:
        assert (await wire.ask(render_from("greedy", heavy))).status == 200
        order.append("heavy")

    waiting = asyncio.create_task(ask_heavy())
    # The heavy one is sent and read first.
    await wire.ask(_HEALTH)
    for number in range(3):
        assert (await wire.ask(render_from(owner, make_light(number)))).status == 200
        order.append("light")
    await waiting
    return order


@pytest.mark.parametrize(
    ("unit", "owner"),
    [("a", "modest"), ("a", "greedy"), (" ", "modest"), ("\u0301", "modest")],
    ids=["letter", "own", "blank", "accent"],
)
async def test_no_tenant_waits_for_one_long_text_to_be_counted(wire: Wire, unit: str, owner: str) -> None:
    order = await note_order(wire, make_heavy(unit * 8_000_000), owner)
    assert order == ["light", "light", "light", "heavy"]


async def test_no_tenant_waits_for_the_long_texts_of_many_made_up_keys(wire: Wire) -> None:
    heavy = make_heavy("a" * 8_000_000)
    others = [asyncio.create_task(wire.ask(render_from(f"made-up-{at}", heavy))) for at in range(3)]
    order = await note_order(wire, heavy, "modest")
    assert order == ["light", "light", "light", "heavy"]
    assert [got.status for got in await asyncio.gather(*others)] == [200] * 3
