"""A history that is left with the upstream, in Responses or in Messages threads, far past its window."""

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.covering import cover_product
from tests.toy.agent import Shape, make_session, with_thinking
from tests.toy.checks import Promise, check_conversation
from tests.toy.counting import TokenCounter
from tests.toy.dialect import Since
from tests.toy.economics import prefix_reuse
from tests.toy.house import House, make_settings
from tests.toy.messages import Messages
from tests.toy.product import serve
from tests.toy.responses import Responses
from tests.toy.running import Run
from tests.toy.upstream import Seen, ToyUpstream

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

WINDOW = 16_000
THREADS = Messages(threads=True)
SHAPES = {
    "references": Shape(dialect=Responses(history="references"), max_tokens=4_096, stream=True),
    "references-plain": Shape(dialect=Responses(history="references", typed=False), max_tokens=1_000),
    "previous": Shape(dialect=Responses(history="previous"), max_tokens=4_096),
    "previous-streamed": Shape(
        dialect=Responses(history="previous", typed=False), max_tokens=1_000, stream=True
    ),
    "threads": Shape(dialect=THREADS, max_tokens=4_096),
    "threads-streamed": Shape(dialect=replace(THREADS, marks=False), max_tokens=1_000, stream=True),
}


def read_thread(seen: Seen) -> Mapping[str, object]:
    thread = seen.request.get("thread")
    return thread if isinstance(thread, dict) else {}


def is_named(seen: Seen) -> bool:
    """A request that refers to what the upstream holds, as its client sent it."""
    return b'"previous_response_id"' in seen.body or read_thread(seen).get("type") == "continue"


@pytest.mark.parametrize(("name", "bias"), cover_product(tuple(SHAPES), (0.7, 1.0, 1.6), strength=1))
async def test_a_stored_history_goes_on_past_its_window(house: House, name: str, bias: float) -> None:
    shape, thinks = SHAPES[name], bias == 1.0 and "streamed" not in name
    session = make_session(50, 50, "many_users", int(600 / bias), facts="all")
    session = replace(session, model=f"toy-{bias}-{name}")
    session = with_thinking(session) if thinks else session
    house.toy.counter = TokenCounter(bias)
    run = await house.play(session, shape)
    assert run.replays == ()
    check_conversation(session, shape, run, promise=Promise(window=WINDOW, bias=bias, tolerance=0.2))
    assert len(run.summaries) >= 2
    assert prefix_reuse(run.prompts) >= 0.78
    if name.startswith("references"):
        return
    # As it came while nothing else has to change, and in full where something has.
    begun = [turn for turn, seen in enumerate(run.outgoing) if not is_named(seen)]
    clamped = [answer for answer in run.answers if answer.header("x-gateway-max-tokens") is not None]
    pruned = [plan for plan in run.plans if plan is not None and "pruned" in plan]
    assert begun[0] == 0 and len(begun) >= 3
    assert len(begun) <= 1 + len(run.summaries) + len(clamped) + len(pruned)
    for turn in {*range(len(session))} - {*begun}:
        assert run.outgoing[turn].body == session.request(turn, shape, run.sinces[turn])


async def test_a_continued_thread_is_understood_as_the_history_sent_in_full() -> None:
    """The same summaries at the same turns, of the same messages."""
    session = with_thinking(make_session(40, 40, "many_users", 500))
    # On a request that only names its history no summary can ride.
    more = "policies: {default: {summary: {ride: never}}}\n"
    runs = list[Run]()
    for dialect in (Messages(), THREADS):
        toy = ToyUpstream(window=WINDOW)
        async with toy, serve(make_settings(toy, more=more)) as product:
            house, shape = (
                House(toy, product, "sk-toy"),
                Shape(dialect=dialect, max_tokens=4_096, stream=True),
            )
            runs.append(await house.play(session, shape))
            await house.at_rest()
    in_full, threaded = runs
    assert threaded.plans == in_full.plans
    assert [seen.body for seen in threaded.summaries] == [seen.body for seen in in_full.summaries]
    items = Messages().items
    assert [items(prompt) for prompt in threaded.prompts] == [items(prompt) for prompt in in_full.prompts]
    assert threaded.conversation == in_full.conversation


async def test_tenants_do_not_continue_each_others_threads() -> None:
    """With a key of the upstream's own, all of them are one account there."""
    session, shape = make_session(3, 3, "many_users", 300), Shape(dialect=THREADS, max_tokens=2_000)
    toy = ToyUpstream(window=64_000)
    async with toy:
        settings = make_settings(toy).replace("discover: false", 'discover: false, api_key: "sk-own"')
        async with serve(settings) as product:
            one, other = (House(toy, product, key) for key in ("sk-one", "sk-two"))
            begun = await one.play(session, shape, last=1)
            run = await other.play(session, shape, 1, since=begun.since)
            again = await one.play(session, shape, 1, since=begun.since)
    assert run.failed == [] and run.replays == ("thread_not_found",)
    assert again.failed == [] and again.replays == ()
    created = [seen for seen in run.outgoing if read_thread(seen).get("type") == "create"]
    assert created == [run.outgoing[0]]


@pytest.mark.parametrize("name", ["threads", "previous"])
async def test_what_one_key_knows_of_a_history_is_nothing_to_another(house: House, name: str) -> None:
    session, shape = make_session(30, 30, "many_users", 500), SHAPES[name]
    session = replace(session, model=f"toy-keys-{name}")
    other = replace(house, key=f"{house.key}-other")
    runs = [await each.play(session, shape) for each in (house, other)]
    assert [run.failed for run in runs] == [[], []]
    assert len(runs[0].summaries) == len(runs[1].summaries) >= 1
    since = Since(turn=28, response_id=runs[0].answers[-1].response_id or "")
    body = session.request(29, shape, since)
    await other.send(shape.dialect, body)
    assert house.toy.chats[-1].body == body


@pytest.mark.parametrize("stream", [True, False])
async def test_a_conversation_passes_and_nothing_in_it_is_cut(stream: bool) -> None:
    """Others may add to it beside the gateway, so its history is never known for certain."""
    toy, bodies, answers = ToyUpstream(window=4_000), list[bytes](), []
    async with toy, serve(make_settings(toy)) as product:
        house = House(toy, product, "sk-toy")
        created = await house.post("/conversations", b"{}")
        request = {"model": "toy-model", "conversation": json.loads(created.body)["id"], "stream": stream}
        for number in range(10):
            text = f"{number} " + "word " * 600
            bodies.append(json.dumps(request | {"input": [{"role": "user", "content": text}]}).encode())
            answers.append(await house.post("/responses", bodies[-1]))
    assert [seen.body for seen in toy.chats] == bodies
    assert answers[2].is_whole
    # The upstream's own error reaches the client.
    error = json.loads(answers[-1].body)["error"]
    assert (answers[-1].status, error["code"]) == (400, "context_length_exceeded")
