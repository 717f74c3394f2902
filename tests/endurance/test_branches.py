"""A request continues a conversation only if it repeats it exactly; otherwise it is another branch.

Each request gets the right summary or none, however the client changes its history.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace

import aiohttp
import pytest

from tests.toy.agent import Session, Shape, make_session
from tests.toy.gateway import RunningGateway, make_settings, running_gateway
from tests.toy.reply import Reply
from tests.toy.running import Answer, Pace, ask, run_session, wait_until
from tests.toy.upstream import Seen, ToyUpstream

WINDOW = 16_000
SHAPE = Shape(max_tokens=1_000)
# By this turn the session below has been compacted, and its pivot is in force.
COMPACTED = 30


@dataclass
class Scene:
    """A session that has been played until its pivot is in force."""

    toy: ToyUpstream
    gateway: RunningGateway
    session: Session

    async def send(self, body: bytes, key: str = "sk-toy", **headers: str) -> tuple[Answer, Seen]:
        """Sends one request outside the session. Returns the response and the request that reached the
        upstream.
        """
        self.toy.reply = lambda _: Reply(text="Noted.")
        names = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"} | headers
        async with aiohttp.ClientSession(headers=names) as client:
            answer = await ask(client, f"{self.gateway.base_url}/chat/completions", body)
        return answer, self.toy.chats[-1]

    def body(self, turn: int) -> dict[str, object]:
        return dict(json.loads(self.session.request(turn, SHAPE)))


def render(body: Mapping[str, object]) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def is_shortened(seen: Seen, body: Mapping[str, object]) -> bool:
    sent, received = seen.request["messages"], body["messages"]
    assert isinstance(sent, list) and isinstance(received, list)
    return len(sent) < len(received)


def read_summaries(seen: Seen) -> list[str]:
    messages = seen.request["messages"]
    assert isinstance(messages, list)
    return [m["content"] for m in messages if m["role"] == "assistant" and "tool_calls" not in m]


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    toy = ToyUpstream(window=WINDOW, bias=1.2)
    session = make_session(40, 7, "one_user", 600)
    async with toy, running_gateway(make_settings(toy)) as gateway:
        run = await run_session(session, gateway.base_url, toy, SHAPE, Pace(last=COMPACTED))
        assert "pivot" in (run.answers[-1].header("x-gateway-plan") or "")
        yield Scene(toy, gateway, session)


async def test_the_conversation_goes_on_with_its_pivot(scene: Scene) -> None:
    before = len(scene.toy.summaries)
    answer, seen = await scene.send(render(scene.body(COMPACTED)))
    assert answer.status == 200
    assert is_shortened(seen, scene.body(COMPACTED))
    assert len(scene.toy.summaries) == before


async def test_a_fork_behind_the_pivot_keeps_it_and_gets_an_id_of_its_own(scene: Scene) -> None:
    body = scene.body(COMPACTED - 1)
    messages = body["messages"]
    assert isinstance(messages, list)
    main, _ = await scene.send(render(scene.body(COMPACTED)))
    fork, seen = await scene.send(render(body | {"messages": [*messages, *_ask_else()]}))
    assert is_shortened(seen, body)
    assert seen.request["messages"][-1] == _ask_else()[-1]  # type: ignore[index]
    assert fork.header("x-gateway-conversation") != main.header("x-gateway-conversation")


async def test_a_rewind_to_before_the_pivot_is_sent_as_it_is(scene: Scene) -> None:
    body = scene.body(3)
    _, seen = await scene.send(render(body))
    assert seen.request["messages"] == body["messages"]


async def test_an_edited_old_message_does_not_get_the_summary_of_another_history(scene: Scene) -> None:
    body = scene.body(8)
    messages = body["messages"]
    assert isinstance(messages, list)
    edited = [*messages[:1], {"role": "user", "content": "Another task altogether."}, *messages[2:]]
    _, seen = await scene.send(render(body | {"messages": edited}))
    assert seen.request["messages"] == edited


async def test_an_edit_of_a_long_history_gets_a_summary_of_its_own(scene: Scene) -> None:
    body = scene.body(COMPACTED)
    messages = body["messages"]
    assert isinstance(messages, list)
    edited = [*messages[:1], {"role": "user", "content": "Another task. FACT-EDITED99"}, *messages[2:]]
    before = len(scene.toy.summaries)
    old = read_summaries((await scene.send(render(body)))[1])
    answer, seen = await scene.send(render(body | {"messages": edited}))
    assert answer.status == 200
    assert len(scene.toy.summaries) > before
    assert seen.request["messages"][1] == edited[1]  # type: ignore[index]
    assert old and seen.prompt_tokens + 1_000 <= WINDOW


async def test_a_moved_cache_control_keeps_the_pivot(scene: Scene) -> None:
    body = scene.body(COMPACTED)
    messages = body["messages"]
    assert isinstance(messages, list)
    marked = [_as_marked_parts(m) if i in (1, len(messages) - 1) else m for i, m in enumerate(messages)]
    before = len(scene.toy.summaries)
    _, seen = await scene.send(render(body | {"messages": marked}))
    assert is_shortened(seen, body)
    assert len(scene.toy.summaries) == before
    # Kept messages are sent unchanged, with their mark.
    assert seen.request["messages"][1] == marked[1]  # type: ignore[index]


async def test_a_changed_date_in_the_system_prompt_keeps_the_pivot(scene: Scene) -> None:
    body = scene.body(COMPACTED)
    messages = body["messages"]
    assert isinstance(messages, list)
    tomorrow = {"role": "system", "content": messages[0]["content"] + "\nToday is 2026-11-21."}
    before = len(scene.toy.summaries)
    _, seen = await scene.send(render(body | {"messages": [tomorrow, *messages[1:]]}))
    assert is_shortened(seen, body)
    assert seen.request["messages"][0] == tomorrow  # type: ignore[index]
    assert len(scene.toy.summaries) == before


async def test_a_title_call_and_a_subagent_with_the_same_session_header_leave_the_main_branch_alone(
    scene: Scene,
) -> None:
    label = {"x-session-id": "ses_1", "x-gateway-session": "ses_1"}
    main, first = await scene.send(render(scene.body(COMPACTED)), **label)
    task = scene.body(0)["messages"]
    assert isinstance(task, list)
    title = {"model": "toy-model", "messages": [{"role": "system", "content": "Write a title."}, *task[1:]]}
    subagent = scene.body(0) | {"messages": [*task[:1], {"role": "user", "content": "Look into the parser."}]}
    titled, title_seen = await scene.send(render(title), **label)
    helped, helper_seen = await scene.send(render(subagent), **label)
    assert title_seen.request["messages"] == title["messages"]
    assert helper_seen.request["messages"] == subagent["messages"]

    again, second = await scene.send(render(scene.body(COMPACTED + 1)), **label)
    ids = [answer.header("x-gateway-conversation") for answer in (main, titled, helped, again)]
    assert ids[0] == ids[3] and len(set(ids)) == 3
    # No other's usage: the estimate goes on from the main branch's own.
    assert abs(_sent_tokens(again) - second.prompt_tokens) < 0.15 * second.prompt_tokens
    opening = first.request["messages"]
    assert isinstance(opening, list)
    assert second.request["messages"][: len(opening)] == opening  # type: ignore[index]


async def test_a_side_call_over_the_whole_history_does_not_take_the_branch_over(scene: Scene) -> None:
    body = scene.body(COMPACTED)
    messages = body["messages"]
    assert isinstance(messages, list)
    main, _ = await scene.send(render(body))
    side = {"model": "toy-model", "messages": [*messages[:2], {"role": "user", "content": "Sum it up."}]}
    aside, _ = await scene.send(render(side))
    again, _ = await scene.send(render(scene.body(COMPACTED + 1)))
    assert main.header("x-gateway-conversation") == again.header("x-gateway-conversation")
    assert aside.header("x-gateway-conversation") != main.header("x-gateway-conversation")


async def test_equal_histories_of_two_keys_make_two_pivots() -> None:
    toy = ToyUpstream(window=WINDOW, bias=1.0)
    session = make_session(24, 3, "one_user", 700)
    async with toy, running_gateway(make_settings(toy)) as gateway:
        runs = [
            await run_session(session, gateway.base_url, toy, SHAPE, Pace(key=key))
            for key in ("sk-a", "sk-b")
        ]
    for run, key in zip(runs, ("sk-a", "sk-b"), strict=True):
        assert run.failed == []
        assert {_read_key(seen) for seen in run.outgoing} == {key}
    # Each history was summarized with its own key, so neither caller used what the other paid for.
    assert sorted({_read_key(seen) for seen in toy.summaries}) == ["sk-a", "sk-b"]
    ids = [{answer.header("x-gateway-conversation") for answer in run.answers} for run in runs]
    assert ids[0].isdisjoint(ids[1])


async def test_a_hundred_equal_requests_share_one_summary_and_leave_alike() -> None:
    toy = ToyUpstream(window=WINDOW, bias=1.0)
    toy.summary_delivery = replace(toy.summary_delivery, before_headers_seconds=0.3)
    session = make_session(30, 5, "one_user", 700)
    async with toy, running_gateway(make_settings(toy)) as gateway:
        # The conversation is new, so all hundred requests exceed the window at the same time.
        headers = {"Authorization": "Bearer sk-toy"}
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(headers=headers, connector=connector) as client:
            url = f"{gateway.base_url}/chat/completions"
            toy.reply = lambda _: Reply(text="Noted.")
            answers = await asyncio.gather(
                *(ask(client, url, session.request(24, SHAPE)) for _ in range(100))
            )
    assert {answer.status for answer in answers} == {200}
    assert len(toy.summaries) == 1
    assert len({seen.body for seen in toy.chats}) == 1 and len(toy.chats) == 100


async def test_a_conversation_with_a_huge_last_result_is_summarized_at_most_once() -> None:
    """The compaction prepared after the response may have to cut behind the last group; all requests share
    it.
    """
    toy = ToyUpstream(window=WINDOW, bias=1.0)
    toy.summary_delivery = replace(toy.summary_delivery, before_headers_seconds=0.2)
    body = make_session(20, 5, "one_user", 500).envelope(14, SHAPE)
    messages = body["messages"]
    assert isinstance(messages, list)
    last = {**messages[-1], "content": "line of output " * 1_500}
    async with toy, running_gateway(make_settings(toy)) as gateway:
        toy.reply = lambda _: Reply(text="Noted.")
        async with aiohttp.ClientSession(headers={"Authorization": "Bearer sk-toy"}) as client:
            url = f"{gateway.base_url}/chat/completions"
            request = render({**body, "messages": [*messages[:-1], last]})
            answers = await asyncio.gather(*(ask(client, url, request) for _ in range(10)))
            await gateway.settle()
    assert {answer.status for answer in answers} == {200}
    assert len(toy.summaries) <= 1


async def test_pictures_are_counted_and_not_taken_for_their_links() -> None:
    parts = [{"type": "image_url", "image_url": {"url": f"https://a.test/{n}.png"}} for n in range(12)]
    body = {
        "model": "toy-model",
        "max_tokens": 4_000,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Look."}, *parts]}],
    }
    toy = ToyUpstream(window=WINDOW)
    async with toy, running_gateway(make_settings(toy)) as gateway, aiohttp.ClientSession() as client:
        answer = await ask(client, f"{gateway.base_url}/chat/completions", render(body))
    assert answer.status == 200
    assert _sent_tokens(answer) > 9_000


@pytest.mark.system(2)
async def test_a_restart_in_mid_session_keeps_pivot_and_summary(store_url: str) -> None:
    # Two turns later the next compaction is due.
    last = COMPACTED - 2
    toy = ToyUpstream(window=WINDOW, bias=1.2)
    session = make_session(40, 7, "one_user", 600)
    async with toy:
        settings = make_settings(toy, store=store_url)
        async with running_gateway(settings) as gateway:
            first = await run_session(session, gateway.base_url, toy, SHAPE, Pace(last=last))
        made = len(toy.summaries)
        async with running_gateway(settings) as gateway:
            again = await run_session(session, gateway.base_url, toy, SHAPE, Pace(first=last, last=last + 1))
    before, after = first.outgoing[-1].request["messages"], again.outgoing[0].request["messages"]
    assert isinstance(before, list) and isinstance(after, list)
    assert again.failed == []
    assert after[: len(before)] == before
    assert len(toy.summaries) == made
    assert again.conversation == first.conversation


async def test_a_summary_interrupted_by_a_stop_is_started_again_by_the_next_request(
    store_url: str,
) -> None:
    """The summary starts before that request gets its response. Only the stored marker can cause it."""
    toy = ToyUpstream(window=WINDOW, bias=1.2)
    toy.summary_delivery = replace(toy.summary_delivery, never=True)
    session = make_session(150, 7, "one_user", 120)
    async with toy:
        settings = make_settings(toy, store=store_url)
        turn = 0
        async with running_gateway(settings) as gateway:
            while not toy.summaries:
                run = await run_session(
                    session, gateway.base_url, toy, SHAPE, Pace(first=turn, last=turn + 1)
                )
                assert run.failed == []
                turn += 1
                await wait_until(lambda: gateway.app.is_idle or bool(toy.summaries))
        toy.summary_delivery = replace(toy.summary_delivery, never=False)
        toy.delivery = replace(toy.delivery, never=True)
        async with running_gateway(settings) as gateway:
            headers = {"Authorization": "Bearer sk-toy"}
            async with aiohttp.ClientSession(headers=headers) as client:
                url = f"{gateway.base_url}/chat/completions"
                asking = asyncio.create_task(ask(client, url, session.request(turn, SHAPE)))
                await wait_until(lambda: len(toy.summaries) == 2 and toy.summaries[1].finished)
                await wait_until(lambda: len(toy.chats) == turn + 1)
                asking.cancel()


@pytest.mark.system(2)
async def test_a_client_that_hangs_up_still_gets_its_summary_next_time() -> None:
    toy = ToyUpstream(window=WINDOW, bias=1.0)
    toy.summary_delivery = replace(toy.summary_delivery, before_headers_seconds=0.2)
    session = make_session(30, 5, "one_user", 700)
    async with toy, running_gateway(make_settings(toy)) as gateway:
        url, headers = f"{gateway.base_url}/chat/completions", {"Authorization": "Bearer sk-toy"}
        async with aiohttp.ClientSession(headers=headers) as client:
            asking = asyncio.create_task(ask(client, url, session.request(24, SHAPE)))
            await wait_until(lambda: bool(toy.summaries))
            asking.cancel()
            await wait_until(lambda: toy.summaries[0].finished)
            answer = await ask(client, url, session.request(24, SHAPE))
    assert answer.status == 200
    assert len(toy.summaries) == 1


def _ask_else() -> list[dict[str, str]]:
    return [{"role": "user", "content": "Leave that. Explain the cache instead."}]


def _as_marked_parts(message: dict[str, object]) -> dict[str, object]:
    part = {"type": "text", "text": message["content"], "cache_control": {"type": "ephemeral"}}
    return message | {"content": [part]}


def _read_key(seen: Seen) -> str:
    return next(value for name, value in seen.headers if name == "Authorization").removeprefix("Bearer ")


def _sent_tokens(answer: Answer) -> int:
    return int((answer.header("x-gateway-tokens") or "sent=0").rpartition("sent=")[2])


async def test_usage_counts_although_the_client_closes_at_the_last_event() -> None:
    """SDKs close a stream at `[DONE]`, before the answer has come to its end on the wire."""
    toy = ToyUpstream(window=128_000, bias=1.6)
    session = make_session(12, 5, "one_user", 700)
    streamed = Shape(stream=True)
    async with toy, running_gateway(make_settings(toy)) as gateway:
        toy.reply = lambda _: session.reply(8)
        toy.delivery = replace(toy.delivery, ending="hang")
        url, headers = f"{gateway.base_url}/chat/completions", {"Authorization": "Bearer sk-toy"}
        async with aiohttp.ClientSession(headers=headers) as client:
            response = await client.post(url, data=session.request(8, streamed))
            received = b""
            while b"[DONE]" not in received:
                received += await response.content.readany()
            response.close()
            await wait_until(lambda: toy.chats[0].disconnected)
            toy.delivery = replace(toy.delivery, ending="clean")
            answer = await ask(client, url, session.request(9, streamed))
    true_tokens = toy.chats[-1].prompt_tokens
    assert abs(_sent_tokens(answer) - true_tokens) < 0.1 * true_tokens


async def test_the_clients_own_compaction_call_passes_with_the_pivot_and_leaves_the_branch_alone(
    scene: Scene,
) -> None:
    turn = COMPACTED
    main, _ = await scene.send(render(scene.body(turn)))
    while _sent_tokens(main) > 7_500:  # until it has just been compacted again
        turn += 1
        main, _ = await scene.send(render(scene.body(turn)))
    body = scene.body(turn)
    messages, before = body["messages"], len(scene.toy.summaries)
    assert isinstance(messages, list)
    asking = "You are performing a CONTEXT CHECKPOINT COMPACTION. Create a handoff summary for another LLM."
    # Past the soft line: after any other request a summary would be prepared.
    said = {"role": "user", "content": asking + " word" * 4_500}
    own = body | {"messages": [*messages, {"role": "assistant", "content": "Done."}, said]}
    asked, seen = await scene.send(render(own))
    assert asked.header("x-gateway-plan") == "pivot"
    assert 11_200 < _sent_tokens(asked) < 12_000
    assert seen.request["messages"][-1] == said  # type: ignore[index]
    again, _ = await scene.send(render(scene.body(turn + 1)))
    assert len(scene.toy.summaries) == before
    assert again.header("x-gateway-conversation") == main.header("x-gateway-conversation")
    assert asked.header("x-gateway-conversation") != main.header("x-gateway-conversation")
