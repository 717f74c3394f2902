"""The toy's threads over its real socket, as the SDKs use them."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tests.toy.agent import Shape, make_session
from tests.toy.delivery import Delivery
from tests.toy.messages import Messages
from tests.toy.reply import Reply
from tests.toy.running import Answer, ask, run_session, wait_until
from tests.toy.threads import find_thread_error
from tests.toy.upstream import ToyUpstream

CREATE = {"type": "create"}
Client = aiohttp.ClientSession


@pytest.fixture
async def toy() -> AsyncIterator[ToyUpstream]:
    async with ToyUpstream(window=4_000) as running:
        yield running


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with aiohttp.ClientSession(headers=Messages(threads=True).headers("sk-toy")) as session:
        yield session


async def say(client: Client, toy: ToyUpstream, thread: object, text: str = "on", **more: object) -> Answer:
    messages = [{"role": "user", "content": text}]
    body = {"model": "toy-model", "max_tokens": 900, "messages": messages, "thread": thread} | more
    return await ask(client, f"{toy.base_url}/messages", json.dumps(body).encode())


def go_on(answer: Answer) -> dict[str, object]:
    return {"type": "continue", "previous_message_id": answer.response_id}


def read_texts(toy: ToyUpstream) -> list[Any]:
    messages: Any = toy.chats[-1].whole["messages"]
    return [message["content"] for message in messages]


async def test_a_continue_stands_for_everything_before_it(toy: ToyUpstream, client: Client) -> None:
    toy.reply = lambda _: Reply(text="said")
    first = await say(client, toy, CREATE, "one", system="Be brief.")
    second = await say(client, toy, go_on(first), "two")
    third = await say(client, toy, go_on(second), "three", stream=True)
    assert third.is_whole and third.response_id
    said = [{"type": "text", "text": "said"}]
    assert read_texts(toy) == ["one", said, "two", said, "three"]
    assert toy.chats[-1].whole["system"] == "Be brief."
    assert toy.chats[-1].prompt_tokens > toy.chats[0].prompt_tokens


async def test_a_response_is_continued_once(toy: ToyUpstream, client: Client) -> None:
    first = await say(client, toy, CREATE)
    await say(client, toy, go_on(first))
    again = await say(client, toy, go_on(first))
    assert (again.status, find_thread_error(again.body)) == (400, "thread_already_continued")


async def test_a_refused_continue_leaves_its_thread_as_it_is(toy: ToyUpstream, client: Client) -> None:
    first = await say(client, toy, CREATE)
    long = await say(client, toy, go_on(first), "word " * 9_000)
    assert long.status == 400 and b"prompt is too long" in long.body
    assert (await say(client, toy, go_on(first))).is_whole


async def test_a_response_is_continued_by_one_request_at_a_time(toy: ToyUpstream, client: Client) -> None:
    first = await say(client, toy, CREATE)
    toy.delivery = Delivery(after=asyncio.Event())
    waiting = asyncio.create_task(say(client, toy, go_on(first)))
    await wait_until(lambda: len(toy.requests) == 2)
    second = await say(client, toy, go_on(first))
    assert find_thread_error(second.body) == "thread_continue_in_flight"
    assert toy.delivery.after is not None
    toy.delivery.after.set()
    assert (await waiting).is_whole


async def test_an_unknown_thread_is_not_found(toy: ToyUpstream, client: Client) -> None:
    first = await say(client, toy, CREATE)
    toy.memory.threads.forget()
    answer = await say(client, toy, go_on(first))
    assert (answer.status, find_thread_error(answer.body)) == (404, "thread_not_found")
    assert json.loads(answer.body)["error"]["type"] == "not_found_error"


async def test_system_and_tools_belong_to_the_thread(toy: ToyUpstream, client: Client) -> None:
    first = await say(client, toy, CREATE)
    answer = await say(client, toy, go_on(first), system="Be brief.")
    assert answer.status == 400 and b"system" in answer.body
    answer = await say(client, toy, go_on(first), model="toy-other")
    assert b"thread_fingerprint_mismatch" in answer.body


async def test_an_account_without_threads_says_so(toy: ToyUpstream, client: Client) -> None:
    toy.memory.threads.unsupported = ("hipaa",)
    details = json.loads((await say(client, toy, CREATE)).body)["error"]["details"]
    assert details == {"error_code": "thread_unsupported_request", "unsupported": ["hipaa"]}


async def test_threads_need_their_beta(toy: ToyUpstream) -> None:
    async with aiohttp.ClientSession(headers=Messages().headers("sk-toy")) as client:
        answer = await say(client, toy, CREATE)
    assert answer.status == 400 and b"Extra inputs" in answer.body


async def test_the_scripted_agent_sends_only_what_is_new(toy: ToyUpstream) -> None:
    toy.window = 64_000
    session = make_session(8, 1, "many_users", 300)
    shape = Shape(dialect=Messages(threads=True), max_tokens=900, stream=True)
    run = await run_session(session, toy.base_url, toy, shape)
    assert run.failed == [] and run.replays == ()
    assert max(len(seen.body) for seen in run.seen[1:]) < len(run.seen[0].body)
    whole = Messages()
    for turn, prompt in enumerate(run.prompts):
        assert whole.items(prompt) == whole.items(session.envelope(turn, Shape(dialect=whole)))


async def test_the_scripted_agent_begins_a_lost_thread_anew(toy: ToyUpstream) -> None:
    toy.window = 64_000
    session = make_session(4, 1, "many_users", 300)
    shape = Shape(dialect=Messages(threads=True), max_tokens=900)
    lost = iter([False, False, True, False, False])
    reply = toy.memory.threads.recall

    def forget_now(request: Any) -> Any:
        if next(lost, False):
            toy.memory.threads.forget()
        return reply(request)

    toy.memory.threads.recall = forget_now  # type: ignore[method-assign]
    run = await run_session(session, toy.base_url, toy, shape)
    assert run.failed == [] and run.replays == ("thread_not_found",)
