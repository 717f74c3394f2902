"""A turn whose model searches: what upstream is sent, what the client gets, and what the next turn begins
with.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from tests.toy.delivery import Delivery, RawAnswer
from tests.toy.house import ADMIN, House, make_settings
from tests.toy.product import Product, serve
from tests.toy.reply import Reply, ToolCall
from tests.toy.running import wait_until
from tests.toy.upstream import Seen, ToyUpstream

JSON = dict[str, Any]
RECALL_TOOL = "recall_history"
POLICY = ADMIN + "policies: {default: {recall: tool, estimator: chars, summary: {method: digest}}}\n"
_LOOK: JSON = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
_SECRET = "The launch code of the harbour crane is PELICAN-4471."
_FINAL = Reply(text="It is done.")


def recall(query: str = "launch code crane", call_id: str = "call_r1") -> ToolCall:
    return ToolCall(id=call_id, name=RECALL_TOOL, arguments=json.dumps({"query": query}))


LOOK = ToolCall(id="call_l1", name="look", arguments="{}")


@dataclass
class Talk:
    """A client: its messages, and the toy behind the gateway. script: the replies that come next."""

    gateway: Product
    toy: ToyUpstream
    client: httpx.AsyncClient
    messages: list[JSON]
    script: list[Reply]

    async def post(self, **fields: object) -> httpx.Response:
        """fields: None leaves one out."""
        body = {"model": "toy-1", "messages": self.messages, "tools": [_LOOK], **fields}
        body = {key: value for key, value in body.items() if value is not None}
        return await self.client.post(f"{self.gateway.base_url}/chat/completions", json=body)

    async def ask(self, text: str, **fields: object) -> httpx.Response:
        """The user says something, and the reply becomes a part of the history."""
        self.messages.append({"role": "user", "content": text})
        response = await self.post(**fields)
        assert response.status_code == 200, response.text
        self.add(read_message(response))
        return response

    def add(self, message: JSON) -> None:
        self.messages.append(message)
        for call in message.get("tool_calls") or []:
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": "looked"})

    async def fill(self) -> None:
        """Until the conversation is compacted and the model may search."""
        for number in range(40):
            await self.ask(f"Number {number}. " + "More words for the window. " * 30)
            await self.gateway.at_rest()
            if any(tool["function"]["name"] == RECALL_TOOL for tool in self.bodies[-1]["tools"]):
                return
        pytest.fail("the tool was never offered")

    @property
    def bodies(self) -> list[JSON]:
        """What upstream was asked, of conversations alone."""
        return [seen.request for seen in self.toy.chats]


def read_message(response: httpx.Response) -> JSON:
    if "event-stream" not in response.headers["content-type"]:
        message: JSON = response.json()["choices"][0]["message"]
        return {key: value for key, value in message.items() if value is not None and key != "refusal"}
    text, calls = "", dict[int, JSON]()
    for delta in read_deltas(response.text):
        text += delta.get("content") or ""
        for call in delta.get("tool_calls") or []:
            begun = {"type": "function", "function": {"name": "", "arguments": ""}}
            known = calls.setdefault(call["index"], begun)
            known["id"] = call.get("id") or known["id"]
            for key, value in call["function"].items():
                known["function"][key] += value
    message = {"role": "assistant", "content": text}
    return message | {"tool_calls": [calls[at] for at in sorted(calls)]} if calls else message


def read_deltas(stream: str) -> list[JSON]:
    events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    return [choice["delta"] for event in events for choice in event["choices"]]


@asynccontextmanager
async def talking(more: str = "", store: str = "memory:") -> AsyncIterator[Talk]:
    """A conversation that has been compacted, and whose beginning only the originals have."""
    async with ToyUpstream(window=6_000) as toy:
        settings = make_settings(toy, more=POLICY + more, store=store)
        async with serve(settings) as gateway, httpx.AsyncClient(timeout=30) as client:
            talk = Talk(gateway, toy, client, [{"role": "user", "content": "Begin."}], [])
            toy.reply = lambda _: talk.script.pop(0) if talk.script else Reply(text="Understood.")
            talk.add({"role": "assistant", "content": "Yes."})
            await talk.ask(_SECRET)
            await talk.fill()
            yield talk


def count_searches(body: JSON) -> int:
    return sum(
        call["function"]["name"] == RECALL_TOOL
        for message in body["messages"]
        for call in message.get("tool_calls") or []
    )


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_the_client_sees_the_answer_and_upstream_the_search(is_streamed: bool) -> None:
    async with talking() as talk:
        before = len(talk.bodies)
        talk.script = [Reply(text=None, tool_calls=(recall(),)), Reply(text="It is PELICAN-4471.")]
        response = await talk.ask("What is the launch code?", stream=is_streamed)
        assert talk.messages[-1] == {"role": "assistant", "content": "It is PELICAN-4471."}
        assert RECALL_TOOL not in response.text
        first, second = talk.bodies[before:]
        assert second["messages"][: len(first["messages"])] == first["messages"]
        asked, found = second["messages"][len(first["messages"]) :]
        assert asked["tool_calls"][0]["id"] == found["tool_call_id"] == "call_r1"
        assert "PELICAN-4471" in found["content"]
        if not is_streamed:
            assert response.headers["x-gateway-recall"].startswith("searches=1, prompt_tokens=")
            assert response.headers["content-length"] == str(len(response.content))


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_later_requests_repeat_it_byte_for_byte(is_streamed: bool) -> None:
    async with talking() as talk:
        talk.script = [Reply(text=None, tool_calls=(recall(),)), _FINAL]
        await talk.ask("What is the launch code?", stream=is_streamed)
        sent = [seen.body for seen in talk.toy.chats[-1:]]
        for number in range(5):
            await talk.ask(f"Go on {number}.", stream=is_streamed)
            sent.append(talk.toy.chats[-1].body)
        assert [count_searches(body) for body in talk.bodies[-6:]] == [1] * 6
        arrays = [body[body.index(b'"messages"') : body.index(b"]", body.rindex(b'"role"'))] for body in sent]
        for earlier, later in pairwise(arrays[1:]):
            assert later.startswith(earlier[:-1])


async def test_calls_of_the_clients_own_come_without_the_search_and_keep_its_result() -> None:
    async with talking() as talk:
        talk.script = [Reply(text="Both.", tool_calls=(recall(), LOOK))]
        before = len(talk.bodies)
        await talk.ask("Look, and what is the launch code?")
        assert len(talk.bodies) == before + 1
        assert [call["id"] for call in talk.messages[-2]["tool_calls"]] == ["call_l1"]
        await talk.post()
        answered = talk.bodies[-1]["messages"]
        results = {each["tool_call_id"]: each["content"] for each in answered if each["role"] == "tool"}
        assert "PELICAN-4471" in results["call_r1"] and results["call_l1"] == "looked"
        assert len(answered[-3]["tool_calls"]) == 2


async def test_a_model_that_never_stops_is_told_and_then_has_no_tool() -> None:
    async with talking() as talk:
        before = len(talk.bodies)
        loops = [Reply(text=None, tool_calls=(recall(call_id=f"call_r{at}"),)) for at in range(9)]
        talk.script = [*loops]
        await talk.ask("What is the launch code?")
        bodies = talk.bodies[before:]
        # Three searches, one refusal, another one, and the last request without the tool.
        assert [count_searches(body) for body in bodies] == [0, 1, 2, 3, 4, 5]
        assert [len(body["tools"]) for body in bodies] == [2, 2, 2, 2, 2, 1]
        assert "Do not search again" in bodies[-1]["messages"][-1]["content"]
        assert "tool_calls" not in talk.messages[-1]


async def test_a_follow_up_that_fails_unseen_is_followed_by_the_request_without_the_tool() -> None:
    async with talking() as talk:
        talk.script = [Reply(text=None, tool_calls=(recall(),)), _FINAL]
        talk.toy.intercept = only_follow_up(RawAnswer(status=500, pieces=(b'{"error":{}}',)))
        before = len(talk.bodies)
        await talk.ask("What is the launch code?")
        assert [len(body["tools"]) for body in talk.bodies[before:]] == [2, 2, 1]
        assert talk.messages[-1]["content"] == "It is done."
        await talk.ask("Go on.")
        assert count_searches(talk.bodies[-1]) == 0


async def test_a_follow_up_that_fails_after_something_was_shown_ends_in_an_error() -> None:
    async with talking() as talk:
        talk.script = [Reply(text="Let me look.", tool_calls=(recall(),)), _FINAL]
        talk.toy.intercept = only_follow_up(RawAnswer(status=500, pieces=(b'{"error":{"message":"no"}}',)))
        talk.messages.append({"role": "user", "content": "What is the launch code?"})
        body = {"model": "toy-1", "messages": talk.messages, "tools": [_LOOK], "stream": True}
        seen = bytearray()
        with pytest.raises(httpx.RemoteProtocolError):
            await read_stream(talk, body, seen)
        got = bytes(seen)
        assert b"Let me look." in got and b'"error"' in got and b"[DONE]" not in got


async def read_stream(talk: Talk, body: JSON, seen: bytearray) -> None:
    url = f"{talk.gateway.base_url}/chat/completions"
    async with talk.client.stream("POST", url, json=body) as response:
        async for piece in response.aiter_raw():
            seen += piece


def only_follow_up(answer: RawAnswer) -> Callable[[Seen], RawAnswer | None]:
    def intercept(seen: Seen) -> RawAnswer | None:
        messages: list[JSON] = json.loads(seen.body)["messages"]
        return answer if str(messages[-1].get("tool_call_id", "")).startswith("call_r") else None

    return intercept


async def test_a_model_that_refuses_the_tool_answers_without_it_from_then_on() -> None:
    async with talking() as talk:
        refusal = b'{"error":{"message":"unknown tool recall_history"}}'

        def intercept(seen: Seen) -> RawAnswer | None:
            has_tool = RECALL_TOOL.encode() in seen.body
            return RawAnswer(status=400, pieces=(refusal,)) if has_tool else None

        talk.toy.intercept = intercept
        before = len(talk.bodies)
        await talk.ask("What is the launch code?")
        await talk.ask("Go on.")
        assert [len(body["tools"]) for body in talk.bodies[before:]] == [2, 1, 1]


async def test_the_calls_that_the_client_does_not_see_count_as_used() -> None:
    async with talking() as talk:
        talk.script = [Reply(text=None, tool_calls=(recall(),)), _FINAL]
        response = await talk.ask("What is the launch code?")
        house = House(talk.toy, talk.gateway, "sk-toy")
        await house.at_rest()
        _, page = await house.admin("/v1/conversations")
        (row,) = page["conversations"]
        prompt_tokens = sum(seen.prompt_tokens for seen in talk.toy.chats)
        assert row["economics"]["prompt_tokens"] == prompt_tokens
        assert response.json()["usage"]["prompt_tokens"] == talk.toy.chats[-1].prompt_tokens
        _, told = await house.admin("/metrics")
        assert "gateway_recall_calls_total 1.0" in told
        assert f'gateway_recall_tokens_total{{kind="prompt"}} {talk.toy.chats[-2].prompt_tokens}' in told


async def test_another_process_repeats_it(tmp_path: Path) -> None:
    store = f"disk:{tmp_path}"
    async with talking(store=store) as talk:
        talk.script = [Reply(text=None, tool_calls=(recall(),)), _FINAL]
        await talk.ask("What is the launch code?")
        await talk.ask("Go on.")
        before = talk.bodies[-1]["messages"]
        await talk.gateway.stop()
        settings = make_settings(talk.toy, more=POLICY, store=store)
        async with serve(settings) as gateway:
            after = replace(talk, gateway=gateway)
            await after.ask("Go on again.")
            assert talk.bodies[-1]["messages"][: len(before)] == before
            assert count_searches(talk.bodies[-1]) == 1


async def test_a_client_that_hangs_up_during_a_search_leaves_nothing_behind() -> None:
    async with talking() as talk:
        talk.script = [Reply(text=None, tool_calls=(recall(),))]
        talk.toy.intercept = only_follow_up(RawAnswer(delivery=Delivery(never=True)))
        talk.messages.append({"role": "user", "content": "What is the launch code?"})
        client = asyncio.ensure_future(talk.post(stream=True))
        await wait_until(lambda: talk.toy.requests[-1].is_chat and count_searches(talk.bodies[-1]) == 1)
        client.cancel()
        await wait_until(lambda: talk.toy.requests[-1].disconnected)
        talk.toy.intercept, talk.script = lambda _: None, [_FINAL]
        response = await talk.post()
        talk.add(read_message(response))
        await talk.ask("Go on.")
        assert count_searches(talk.bodies[-1]) == 0


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_client_is_kept_alive_while_a_further_call_takes_long(is_streamed: bool) -> None:
    """Keep-alives come before the first piece of it alone, so the reply is a valid one."""
    keepalive = "keepalive: {after_seconds: 0.05, every_seconds: 0.05}\n"
    async with talking(more=keepalive) as talk:
        may_answer = asyncio.Event()
        talk.script = [Reply(text=None, tool_calls=(recall(),)), _FINAL]
        talk.toy.reply = lambda request: hold(talk, request, may_answer)
        talk.messages.append({"role": "user", "content": "What is the launch code?"})
        body = {"model": "toy-1", "messages": talk.messages, "tools": [_LOOK], "stream": is_streamed}
        seen = bytearray()
        reading = asyncio.ensure_future(read_stream(talk, body, seen))
        sign = b": " if is_streamed else b"  "
        await wait_until(lambda: sign in bytes(seen))
        may_answer.set()
        await reading
        got = bytes(seen)
        if is_streamed:
            assert "".join(delta.get("content") or "" for delta in read_deltas(got.decode())) == "It is done."
            assert got.endswith(b"data: [DONE]\n\n")
        else:
            assert json.loads(got)["choices"][0]["message"]["content"] == "It is done."


def hold(talk: Talk, request: Mapping[str, object], may_answer: asyncio.Event) -> Reply:
    """The reply, of which nothing is sent before the event if it answers a search."""
    has_searched = count_searches(dict(request)) > 0
    talk.toy.delivery = Delivery(after=may_answer if has_searched else None)
    return talk.script.pop(0)


async def test_of_two_replies_at_one_place_the_client_goes_on_with_either() -> None:
    async with talking() as talk:
        history = list(talk.messages)
        question: JSON = {"role": "user", "content": "What is the launch code?"}
        replies = list[JSON]()
        for name in ("one", "two"):
            talk.messages[:] = [*history, question]
            found = Reply(text=None, tool_calls=(recall(call_id=f"call_r_{name}"),))
            talk.script = [found, Reply(text=f"Answer {name}.")]
            replies.append(read_message(await talk.post()))
        for name, reply in zip(("one", "two"), replies, strict=True):
            talk.messages[:] = [*history, question, reply]
            await talk.ask("Go on.")
            assert f"call_r_{name}" in json.dumps(talk.bodies[-1])
            assert count_searches(talk.bodies[-1]) == 1


async def test_what_was_recalled_goes_when_a_later_summary_covers_it() -> None:
    async with talking() as talk:
        talk.script = [Reply(text=None, tool_calls=(recall(),)), _FINAL]
        await talk.ask("What is the launch code?")
        assert count_searches(talk.bodies[-1]) == 1
        for number in range(40):
            await talk.ask(f"Later {number}. " + "More words for the window. " * 30)
            await talk.gateway.at_rest()
            if not count_searches(talk.bodies[-1]):
                break
        assert count_searches(talk.bodies[-1]) == 0
        assert len(talk.bodies[-1]["tools"]) == 2
        assert all(seen.refusal is None for seen in talk.toy.chats)


async def test_a_history_that_is_edited_at_the_reply_has_nothing_inserted() -> None:
    async with talking() as talk:
        talk.script = [Reply(text=None, tool_calls=(recall(),)), _FINAL]
        await talk.ask("What is the launch code?")
        talk.messages[-1] = {"role": "assistant", "content": "Something else."}
        await talk.ask("Go on.")
        assert count_searches(talk.bodies[-1]) == 0


async def test_a_request_without_tools_has_no_calls_and_the_next_one_with_tools_has_them() -> None:
    async with talking() as talk:
        talk.script = [Reply(text=None, tool_calls=(recall(),)), _FINAL]
        await talk.ask("What is the launch code?")
        await talk.ask("Sum this up.", tools=None)
        bare = talk.bodies[-1]
        assert not any(message["role"] == "tool" for message in bare["messages"])
        assert count_searches(bare) == 0
        await talk.ask("Go on.")
        await talk.ask("And on.")
        assert [count_searches(body) for body in talk.bodies[-2:]] == [1, 1]
