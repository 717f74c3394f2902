"""What clients without a valid key send takes no more memory than the settings say, whatever it consists of.

Each cache is filled several times over with what a client may choose: ids, names, models, tenants, labels.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from itertools import count
from pathlib import Path

import brotli
import pytest

from bench.hostile_memory import count_bound
from gateway.activity.book import ActivityBook
from gateway.bounds.lanes import Lanes
from gateway.conversations.recognizer import Received, Recognizer
from gateway.conversations.registry import Registry
from gateway.conversations.stored_responses import StoredResponses
from gateway.core.errors import BeyondBounds, Unreadable
from gateway.core.sizing.estimate import Meter
from gateway.pipeline.admission import Admission
from gateway.settings import load_settings
from gateway.state.heads import Heads
from gateway.state.named_turns import NamedTurns
from gateway.store.memory import MemoryStore
from gateway.tenants import Tenancy, Tenant
from gateway.upstream.target import Upstreams
from gateway.wire.formats.chat import CHAT
from gateway.wire.formats.messages import MESSAGES
from gateway.wire.formats.responses import RESPONSES
from gateway.wire.formats.responses.history import STORED_HISTORY
from gateway.wire.sse import SseEvent
from gateway.wire.structure import UNBOUNDED
from gateway.wire.wire_format import WireFormat
from tests.builders.chat import make_plan, make_turn, read, render
from tests.builders.pipeline import SETTINGS, load_text, make_request_head
from tests.builders.state import make_head, make_state, make_storage
from tests.covering import choose, choose_rows
from tests.hostile.growth import measure_growth, measure_peak
from tests.hostile.process import linux_only, running_process
from tests.toy.gateway import make_settings, running_gateway
from tests.toy.running import wait_until
from tests.toy.upstream import ToyUpstream
from tests.wire_through.raw import RawUpstream, ask, connecting, render_answer, render_request
from tests.wire_through.raw import Received as RawReceived
from tests.wire_through.wiring import JSON_HEADERS, make_chat, render_chat

_MIB = 1 << 20
# Of what is counted, for what Python's own tables take while they grow.
_SLACK = 1.5
# Characters beyond ASCII take up to four bytes in memory.
_WIDE = "\U0001f600"


def _render_calls(number: int, name: str, per_body: int) -> bytes:
    calls = [
        {"id": f"{number}.{call}{name}", "type": "function", "function": {"name": name, "arguments": "{}"}}
        for call in range(per_body)
    ]
    answers = [{"role": "tool", "tool_call_id": each["id"], "content": "x"} for each in calls]
    messages = [
        {"role": "user", "content": f"{number}"},
        {"role": "assistant", "tool_calls": calls},
        *answers,
    ]
    return json.dumps({"model": "m", "messages": messages}).encode()


@pytest.mark.parametrize(
    ("name", "per_body"),
    choose_rows([("a" * 200_000, 1), (_WIDE * 50_000, 1), ("a", 100)], [1, 2]),
    ids=["long", "wide", "many"],
)
def test_facts_weigh_the_ids_and_names_of_tool_calls(name: str, per_body: int) -> None:
    recognizer = Recognizer(_MIB, _MIB, 1_000)

    def send() -> None:
        for number in range(30 if per_body == 1 else 100):
            recognizer.recognize("t", CHAT, _render_calls(number, name, per_body))

    # The same facts may belong to a body, too.
    assert measure_growth(send) < _SLACK * 2 * _MIB
    assert recognizer.facts_bytes + recognizer.bodies_bytes <= 2 * _MIB


@pytest.mark.parametrize("wire_format", [CHAT, MESSAGES, RESPONSES], ids=lambda each: each.name)
def test_a_model_name_longer_than_any_model_has_makes_a_body_unreadable(wire_format: WireFormat) -> None:
    for size in (1_024, 1_025):
        body = json.dumps({"model": "m" * size, "messages": [], "input": []}).encode()
        if size == 1_024:
            wire_format.parse_body(body, UNBOUNDED)
            continue
        with pytest.raises(Unreadable):
            wire_format.parse_body(body, UNBOUNDED)


def test_a_system_prompt_of_many_short_blocks_is_not_kept_as_texts() -> None:
    system = [{"type": "text", "text": f"{number}" * 30} for number in range(5_000)]
    system.append({"type": "text", "text": "long " * 100})
    body = json.dumps({"model": "m", "max_tokens": 1, "system": system, "messages": []}).encode()
    assert MESSAGES.parse_body(body, UNBOUNDED).envelope.identity_blocks == ()


def test_what_conversations_did_takes_bounded_memory_whatever_they_are_called() -> None:
    book, received = ActivityBook(2 * _MIB), read(render([{"role": "user", "content": "Fix it."}]))

    def send() -> None:
        for number in range(6_000):
            turn = make_turn(
                received,
                conversation_id=f"{number:016}",
                tenant=Tenant(f"tenant:{number:064}", None, "default"),
                session=f"{number}" + _WIDE * 100,
            )
            for _ in range(1 + number % 20):
                book.note_request(turn, make_plan(), None)

    assert measure_growth(send) < _SLACK * 2 * _MIB


def test_the_list_of_conversations_weighs_names_that_clients_choose() -> None:
    registry, received = Registry(_MIB, 2), read(render([{"role": "user", "content": "Fix it."}]))

    def send() -> None:
        for number in range(6_000):
            turn = make_turn(
                received,
                conversation_id=f"{number:016}",
                tenant=Tenant(f"tenant:{number:064}", None, "default"),
                session=f"{number}" + _WIDE * 100,
            )
            registry.record(turn, make_plan(), make_head(received.conversation, conversation=f"{number:016}"))

    # Two MiB of records, and two turns.
    assert measure_growth(send) < _SLACK * 2.2 * _MIB


@pytest.mark.parametrize(
    ("headers", "size"),
    choose_rows([(3, 60_000), (200, 4), (20, 100)], [0, 2]),
    ids=["long", "many", "usual"],
)
def test_routes_weigh_every_header_in_all_its_forms(headers: int, size: int) -> None:
    settings = load_text(SETTINGS)
    admission = Admission(settings, Tenancy(settings), Upstreams(settings))

    def send() -> None:
        for number in range(400):
            more = [(f"x-{number}-{header}", "v" * size) for header in range(headers)]
            head = admission.admit(make_request_head(more=more)).head
            assert head.lines and head.without_encoding.asking_for_identity.lines

    assert measure_growth(send) < _SLACK * 2 * _MIB


def test_heads_of_made_up_tenants_stay_within_their_bytes() -> None:
    heads = Heads(make_storage(MemoryStore(), max_bytes=_MIB))
    conversation = read(render([{"role": "user", "content": "Fix it."}])).conversation

    def send() -> None:
        for number in range(5_000):
            names = ("owner", "key", "tools", "pivot", "conversation")
            keys = {name: f"{at}{number:063x}" for at, name in enumerate(names)}
            batches = tuple(f"{number}{batch:064}" for batch in range(number % 10))
            heads.hold(make_head(conversation, scope=f"{number:064}", batches=batches, **keys))

    assert measure_growth(send) < _SLACK * _MIB
    assert heads.size_bytes <= _MIB


@pytest.mark.parametrize("name", choose(["", "m" * 200, _WIDE * 200], [0, 2]), ids=["short", "long", "wide"])
def test_keys_of_made_up_models_stay_within_their_bytes(name: str) -> None:
    calibrations = make_state(MemoryStore(), max_bytes=_MIB).calibrations
    numbers = count()

    def send() -> None:
        for _ in range(6_000):
            meter = Meter("default", f"{next(numbers)}{name}", "tiktoken")
            calibrations.find(f"key:{next(numbers):064}", meter)

    assert measure_growth(send) < _SLACK * _MIB


def make_stored(max_bytes: int, max_body_bytes: int) -> StoredResponses:
    """Nothing is stored outside of its memory."""
    named = NamedTurns(make_storage(MemoryStore()))
    return StoredResponses(Recognizer(1, 1, 1), named, max_bytes, max_body_bytes)


def _answer(
    stored: StoredResponses, recognizer: Recognizer, body: bytes, response: Mapping[str, object]
) -> None:
    received = recognizer.recognize("t", RESPONSES, body)
    _, recorder = asyncio.run(stored.write_out(received, STORED_HISTORY, "u", Lanes()))
    if recorder is not None:
        recorder.note(SseEvent("", json.dumps(response).encode()))


@pytest.mark.parametrize(
    "make_id",
    choose(
        [lambda number: f"{number}" + "i" * 100_000, lambda number: f"{number}" + _WIDE * 20_000, str], [1]
    ),
    ids=["long", "wide", "short"],
)
def test_named_responses_weigh_their_names(make_id: Callable[[int], str]) -> None:
    stored, recognizer = make_stored(3 * _MIB, _MIB), Recognizer(1, 1, 1)

    def send() -> None:
        for number in range(200 if len(make_id(0)) > 1 else 3_000):
            item = {"type": "message", "id": f"i{make_id(number)}", "role": "assistant", "content": "x"}
            response = {"object": "response", "id": make_id(number), "status": "completed", "output": [item]}
            _answer(stored, recognizer, b'{"model":"m","input":"x"}', response)

    assert measure_growth(send) < _SLACK * 3 * _MIB


async def test_a_large_request_waits_for_memory_that_others_hold_and_small_ones_do_not() -> None:
    large, small = make_chat(padding="x" * 200_000), make_chat()
    async with ToyUpstream() as toy, running_gateway(make_settings(toy)) as gateway:
        memory = gateway.parts.foundation.budget
        others = memory.open("others")
        others.take(memory.max_bytes)
        waiting = asyncio.create_task(ask(gateway.port, render_chat(large)))
        assert (await ask(gateway.port, render_chat(small))).status == 200
        assert not waiting.done() and len(toy.requests) == 1
        others.shrink(others.size_bytes)
        assert (await waiting).status == 200
        await gateway.settle()
        assert memory.used_bytes == 0


async def test_modest_requests_pass_a_huge_one_that_waits_while_another_is_beyond_the_budget() -> None:
    async with ToyUpstream() as toy, running_gateway(make_settings(toy)) as gateway:
        memory = gateway.parts.foundation.budget
        with memory.open("others") as beyond, memory.open("more") as huge:
            beyond.take(2 * memory.max_bytes)
            waiting = asyncio.create_task(huge.grow(memory.max_bytes))
            for size in (20_000, 60_000, 150_000):
                body = make_chat(padding="x" * size)
                assert (await ask(gateway.port, render_chat(body))).status == 200
            assert not waiting.done()
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)


async def test_bodies_of_middling_size_are_read_and_sent_while_others_hold_all_memory() -> None:
    body = make_chat(padding="x" * 25_000)
    async with ToyUpstream() as toy, running_gateway(make_settings(toy)) as gateway:
        memory = gateway.parts.foundation.budget
        with memory.open("others") as others:
            others.take(memory.max_bytes)
            assert (await ask(gateway.port, render_chat(body))).status == 200
            assert others.size_bytes == memory.max_bytes


async def test_bodies_that_were_announced_and_do_not_come_take_no_memory() -> None:
    head = render_request(headers=(("Authorization", "Bearer sk-x"),)).replace(
        b"Content-Length: 0", b"Content-Length: 60000000"
    )
    async with ToyUpstream() as toy, running_gateway(make_settings(toy)) as gateway:
        async with AsyncExitStack() as connections:
            for _ in range(20):
                connection = await connections.enter_async_context(connecting(gateway.port))
                await connection.send(head + b"x" * 1_000)
            assert (await ask(gateway.port, render_chat(make_chat()))).status == 200
            assert gateway.parts.foundation.budget.used_bytes < 20 * 2_000
        await wait_until(lambda: gateway.parts.foundation.budget.used_bytes == 0)


def test_references_that_stand_for_more_than_a_body_may_hold_are_not_written_out() -> None:
    """60 KB of references to an item of 200 KB would be 300 MB."""
    stored, recognizer = make_stored(24 * _MIB, 4 * _MIB), Recognizer(1, 1, 1)
    item = {"type": "message", "id": "i", "role": "assistant", "content": "x" * 200_000}
    response = {"object": "response", "id": "r", "status": "completed", "output": [item]}
    _answer(stored, recognizer, b'{"model":"m","input":"x"}', response)
    for references, passes in ((10, False), (1_500, True)):
        named = [{"type": "item_reference", "id": "i"}] * references
        body = json.dumps({"model": "m", "input": named}).encode()
        received = recognizer.recognize("t", RESPONSES, body)
        found: list[bytes] = []

        def write_out(received: Received = received, found: list[bytes] = found) -> None:
            with suppress(BeyondBounds):
                written, _ = asyncio.run(stored.write_out(received, STORED_HISTORY, "u", Lanes()))
                found.append(written.body.data)

        peak_bytes = measure_peak(write_out)
        assert (found == []) == passes
        if passes:
            assert peak_bytes < 2 * _MIB


def test_a_chain_of_responses_longer_than_a_body_may_be_is_not_written_out() -> None:
    stored, recognizer = make_stored(24 * _MIB, _MIB), Recognizer(1, 1, 1)
    bodies = []
    for number in range(30):
        before = f',"previous_response_id":"r{number - 1}"' if number else ""
        body = b'{"model":"m"%s,"input":"%s"}' % (before.encode(), b"x" * 40_000)
        bodies.append(body)
        with suppress(BeyondBounds):
            response = {"object": "response", "id": f"r{number}", "status": "completed"}
            _answer(stored, recognizer, body, response)
    sizes = []
    for body in bodies:
        received = recognizer.recognize("t", RESPONSES, body)
        with suppress(BeyondBounds):
            written, _ = asyncio.run(stored.write_out(received, STORED_HISTORY, "u", Lanes()))
            sizes.append(len(written.body.data))
    assert max(sizes) <= _MIB
    assert sizes[20] > 800_000
    assert len(sizes) < len(bodies)


def test_a_conversation_in_the_list_holds_nothing_of_its_response() -> None:
    registry, received = Registry(_MIB, 2), read(render([{"role": "user", "content": "Fix it."}]))
    turn = make_turn(received, conversation_id="c", on_event=lambda _: None)
    registry.record(turn, make_plan(), make_head(received.conversation))
    kept = registry.find_turn("c")
    assert kept is not None and kept.on_event is None


_SMALL = """
listen: {max_body_bytes: 4194304}
bounds: {bodies_bytes: 16777216}
cache: {bodies_bytes: 4194304, facts_bytes: 1048576, records_bytes: 1048576, named_bytes: 3145728,
  activity_bytes: 1048576}
"""


@linux_only
async def test_a_process_stays_within_the_memory_that_its_settings_say(tmp_path: Path) -> None:
    """Sixty bodies of 4 MB, each of which waits for its response; without a budget they take a gigabyte."""

    async def answer_slowly(_: RawReceived, writer: asyncio.StreamWriter) -> None:
        upstream.received.clear()
        await asyncio.sleep(0.1)
        writer.write(render_answer(b"{}"))

    text, bomb = "word " * 780_000, brotli.compress(bytes(3 * _MIB), quality=5)
    large = render_chat(make_chat(messages=[{"role": "user", "content": f"{text}\U0001f600"}]))
    packed = render_request(body=bomb, headers=(*JSON_HEADERS, ("Content-Encoding", "br")))
    async with RawUpstream(script=answer_slowly) as upstream:
        settings = (
            f'store: "memory:"\nupstreams:\n  default: {{base_url: "{upstream.base_url}", discover: false}}\n'
        )
        settings += 'models:\n  - {match: "m", context: 4000000}\n' + _SMALL
        async with running_process(settings, tmp_path) as gateway:
            got = await asyncio.gather(*[ask(gateway.port, each) for each in (large, packed) * 60])
            peak_bytes = gateway.peak_rss_bytes
        (tmp_path / "small.yaml").write_text(settings, "utf-8")
    assert {each.status for each in got} <= {200, 503}
    assert {each.head.values("retry-after")[0] for each in got if each.status == 503} <= {b"1"}
    assert peak_bytes < count_bound(load_settings(tmp_path / "small.yaml", {}))
