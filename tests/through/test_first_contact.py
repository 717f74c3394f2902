"""The first request of a conversation many times larger than the window: summarized in chunks, or visibly
cut.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import aiohttp
import pytest

from tests.covering import cover_product
from tests.toy.agent import Message, Session, Shape, Style, Turn, find_tokens, make_session, with_thinking
from tests.toy.chat import CHAT
from tests.toy.delivery import Delivery, RawAnswer
from tests.toy.dialect import Dialect
from tests.toy.economics import sent_with_opening
from tests.toy.house import make_settings
from tests.toy.messages import MESSAGES
from tests.toy.product import Product, serve
from tests.toy.reply import Reply
from tests.toy.responses import RESPONSES
from tests.toy.running import Answer, ask, wait_until
from tests.toy.summarising import find_facts, read_output_limit
from tests.toy.upstream import Seen, ToyUpstream

WINDOW = 16_000
MAX_CALLS = 8
TURN_TOKENS = 900
SHAPE = Shape(max_tokens=1_000)


@lru_cache(maxsize=8)
def load_session(turns: int, style: Style) -> Session:
    return make_session(turns, 7, style, TURN_TOKENS)


def write_settings(toy: ToyUpstream, *, is_known: bool, store: str = "memory:", more: str = "") -> str:
    settings = make_settings(toy, store=store, more=more)
    return settings if is_known else settings.replace('"toy-*"', '"another-*"')


@dataclass(frozen=True)
class Meeting:
    """Two requests of a new conversation, the second one turn longer."""

    toy: ToyUpstream
    session: Session
    answers: tuple[Answer, ...]
    sent: tuple[Seen, ...]  # the request that upstream answered, one for each
    waited: int  # compactions that the second request waited for

    @property
    def prepared(self) -> list[Seen]:
        """Summary calls between the two."""
        first, second = (self.toy.requests.index(seen) for seen in self.sent)
        return [seen for seen in self.toy.requests[first:second] if seen.is_summary]

    @property
    def facts_seen(self) -> set[str]:
        found = {fact for seen in self.toy.summaries for fact in seen.facts}
        return found.union(*(find_facts(seen.request) for seen in self.sent))


def count_waits(log: pytest.LogCaptureFixture) -> int:
    """Summaries that a request has waited for. Digests have the reason for which a summary was wanted."""
    texts = [record.getMessage() for record in log.records]
    return sum("reason=hard_threshold" in text and "calls=0" not in text for text in texts)


async def meet(
    toy: ToyUpstream, session: Session, shape: Shape, settings: str, log: pytest.LogCaptureFixture
) -> Meeting:
    log.set_level(logging.INFO, "gateway.compactor")
    toy.reply = lambda _: Reply(text="Noted.")
    answers, sent, waits = [], [], []
    headers = shape.dialect.headers("sk-toy")
    async with serve(settings) as gateway, aiohttp.ClientSession(headers=headers) as client:
        for turn in (len(session) - 1, len(session)):
            url = f"{gateway.base_url}{shape.dialect.path}"
            answers.append(await ask(client, url, session.request(turn, shape)))
            sent.append(toy.chats[-1])
            waits.append(count_waits(log))
    return Meeting(toy, session, tuple(answers), tuple(sent), waits[1] - waits[0])


def read_messages(seen: Seen) -> list[Message]:
    messages = seen.request["messages"]
    assert isinstance(messages, list)
    return messages


def end_of_messages(seen: Seen) -> int:
    return seen.body.index(b'],"tools":[{"type"')


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("times", "style", "bias", "is_known", "stream"),
    # Each of these makes up to 50 summaries.
    cover_product(
        (5, 20, 50), ("one_user", "many_users"), (0.7, 1.0, 1.6), (True, False), (True, False), strength=1
    ),
)
async def test_first_contact_with_many_windows_is_answered(
    times: int, style: Style, bias: float, is_known: bool, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    toy = ToyUpstream(window=WINDOW, bias=bias)
    session = load_session(int(times * WINDOW / bias / TURN_TOKENS) + 1, style)
    async with toy:
        settings = write_settings(toy, is_known=is_known)
        meeting = await meet(toy, session, replace(SHAPE, stream=stream), settings, caplog)
    check(meeting, SHAPE)
    first, second = meeting.sent
    if not meeting.prepared:
        assert second.body.startswith(first.body[: end_of_messages(first)])


def check(meeting: Meeting, shape: Shape, surprises: int = 1) -> None:
    """surprises: the window or the tokenizer is unknown."""
    toy, session = meeting.toy, meeting.session
    assert all(answer.is_whole for answer in meeting.answers)
    assert len([seen for seen in toy.requests if seen.refusal is not None]) <= surprises
    assert 0 < len(toy.summaries) <= MAX_CALLS + 1
    assert all(sent_with_opening([seen.request for seen in meeting.sent], session, shape))
    assert set(find_tokens(session.facts, "user")) <= meeting.facts_seen
    # The second request does not wait for a compaction, and begins like the first one. A small rest of the
    # history may have been compacted in between.
    assert meeting.waited == 0
    first, second = (shape.dialect.items(seen.request) for seen in meeting.sent)
    assert len(meeting.prepared) <= 1
    if not meeting.prepared:
        assert second[: len(first)] == first


def name_the_window(toy: ToyUpstream) -> None:
    """Refusals name the window, as chat's do. OpenAI's own Responses error names no number."""

    def refuse(seen: Seen) -> RawAnswer | None:
        if seen.dialect is None or "exceeds the context window" not in (seen.refusal or ""):
            return None
        output_tokens = read_output_limit(seen.request) or 0
        return seen.dialect.refuse(CHAT.overflow(toy.window, seen.prompt_tokens, output_tokens))

    toy.intercept = refuse


@pytest.mark.timeout(300)
@pytest.mark.parametrize("dialect", [RESPONSES, MESSAGES], ids=lambda dialect: dialect.path)
@pytest.mark.parametrize(
    ("times", "bias", "is_known"), cover_product((5, 20), (1.0, 1.6), (True, False), strength=1)
)
async def test_first_contact_in_another_format_is_answered(
    times: int, bias: float, is_known: bool, dialect: Dialect, caplog: pytest.LogCaptureFixture
) -> None:
    """With a thinking model. Its reasoning must stay with the item that follows it, or be removed with it."""
    toy = ToyUpstream(window=WINDOW, bias=bias)
    name_the_window(toy)
    session = with_thinking(load_session(int(times * WINDOW / bias / TURN_TOKENS) + 1, "many_users"))
    shape = Shape(dialect=dialect, max_tokens=2_000, stream=is_known)
    async with toy:
        meeting = await meet(toy, session, shape, write_settings(toy, is_known=is_known), caplog)
    # Anthropic's first words name the prompt's limit, and only its next ones that of prompt and reply.
    check(meeting, shape, surprises=2 if dialect is MESSAGES else 1)


@pytest.mark.parametrize(("times", "bias"), cover_product((5, 20), (1.0, 1.6), strength=1))
async def test_a_window_that_no_refusal_names_is_found_in_two_attempts(
    times: int, bias: float, caplog: pytest.LogCaptureFixture
) -> None:
    """With OpenAI's Responses a summary or a digest may be refused, too. No request is sent twice unchanged.

    Encrypted reasoning has twice the bytes of its text.
    """
    toy = ToyUpstream(window=WINDOW, bias=bias)
    session = with_thinking(load_session(int(times * WINDOW / bias / TURN_TOKENS) + 1, "many_users"))
    shape = Shape(dialect=RESPONSES, max_tokens=2_000)
    async with toy:
        meeting = await meet(toy, session, shape, write_settings(toy, is_known=False), caplog)
    assert all(answer.is_whole for answer in meeting.answers)
    *first, second = toy.chats
    sizes = [seen.prompt_tokens for seen in first]
    assert len(sizes) <= 3 and all(after < before / 2 for before, after in pairwise(sizes))
    assert second.refusal is None


@asynccontextmanager
async def impatient_gateway(toy: ToyUpstream, ready: asyncio.Event) -> AsyncIterator[Product]:
    """A gateway that waits a tenth of a second for a summary. The toy sends one when `ready` is set."""
    toy.summary_delivery = Delivery(after=ready)
    toy.reply = lambda _: Reply(text="Noted.")
    more = "policies:\n  default: {summary: {deadline_seconds: 0.1}}\n"
    async with toy, serve(write_settings(toy, is_known=True, more=more)) as gateway:
        yield gateway


async def test_a_deadline_shorter_than_a_summary_gives_the_digest_and_keeps_the_summary() -> None:
    toy = ToyUpstream(window=WINDOW)
    session = load_session(30, "one_user")
    ready = asyncio.Event()
    async with impatient_gateway(toy, ready) as gateway, aiohttp.ClientSession() as client:
        url = f"{gateway.base_url}/chat/completions"
        first = await ask(client, url, session.request(29, SHAPE))
        ready.set()
        await gateway.at_rest()
        second = await ask(client, url, session.request(30, SHAPE))
    assert first.is_whole and second.is_whole
    assert first.header("x-gateway-plan") == "digest"
    assert b"made without a model" in toy.chats[0].body
    assert len(toy.summaries) == 1


async def test_a_restart_in_the_middle_goes_on_from_the_last_chunk(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gateway.compactor")
    toy = ToyUpstream(window=WINDOW)
    session = load_session(18 * 20, "one_user")
    body = session.request(len(session), SHAPE)
    toy.reply = lambda _: Reply(text="Noted.")
    hang = RawAnswer(delivery=Delivery(never=True))
    toy.intercept = lambda seen: hang if len(toy.summaries) == 4 and seen.is_summary else None
    async with toy, aiohttp.ClientSession() as client:
        settings = write_settings(toy, is_known=True, store=store_url)
        async with serve(settings) as gateway:
            asking = asyncio.create_task(ask(client, f"{gateway.base_url}/chat/completions", body))
            await wait_until(lambda: len(toy.summaries) == 4)
            asking.cancel()
        toy.intercept = lambda _: None
        before = len(toy.summaries)
        async with serve(settings) as gateway:
            answer = await ask(client, f"{gateway.base_url}/chat/completions", body)
    assert answer.is_whole
    again = toy.summaries[before:]
    # It builds on the third chunk and does not read the messages again that this chunk covers.
    assert b"<earlier-summary>" in again[0].body
    starts = [seen.body.split(b"<conversation>")[1][:500] for seen in (again[0], toy.summaries[3])]
    assert starts[0] == starts[1]
    lines = [record.getMessage() for record in caplog.records]
    covered = [int(line.split("=")[1].split()[0]) for line in lines if line.startswith("compacted covers=")]
    assert covered == sorted(set(covered))


def make_group(sizes: Sequence[int]) -> list[dict[str, object]]:
    """One call for each result, of so many characters."""
    calls = [
        {"id": f"big_{at}", "type": "function", "function": {"name": "fetch", "arguments": "{}"}}
        for at in range(len(sizes))
    ]
    line = "one line of what the tool returned\n"
    results: list[dict[str, object]] = [
        {"role": "tool", "tool_call_id": f"big_{at}", "content": (line * (size // len(line) + 1))[:size]}
        for at, size in enumerate(sizes)
    ]
    return [{"role": "assistant", "content": None, "tool_calls": calls}, *results]


# About four characters to a token.
_WINDOW_CHARS = 4 * WINDOW
_WISH = ("Do this, please. " * _WINDOW_CHARS)[: 3 * _WINDOW_CHARS]
HUGE = {
    "one result": (12, make_group([3 * _WINDOW_CHARS])),
    "one result, nothing before": (0, make_group([3 * _WINDOW_CHARS])),
    "many results": (12, make_group([_WINDOW_CHARS // 2] * 6)),
    "a user's message": (12, [{"role": "assistant", "content": "So?"}, {"role": "user", "content": _WISH}]),
    "behind a long history": (60, make_group([3 * _WINDOW_CHARS])),
}


@pytest.mark.parametrize("dialect", [RESPONSES, MESSAGES], ids=lambda dialect: dialect.path)
async def test_a_result_larger_than_the_window_is_cut_in_another_format(dialect: Dialect) -> None:
    toy = ToyUpstream(window=WINDOW)
    toy.reply = lambda _: Reply(text="Noted.")
    call, result = make_group([3 * _WINDOW_CHARS])
    whole, shape = load_session(61, "one_user"), replace(SHAPE, dialect=dialect)
    session = replace(whole, turns=(*whole.turns[:12], Turn(call, (result,)), *whole.turns[13:14]))
    async with (
        toy,
        serve(write_settings(toy, is_known=True)) as gateway,
        aiohttp.ClientSession(headers=dialect.headers("sk-toy")) as client,
    ):
        url = f"{gateway.base_url}{dialect.path}"
        answers = [await ask(client, url, session.request(turn, shape)) for turn in (13, 14)]
    assert all(answer.is_whole for answer in answers)
    assert [answer.header("x-gateway-plan") for answer in answers] == ["cut", "pivot"]
    assert f"of {3 * _WINDOW_CHARS} characters cut".encode() in toy.chats[-2].body


def with_added(session: Session, turn: int, added: Sequence[Message]) -> bytes:
    body = session.envelope(turn, SHAPE)
    return json.dumps(body | {"messages": [*session.messages(turn), *added]}, ensure_ascii=False).encode()


def find_cut(seen: Seen, messages: Sequence[Message]) -> list[str]:
    """The texts that were sent in place of those."""
    ids = {message.get("tool_call_id") for message in messages} - {None}
    sent = read_messages(seen)
    texts = [m["content"] for m in sent if m.get("tool_call_id") in ids] if ids else [sent[-1]["content"]]
    return [str(text) for text in texts]


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize(("turn", "added"), HUGE.values(), ids=HUGE)
async def test_a_message_larger_than_the_window_is_cut_in_the_middle(
    turn: int, added: list[Message], is_known: bool
) -> None:
    toy = ToyUpstream(window=WINDOW)
    session = load_session(61, "one_user")
    toy.reply = lambda _: Reply(text="Noted.")
    later = [*added, {"role": "assistant", "content": "Noted."}, {"role": "user", "content": "Go on."}]
    big = [message for message in added if message["role"] != "assistant"]
    async with (
        toy,
        serve(write_settings(toy, is_known=is_known)) as gateway,
        aiohttp.ClientSession() as client,
    ):
        url = f"{gateway.base_url}/chat/completions"
        first = await ask(client, url, with_added(session, turn, added))
        cut = toy.chats[-1]
        second = await ask(client, url, with_added(session, turn, later))
    assert first.is_whole and second.is_whole
    assert len([seen for seen in toy.requests if seen.refusal is not None]) <= 1
    texts = find_cut(cut, big)
    assert len(texts) == len(big)
    for text, message in zip(texts, big, strict=True):
        whole = str(message["content"])
        assert f"of {len(whole)} characters cut" in text
        assert text[:50] == whole[:50] and text[-50:] == whole[-50:]
    # It filled the window to the hard threshold, so the next request has a summary in its place.
    assert first.header("x-gateway-plan") == "cut"
    assert second.header("x-gateway-plan") == "pivot"
    assert max(len(cut.body), len(toy.chats[-1].body)) < 2 * _WINDOW_CHARS


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "unknown"])
async def test_an_opening_larger_than_the_window_is_cut_in_the_middle(is_known: bool) -> None:
    toy = ToyUpstream(window=WINDOW)
    toy.reply = lambda _: Reply(text="Noted.")
    opening: list[Message] = [{"role": "system", "content": "Help."}, {"role": "user", "content": _WISH}]
    later = [*opening, {"role": "assistant", "content": "Noted."}, {"role": "user", "content": "Go on."}]
    async with (
        toy,
        serve(write_settings(toy, is_known=is_known)) as gateway,
        aiohttp.ClientSession() as client,
    ):
        url = f"{gateway.base_url}/chat/completions"
        bodies = [json.dumps({"model": "toy-model", "messages": m}).encode() for m in (opening, later)]
        answers = [await ask(client, url, body) for body in bodies]
    assert all(answer.is_whole for answer in answers)
    assert len([seen for seen in toy.requests if seen.refusal is not None]) <= 1
    first, second = (read_messages(seen) for seen in toy.chats[-2:])
    assert f"of {len(_WISH)} characters cut" in str(first[1]["content"])
    assert second[:2] == first
    assert toy.summaries == []


async def test_the_client_is_kept_alive_from_the_first_chunk_to_the_last() -> None:
    toy = ToyUpstream(window=WINDOW)
    toy.summary_delivery = Delivery(before_headers_seconds=0.3)
    session = load_session(18 * 4, "one_user")
    more = "keepalive: {after_seconds: 0.05}\n"
    toy.reply = lambda _: Reply(text="Noted.")
    async with (
        toy,
        serve(write_settings(toy, is_known=True, more=more)) as gateway,
        aiohttp.ClientSession() as client,
    ):
        url = f"{gateway.base_url}/chat/completions"
        answer = await ask(client, url, session.request(len(session), replace(SHAPE, stream=True)))
    assert answer.is_whole and len(toy.summaries) >= 3
    # Each summary takes the time of six keep-alives, of which a busy machine may send two.
    assert answer.body.count(b": keep-alive") >= 2 * len(toy.summaries) - 2
