"""What the toy counts, the sums that judge a run, what clients trim, and the proxy before a Redis."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.toy.agent import PLAIN, Style, Trim, make_session
from tests.toy.counting import TokenCounter, count_text
from tests.toy.economics import (
    Sizes,
    prefix_breaks,
    prefix_reuse,
    simulate,
)
from tests.toy.material import make_prose, make_tool_text
from tests.toy.redis_server import RedisRefused, requires_redis, running_redis
from tests.toy.slow_proxy import SlowProxy, Traffic, running_proxy
from tests.toy.summarising import find_facts
from tests.toy.trimming import (
    keep_first_and_newest,
    keep_head_and_tail,
    keep_newest,
    keep_tokens,
)


@given(st.text(max_size=400), st.integers(0, 60))
def test_a_bias_scales_a_count_and_a_cut_text_is_a_beginning_within_the_limit(text: str, limit: int) -> None:
    counter = TokenCounter(1.3)
    assert counter.text(text) >= TokenCounter(0.7).text(text) >= 0
    kept = counter.cut(text, limit)
    assert text.startswith(kept) and counter.text(kept) <= limit


def test_a_prompt_is_the_sum_of_its_parts() -> None:
    session, counter = make_session(12, 3), TokenCounter(1.2)
    added = [counter.messages([turn.assistant, *turn.followers]) for turn in session.turns[:11]]
    first, last = (counter.prompt(session.envelope(turn, PLAIN)) for turn in (0, 11))
    assert last == first + sum(added)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("words of a sentence", 3.75), ("1234567", 3.0), ("日本語", 2.16), ("x = f(1)\n", 6.2)],
)
def test_each_kind_of_text_has_its_cost(text: str, tokens: float) -> None:
    assert count_text(text) == pytest.approx(tokens)


# As o200k_base counts these texts.
@pytest.mark.parametrize(
    ("kind", "tokens"),
    [("json", 2_673), ("code", 2_674), ("cjk", 2_646), ("log", 3_322), ("listing", 3_017), ("prose", 3_050)],
)
def test_a_count_is_within_a_fifth_of_a_real_tokenizer(kind: str, tokens: int) -> None:
    rng = random.Random(4)
    text = make_prose(rng, 3_000) if kind == "prose" else make_tool_text(rng, kind, 3_000)
    assert 0.8 <= count_text(text) / tokens <= 1.2


@pytest.mark.parametrize("style", ["one_user", "many_users"])
@pytest.mark.parametrize("turn_tokens", [400, 2_000])
def test_a_turn_adds_about_the_wished_tokens_and_shows_its_facts(style: Style, turn_tokens: int) -> None:
    session, counter = make_session(60, 2, style, turn_tokens), TokenCounter()
    added = counter.messages(session.messages(60)) - counter.messages(session.messages(0))
    assert 0.85 <= added / 60 / turn_tokens <= 1.15
    for fact in session.facts:
        assert fact.token in find_facts({"messages": session.messages(fact.turn + 1)})
        assert fact.turn < 0 or fact.token not in find_facts({"messages": session.messages(fact.turn)})
    assert {fact.kind for fact in session.facts} == {"user", "assistant", "tool"}
    ids = [call.id for turn in range(60) for call in session.reply(turn).tool_calls]
    assert len(set(ids)) == len(ids)


def _write(*contents: str) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": each} for each in contents]}).encode()


def test_a_changed_message_breaks_the_prefix_and_a_growing_history_does_not() -> None:
    grown = [_write("a"), _write("a", "b"), _write("a", "b", "c")]
    assert prefix_breaks(grown) == [] and prefix_reuse(grown) > 0.4
    changed = [_write("a", "b"), _write("a", "x", "c"), _write("a", "x", "c", "d"), _write("a")]
    assert prefix_breaks(changed) == [1, 3]


def test_fewest_summaries_counted_by_hand() -> None:
    # The line is at 12,000; the prompt passes it with the twelfth group. The tail of 2,400 holds two groups,
    # so the prompt is then 1,000 + 1,500 + 2,000, and at most nine groups stay below the line.
    ideal = simulate(Sizes(1_000, (1_000,) * 30), 16_000)
    assert ideal.prompt_tokens[11:14] == (12_000, 4_500, 5_500)
    assert (ideal.summaries, ideal.budget) == (3, 5)
    assert max(simulate(Sizes(1_000, (5_000,) * 6), 16_000).prompt_tokens) <= 12_000
    assert simulate(Sizes(13_000, (1_000,) * 5), 16_000).summaries <= 5


@pytest.mark.parametrize(
    ("trim", "kept"),
    [
        (keep_newest(2), ["7", "8"]),
        (keep_first_and_newest(2), ["0", "7", "8"]),
        (keep_head_and_tail(1, 2), ["0", "Skipped 6 messages.", "7", "8"]),
        # A user's message has eight tokens, the assistant's nine.
        (keep_tokens(24), ["8"]),
        (keep_tokens(25), ["6", "7", "8"]),
        (keep_newest(9), [str(at) for at in range(9)]),
    ],
)
def test_a_client_keeps_what_it_says(trim: Trim, kept: list[str]) -> None:
    history = [{"role": ("user", "assistant")[at % 2], "content": f"{at}"} for at in range(9)]
    assert [message["content"] for message in trim([dict(message) for message in history])] == kept


@asynccontextmanager
async def _proxied_echo() -> AsyncIterator[SlowProxy]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server, running_proxy(server.sockets[0].getsockname()[1]) as proxy:
        yield proxy


async def _echo_once(proxy: SlowProxy) -> asyncio.StreamReader:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(b"12345")
    try:
        assert await asyncio.wait_for(reader.readexactly(5), 0.5) == b"12345"
        return reader
    finally:
        writer.transport.abort()


async def test_the_proxy_passes_bytes_and_counts_them_until_it_stalls() -> None:
    async with _proxied_echo() as proxy:
        await _echo_once(proxy)
        assert proxy.count() == Traffic(to_server_bytes=5, to_client_bytes=5, turns=1)
        proxy.stall()
        with pytest.raises(TimeoutError):
            await _echo_once(proxy)


async def test_the_proxy_cuts_and_refuses_and_comes_back_at_the_same_port() -> None:
    async with _proxied_echo() as proxy:
        port = proxy.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"1")
        assert await reader.readexactly(1) == b"1"
        await proxy.cut()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.transport.abort()
        await proxy.refuse()
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", port)
        await proxy.start()
        await _echo_once(proxy)
        assert (proxy.port, proxy.opened) == (port, 2)


@requires_redis
async def test_a_redis_wants_its_password_and_keeps_what_it_holds_unless_told_otherwise() -> None:
    async with running_redis(password="p@ss/word") as server:
        await server.run("SET", "lost", "1")
        await server.restart_empty()
        assert await server.list_keys() == []
        await server.run("SET", "key", b"\x00\xff")
        await server.stop()
        with pytest.raises(OSError):
            await server.run("PING")
        await server.start()
        assert await server.run("GET", "key") == b"\x00\xff"
        server.password = "another"
        with pytest.raises(RedisRefused, match="WRONGPASS"):
            await server.run("PING")
