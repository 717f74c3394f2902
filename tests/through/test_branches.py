"""A request continues a conversation only if it repeats it exactly; otherwise it is another branch.

Each request gets the right summary or none, however the client changes its history.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.toy.agent import Message, Session, Shape, make_session
from tests.toy.chat import CHAT
from tests.toy.checks import Promise, check_conversation, check_request, read_sizes
from tests.toy.delivery import Delivery
from tests.toy.house import House
from tests.toy.messages import Messages
from tests.toy.reply import Reply
from tests.toy.responses import Responses
from tests.toy.running import Answer, wait_until
from tests.toy.upstream import Seen

pytestmark = pytest.mark.asyncio(loop_scope="module")

WINDOW = 16_000
SHAPES = {
    "chat": Shape(dialect=CHAT, max_tokens=1_000),
    "responses": Shape(dialect=Responses(), max_tokens=1_000),
    "messages": Shape(dialect=Messages(marks=False), max_tokens=1_000),
}
# By this turn the session below has been compacted, and its pivot is in force.
COMPACTED = 30


@dataclass
class Scene:
    """A session that has been played until its pivot is in force, and what is sent beside it."""

    house: House
    session: Session
    shape: Shape
    identity: str
    summary: str

    async def send(self, body: Mapping[str, object], key: str = "", **headers: str) -> tuple[Answer, Seen]:
        """One request outside the session, and what reached the upstream."""
        toy, dialect = self.house.toy, self.shape.dialect
        toy.reply = lambda _: Reply(text="Noted.")
        raw = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        house = replace(self.house, key=key or self.house.key)
        answer = await house.send(dialect, raw, **headers)
        assert answer.status == 200, answer.body
        return answer, toy.chats[-1]

    def body(self, turn: int, *more: Message) -> dict[str, Any]:
        """The session's request, with messages of chat behind it."""
        session = self.session
        if more:
            said = replace(session.turns[turn - 1], followers=(*session.turns[turn - 1].followers, *more))
            session = replace(session, turns=(*session.turns[: turn - 1], said, session.turns[turn]))
        return dict(session.envelope(turn, self.shape))

    def edited(self, turn: int, at: int, text: str) -> dict[str, Any]:
        """With another text in the assistant message of a turn."""
        done = self.session.turns[at]
        turns = list(self.session.turns)
        turns[at] = replace(done, assistant={**done.assistant, "content": text})
        return dict(replace(self.session, turns=tuple(turns)).envelope(turn, self.shape))

    @property
    def made(self) -> int:
        return len(self.house.toy.summaries)

    def shows(self, seen: Seen) -> bool:
        """Whether it was sent with the session's own summary."""
        return self.summary in json.dumps(seen.request)

    def is_untouched(self, seen: Seen, body: Mapping[str, object]) -> bool:
        return bool(seen.request == json.loads(json.dumps(body)))


def ask_for(text: str) -> Message:
    return {"role": "user", "content": text}


def user_text(text: str) -> dict[str, Any]:
    """A message that all three formats understand."""
    return {"role": "user", "content": text}


def array_of(body: Mapping[str, Any]) -> list[Any]:
    array: list[Any] = body["messages"] if "messages" in body else body["input"]
    return array


def with_array(body: Mapping[str, Any], array: list[Any]) -> dict[str, Any]:
    return {**body, "messages" if "messages" in body else "input": array}


@pytest_asyncio.fixture(loop_scope="module", params=SHAPES)
async def scene(house: House, request: pytest.FixtureRequest) -> Scene:
    shape = SHAPES[request.param]
    # Turns that differ in a digit are of the same size.
    session = make_session(40, 7, "one_user", 600, facts="all")
    word = f"The summary of {house.key}"
    house.toy.summary = lambda _: Reply(text=f"{word}, number {len(house.toy.summaries)}. We went on.")
    run = await house.play(session, shape, last=COMPACTED)
    await house.at_rest()
    promise = Promise(facts=(), bias=1.2)
    sent = check_conversation(session, shape, run, promise=promise)
    assert run.plans[-1] == "pivot" and sent[-1].inserted
    return Scene(house, session, shape, run.conversation, word)


async def test_the_conversation_goes_on_with_its_pivot(scene: Scene) -> None:
    made = scene.made
    answer, seen = await scene.send(scene.body(COMPACTED))
    assert scene.shows(seen) and scene.made == made
    assert answer.header("x-gateway-conversation") == scene.identity
    check_request(scene.session, scene.shape, COMPACTED, seen)


async def test_the_same_request_again_leaves_as_the_same_bytes(scene: Scene) -> None:
    first, one = await scene.send(scene.body(COMPACTED))
    second, two = await scene.send(scene.body(COMPACTED))
    assert one.body == two.body
    assert first.header("x-gateway-conversation") == second.header("x-gateway-conversation")


async def test_a_fork_behind_the_pivot_keeps_it_and_gets_an_id_of_its_own(scene: Scene) -> None:
    made = scene.made
    main, _ = await scene.send(scene.body(COMPACTED))
    body = scene.body(COMPACTED - 1, ask_for("Leave that. Explain the cache instead."))
    fork, seen = await scene.send(body)
    assert scene.shows(seen) and scene.made == made
    assert array_of(seen.request)[-1] == array_of(body)[-1]
    assert fork.header("x-gateway-conversation") != main.header("x-gateway-conversation") == scene.identity
    again, _ = await scene.send(scene.body(COMPACTED + 1))
    assert again.header("x-gateway-conversation") == scene.identity
    await scene.house.at_rest()
    _, row = await scene.house.admin(f"/conversations/{fork.header('x-gateway-conversation')}")
    assert row["parent"] == scene.identity


@pytest.mark.parametrize("at", [2, 8])
async def test_branches_that_differ_in_one_digit_are_two(scene: Scene, at: int) -> None:
    """Old turns, which the summary stands for: neither may get the other's."""
    texts = [f"The port is 803{digit}." for digit in (1, 2)]
    answers = [await scene.send(scene.edited(COMPACTED, at, text)) for text in texts]
    await scene.house.at_rest()
    ids = {answer.header("x-gateway-conversation") for answer, _ in answers}
    assert len(ids | {scene.identity}) == 3
    summaries = [seen for seen in scene.house.toy.summaries if any(t.encode() in seen.body for t in texts)]
    assert len(summaries) == 2
    assert not any(texts[0].encode() in seen.body and texts[1].encode() in seen.body for seen in summaries)
    own = [json.dumps(seen.request).partition(scene.summary)[2][:20] for _, seen in answers]
    assert own[0] != own[1]


async def test_newest_messages_that_differ_in_their_last_digit_are_two(scene: Scene) -> None:
    bodies = [scene.body(COMPACTED, ask_for(f"Use port 803{digit}")) for digit in (1, 2, 1)]
    ids = [(await scene.send(body))[0].header("x-gateway-conversation") for body in bodies]
    assert ids[0] == ids[2] != ids[1]


@pytest.mark.parametrize("turn", [1, 3, 12])
async def test_a_rewind_to_before_the_pivot_is_sent_as_it_is(scene: Scene, turn: int) -> None:
    made, body = scene.made, scene.body(turn)
    answer, seen = await scene.send(body)
    assert scene.is_untouched(seen, body)
    assert answer.header("x-gateway-plan") == "passthrough" and scene.made == made


async def test_an_edited_old_message_does_not_get_the_summary_of_another_history(scene: Scene) -> None:
    body = scene.body(8)
    array = array_of(body)
    start = 1 if array[0]["role"] == "system" else 0
    edited = with_array(body, [*array[:start], user_text("Another task altogether."), *array[start + 1 :]])
    _, seen = await scene.send(edited)
    assert scene.is_untouched(seen, edited)


async def test_an_edit_of_a_long_history_gets_a_summary_of_its_own(scene: Scene) -> None:
    made, body = scene.made, scene.body(COMPACTED)
    array = array_of(body)
    start = 1 if array[0]["role"] == "system" else 0
    task = user_text("Another task. FACT-EDITED99")
    answer, seen = await scene.send(with_array(body, [*array[:start], task, *array[start + 1 :]]))
    assert scene.made > made
    assert array_of(seen.request)[start] == task
    assert seen.prompt_tokens + 1_000 <= WINDOW
    assert answer.header("x-gateway-conversation") != scene.identity


@pytest.mark.parametrize("what", ["a date in the system prompt", "another tool", "no tools any more"])
async def test_what_changes_before_the_messages_keeps_the_pivot(scene: Scene, what: str) -> None:
    made, body = scene.made, scene.body(COMPACTED)
    if what.startswith("a date"):
        system = {**scene.session.leading[0], "content": "You code.\nToday is 2026-11-21."}
        changed = replace(scene.session, leading=(system,)).envelope(COMPACTED, scene.shape)
    else:
        tools = scene.session.tools[:1] if what == "another tool" else scene.session.tools[:4]
        changed = replace(scene.session, tools=tools).envelope(COMPACTED, scene.shape)
    answer, seen = await scene.send(changed)
    assert scene.shows(seen) and scene.made == made
    # Other tools may be those of a helper.
    assert not what.startswith("a date") or answer.header("x-gateway-conversation") == scene.identity
    for name in ("system", "instructions", "tools"):
        assert seen.request.get(name) == json.loads(json.dumps(changed)).get(name)
    assert body["model"] == seen.request["model"]


async def test_a_moved_cache_control_keeps_the_pivot(scene: Scene) -> None:
    if scene.shape.dialect.path == "/responses":
        pytest.skip("this format has no marks")
    made, body = scene.made, scene.body(COMPACTED)
    array = array_of(body)
    start = 1 if array[0]["role"] == "system" else 0
    text = array[start]["content"]
    text = text if isinstance(text, str) else text[0]["text"]
    part = {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}
    marked = {"role": "user", "content": [part]}
    _, seen = await scene.send(with_array(body, [*array[:start], marked, *array[start + 1 :]]))
    assert scene.shows(seen) and scene.made == made
    # Kept messages are sent unchanged, with their mark.
    assert array_of(seen.request)[start] == marked


async def test_reminders_and_rewritten_replies_of_the_client_keep_the_pivot(scene: Scene) -> None:
    """Clients add and drop blocks of these tags, and write arguments with other white space."""
    made, path = scene.made, scene.shape.dialect.path
    turns, last = list(scene.session.turns), scene.session.turns[COMPACTED - 1]
    for at in (2, 5):
        calls: Any = turns[at].assistant["tool_calls"]
        spaced = [
            {
                **call,
                "function": {
                    **call["function"],
                    "arguments": call["function"]["arguments"].replace(",", ", "),
                },
            }
            for call in calls
        ]
        turns[at] = replace(turns[at], assistant={**turns[at].assistant, "tool_calls": spaced})
    told: Any = scene.session.opening[0]["content"]
    opening = ({"role": "user", "content": f"{told}<system-reminder>Be kind.</system-reminder>"},)
    session = replace(scene.session, turns=tuple(turns), opening=opening)
    answer, seen = await scene.send(session.envelope(COMPACTED, scene.shape))
    assert scene.shows(seen) and scene.made == made, path
    assert answer.header("x-gateway-conversation") == scene.identity
    assert "Be kind." in json.dumps(seen.request) and last.followers


async def test_a_title_call_and_a_subagent_with_the_same_session_header_leave_the_main_branch_alone(
    scene: Scene,
) -> None:
    label = {"x-session-id": "ses_1", "x-gateway-session": "ses_1"}
    main, first = await scene.send(scene.body(COMPACTED), **label)
    session, shape = scene.session, scene.shape
    title = replace(session, tools=(), leading=({"role": "system", "content": "Write a title."},))
    helper = replace(session, opening=(ask_for("Look into the parser."),))
    bodies = [dict(each.envelope(0, shape)) for each in (title, helper)]
    others = [await scene.send(body, **label) for body in bodies]
    for body, (_, seen) in zip(bodies, others, strict=True):
        assert scene.is_untouched(seen, body)
    again, second = await scene.send(scene.body(COMPACTED + 1), **label)
    ids = [main.header("x-gateway-conversation"), again.header("x-gateway-conversation")]
    ids += [answer.header("x-gateway-conversation") for answer, _ in others]
    assert ids[0] == ids[1] and len(set(ids)) == 3
    # No other's usage: the estimate goes on from the main branch's own.
    assert abs(read_sizes(again)[1] - second.prompt_tokens) < 0.15 * second.prompt_tokens
    opening = array_of(first.request)
    assert array_of(second.request)[: len(opening)] == opening


async def test_a_subagent_of_many_turns_with_the_same_header_has_its_own_summary(scene: Scene) -> None:
    """Codex's share `session-id` and `prompt_cache_key` with their parent."""
    label = {"session-id": "ses_2", "x-gateway-session": "ses_2"}
    house, shape = scene.house, scene.shape
    if shape.dialect.path != "/messages":
        shape = replace(shape, extra={"prompt_cache_key": "ses_2"})
    parent, child = make_session(40, 21, facts="all"), make_session(40, 22, facts="all")
    child = replace(child, leading=parent.leading, tools=parent.tools)
    words = {each.name: [fact.token for fact in each.facts if fact.turn >= 0] for each in (parent, child)}
    house.toy.summary = None
    ids: dict[str, set[str | None]] = {parent.name: set(), child.name: set()}
    for turn in range(0, 34, 2):
        for session, other in ((parent, child), (child, parent)):
            run = await house.play(session, shape, turn, turn + 2, since=None, **label)
            await house.at_rest()
            assert run.failed == [] and run.refusals == []
            for seen in run.seen:
                assert not [word for word in words[other.name] if word.encode() in seen.body]
            ids[session.name] |= {answer.header("x-gateway-conversation") for answer in run.answers}
    assert [len(found) for found in ids.values()] == [1, 1]
    assert ids[parent.name] != ids[child.name]
    assert "pivot" in (run.plans[-1] or "")


async def test_a_side_call_does_not_take_the_branch_over(scene: Scene) -> None:
    """Over the task alone, and over the whole history, which leaves with the summary."""
    made, session = scene.made, scene.session
    short = replace(session, opening=(*session.opening, ask_for("Sum it up in five words.")))
    aside, seen = await scene.send(short.envelope(0, scene.shape))
    again, _ = await scene.send(scene.body(COMPACTED))
    assert not scene.shows(seen)
    assert again.header("x-gateway-conversation") == scene.identity
    assert aside.header("x-gateway-conversation") != scene.identity
    _, seen = await scene.send(scene.body(COMPACTED, ask_for("Sum it up in five words.")))
    assert scene.shows(seen) and scene.made == made


async def test_another_key_never_gets_the_summary(scene: Scene) -> None:
    made = scene.made
    other, seen = await scene.send(scene.body(COMPACTED), key=f"{scene.house.key}-stranger")
    assert other.header("x-gateway-conversation") != scene.identity
    assert scene.made > made
    number = json.dumps(seen.request).partition(", number ")[2][:2]
    assert not scene.shows(seen) or int(number.strip(".")) > made


async def test_the_bypass_header_relays_as_it_came_and_changes_nothing(scene: Scene) -> None:
    made, body = scene.made, scene.body(12)
    answer, seen = await scene.send(body, **{"x-gateway-bypass": "1"})
    assert scene.is_untouched(seen, body)
    assert answer.header("x-gateway-plan") in (None, "passthrough") and scene.made == made
    again, seen = await scene.send(scene.body(COMPACTED + 1))
    assert scene.shows(seen) and again.header("x-gateway-conversation") == scene.identity


async def test_the_clients_own_compaction_call_passes_with_the_pivot_and_leaves_the_branch_alone(
    scene: Scene,
) -> None:
    turn = COMPACTED
    main, _ = await scene.send(scene.body(turn))
    while read_sizes(main)[1] > 7_500:  # until it has just been compacted again
        turn += 1
        main, _ = await scene.send(scene.body(turn))
        await scene.house.at_rest()
    made = scene.made
    asking = "You are performing a CONTEXT CHECKPOINT COMPACTION. Create a handoff summary for another LLM."
    # Past the soft line: after any other request a summary would be prepared.
    missing = int((11_500 - read_sizes(main)[1]) / 1.2)
    asked, seen = await scene.send(scene.body(turn, ask_for(asking + " word" * missing)))
    await scene.house.at_rest()
    assert asked.header("x-gateway-plan") == "pivot"
    assert 10_500 < read_sizes(asked)[1] < 12_000
    assert asking in json.dumps(array_of(seen.request)[-1])
    again, _ = await scene.send(scene.body(turn + 1))
    assert scene.made == made
    assert again.header("x-gateway-conversation") == scene.identity
    assert asked.header("x-gateway-conversation") != scene.identity


async def test_usage_counts_although_the_client_closes_at_the_last_event(house: House) -> None:
    """SDKs close a stream at `[DONE]`, before the answer has come to its end on the wire."""

    session, toy = replace(make_session(12, 5, "one_user", 500), model="toy-closing"), house.toy
    toy.counter = type(toy.counter)(1.6)
    streamed = Shape(stream=True)
    toy.reply = lambda _: session.reply(8)
    toy.delivery = Delivery(ending="hang")
    headers = {"Authorization": f"Bearer {house.key}"}
    async with aiohttp.ClientSession(headers=headers) as client:
        url = f"{house.product.base_url}/chat/completions"
        response = await client.post(url, data=session.request(8, streamed))
        received = b""
        while b"[DONE]" not in received:
            received += await response.content.readany()
        response.close()
        await wait_until(lambda: toy.chats[0].disconnected)
    toy.delivery = Delivery()
    answer = await house.post("/chat/completions", session.request(9, streamed))
    true_tokens = toy.chats[-1].prompt_tokens
    assert abs(read_sizes(answer)[1] - true_tokens) < 0.1 * true_tokens


async def test_a_conversation_with_a_huge_last_result_is_summarized_at_most_once(house: House) -> None:
    """The compaction prepared after the response may have to cut behind the last group; all requests share
    it.
    """
    toy, ready = house.toy, asyncio.Event()
    toy.summary_delivery = Delivery(after=ready)
    body: Any = make_session(20, 5, "one_user", 500).envelope(14, SHAPES["chat"])
    last = {**body["messages"][-1], "content": "line of output " * 1_500}
    toy.reply = lambda _: Reply(text="Noted.")
    request = {**body, "model": "toy-huge", "messages": [*body["messages"][:-1], last]}
    asking = [asyncio.create_task(house.post("/chat/completions", request)) for _ in range(10)]
    await asyncio.sleep(0.05)
    ready.set()
    answers = await asyncio.gather(*asking)
    await house.at_rest()
    assert {answer.status for answer in answers} == {200}
    assert len(toy.summaries) <= 1
