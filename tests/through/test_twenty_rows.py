"""The twenty systems of the source documents (docs/sources.md), each through a running gateway.

Further tests of a system carry its number: `@pytest.mark.system(2)`.

Each row is a session of a scripted agent in front of a strict upstream; what is asserted is what the upstream
was sent and what operators are told. The details of each system are tested elsewhere, beside their sources.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.toy.agent import Session, Shape, Style, make_session
from tests.toy.counting import count_text
from tests.toy.delivery import RawAnswer
from tests.toy.house import ADMIN, ADMIN_TOKEN, House, make_settings
from tests.toy.messages import MESSAGES
from tests.toy.product import serve
from tests.toy.running import Pace, Run, run_session, wait_until
from tests.toy.upstream import ToyUpstream

WINDOW = 32_000
OUTPUT = 4_096
SHAPE = Shape(max_tokens=1_000)
RESUME = "Continue if you have next steps"
QUESTION = "What did we do so far?"
PLACEHOLDER = "[Old tool result content cleared]"
UTILIZATION = "policies: {default: {preset: utilization}}\n"
KEY = "sk-toy"


def make_row_session(turns: int = 60, style: Style = "many_users", turn_tokens: int = 900) -> Session:
    return make_session(turns, 5, style, turn_tokens)


@asynccontextmanager
async def serve_toy(
    toy: ToyUpstream, settings: str, env: Mapping[str, str] | None = None
) -> AsyncIterator[House]:
    async with serve(settings, env=env) as product:
        yield House(toy, product, KEY)


async def play(
    policy: str, session: Session | None = None, window: int = WINDOW, last: int | None = None
) -> Run:
    """The whole session, or its first turns. policy: such as `preset: recent`."""
    more = f"policies: {{default: {{{policy}}}}}\n"
    async with (
        ToyUpstream(window=window) as toy,
        serve_toy(toy, make_settings(toy, output_tokens=OUTPUT, more=more)) as house,
    ):
        run = await house.play(session or make_row_session(), SHAPE, last=last)
        await house.at_rest()
    assert run.failed == [] and run.refusals == []
    return run


async def look(house: House, path: str) -> Any:
    """What the admin port shows."""
    status, found = await house.admin(path)
    assert status == 200, found
    return found


@dataclass
class Heard:
    """What a hook or a listener was told, in order."""

    told: list[dict[str, Any]] = field(default_factory=list)
    port: int = 0

    def find(self, **fields: str) -> dict[str, Any] | None:
        return next((each for each in self.told if fields.items() <= each.items()), None)


@asynccontextmanager
async def hooked(**response: object) -> AsyncIterator[Heard]:
    """The other end of a hook."""
    heard = Heard()

    async def answer(request: web.BaseRequest) -> web.Response:
        heard.told.append(await request.json())
        return web.json_response(response)

    runner = web.ServerRunner(web.Server(answer), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    heard.port = runner.addresses[0][1]
    try:
        yield heard
    finally:
        await runner.cleanup()


@asynccontextmanager
async def listening(house: House) -> AsyncIterator[Heard]:
    """Events of the admin port."""
    heard = Heard()

    async def read(response: aiohttp.ClientResponse) -> None:
        async for line in response.content:
            if line.startswith(b"data:"):
                heard.told.append(json.loads(line.removeprefix(b"data:")))

    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    url = f"{house.product.admin_url}/api/v1/events"
    async with aiohttp.ClientSession(headers=headers, read_bufsize=1 << 20) as client, client.get(url) as got:
        reading = asyncio.create_task(read(got))
        try:
            yield heard
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


def list_messages(run: Run, at: int = -1) -> list[dict[str, Any]]:
    """As a request of the conversation reached the upstream."""
    messages: Any = run.outgoing[at].request["messages"]
    return list(messages)


def list_texts(run: Run, at: int = -1) -> list[str]:
    return [str(message.get("content")) for message in list_messages(run, at)]


def find_first(run: Run, plan: str) -> int:
    """The place of the first response with this plan."""
    return next(at for at, found in enumerate(run.plans) if found == plan)


@pytest.mark.system(1)
async def test_row_1_a_step_above_the_usable_window_is_an_overflow_and_no_limit_is_none() -> None:
    run = await play("preset: opencode")
    first = find_first(run, "pivot")
    usable = WINDOW - OUTPUT
    totals = [seen.prompt_tokens for seen in run.outgoing]
    # Usage comes with the step: the one that passes the limit still leaves as it came, the next one does not.
    assert max(totals[: first - 1]) <= usable < totals[first - 1] + 300
    async with ToyUpstream(window=WINDOW) as toy:
        unlimited = make_settings(toy).replace(f"context: {WINDOW}", "context: 0")
        toy.window = 1_000_000
        async with serve_toy(toy, unlimited) as house:
            free = await house.play(make_row_session(), SHAPE)
    assert set(free.plans) == {"passthrough"} and free.summaries == []


@pytest.mark.system(2)
async def test_row_2_a_queued_compaction_survives_a_restart_and_is_carried_out_once(tmp_path: Path) -> None:
    """After the restart the answer is held back, so that only what was queued can begin a summary."""
    session = make_session(150, 7, "one_user", 120)
    async with ToyUpstream(window=16_000) as toy:
        toy.summary_delivery = replace(toy.summary_delivery, never=True)
        settings = make_settings(toy, store=f"disk:{tmp_path}")
        turn = 0
        async with serve_toy(toy, settings) as house:
            begun = asyncio.create_task(wait_until(lambda: bool(toy.summaries)))
            while not begun.done():
                assert (await house.play(session, SHAPE, turn, turn + 1)).plans == ["passthrough"]
                turn += 1
                resting = asyncio.create_task(house.at_rest())
                await asyncio.wait((resting, begun), return_when=asyncio.FIRST_COMPLETED)
                resting.cancel()
        toy.summary_delivery = replace(toy.summary_delivery, never=False)
        answering, toy.delivery = toy.delivery, replace(toy.delivery, never=True)
        asked = len(toy.summaries)
        async with serve_toy(toy, settings) as house:
            asking = asyncio.create_task(house.post("/chat/completions", session.request(turn, SHAPE)))
            await wait_until(lambda: len(toy.summaries) == asked + 1 and toy.summaries[-1].finished)
            asking.cancel()
            toy.delivery = answering
            # The next request starts nothing more.
            await house.play(session, SHAPE, turn, turn + 1)
            await house.at_rest()
    assert len(toy.summaries) == asked + 1


@pytest.mark.system(3)
async def test_row_3_a_hidden_agent_without_tools_summarizes_with_its_own_model_and_prompts() -> None:
    run = await play("preset: opencode, summary: {model: toy-small}")
    asked = run.summaries[0].request
    assert asked["model"] == "toy-small" and "tools" not in asked and "tool_choice" not in asked
    roles = [message["role"] for message in asked["messages"]]  # type: ignore[attr-defined]
    assert roles == ["system", "user"]
    assert "new session will not have access to our conversation" in str(asked["messages"])
    texts = list_texts(run, find_first(run, "pivot"))
    assert QUESTION in texts


@pytest.mark.system(4)
async def test_row_4_an_agent_is_told_to_continue_after_an_automatic_compaction() -> None:
    run = await play("preset: opencode", make_row_session(style="one_user"))
    messages = list_messages(run, find_first(run, "pivot"))
    (at,) = [at for at, message in enumerate(messages) if message.get("content") == RESUME]
    assert messages[at]["role"] == "user" and messages[at - 1]["role"] == "assistant"


@pytest.mark.system(5)
async def test_row_5_only_the_newest_finished_summary_hides_anything() -> None:
    failed = RawAnswer(status=500, pieces=(b'{"error": {"message": "no"}}',))
    session = make_row_session(90)
    async with ToyUpstream(window=WINDOW) as toy, serve_toy(toy, make_settings(toy)) as house:
        toy.summary_failures = [failed] * 2
        run = await house.play(session, SHAPE)
    assert run.failed == [] and run.refusals == []
    begun = next(at for at, plan in enumerate(run.plans) if plan == "pivot")
    # The failed one hid nothing: every request before the first pivot is whole.
    assert [len(list_messages(run, at)) for at in range(begun)] == [
        len(session.messages(at)) for at in range(begun)
    ]
    # Of several summaries one is sent.
    texts = [seen.body.count(b"toy summary") for seen in run.outgoing]
    assert len(run.summaries) > 4 and set(texts) <= {0, 1}


@pytest.mark.system(6)
async def test_row_6_old_tool_results_are_pruned_by_the_rule_of_000() -> None:
    run = await play("preset: opencode", make_row_session(65, turn_tokens=2_400), window=300_000)
    messages = list_messages(run)
    cleared = [at for at, message in enumerate(messages) if message.get("content") == PLACEHOLDER]
    kept = [at for at, message in enumerate(messages) if message["role"] == "tool" and at not in cleared]
    assert cleared and kept and max(cleared) < min(kept)
    newest_users = [at for at, message in enumerate(messages) if message["role"] == "user"][-2:]
    assert max(cleared) < newest_users[0]
    # At least 40,000 tokens of four characters stay, and at least 20,000 went.
    assert sum(len(str(messages[at]["content"])) for at in kept) / 4 > 40_000
    before = {
        message["tool_call_id"]: message
        for message in make_row_session(65, turn_tokens=2_400).messages(64)
        if "tool_call_id" in message
    }
    gone = [str(before[messages[at]["tool_call_id"]]["content"]) for at in cleared]
    assert sum(map(len, gone)) / 4 > 20_000
    assert run.summaries == []


@pytest.mark.system(7)
async def test_row_7_what_was_removed_can_be_read_as_it_was() -> None:
    session = make_row_session()
    async with ToyUpstream(window=WINDOW) as toy, serve_toy(toy, make_settings(toy, more=ADMIN)) as house:
        run = await house.play(session, SHAPE)
        await house.at_rest()
        path = f"/conversations/{run.conversation}/originals"
        listed = await look(house, path)
        originals = [each for taken in listed["taken"] for each in taken["messages"]]
        bodies = [(await house.admin(f"{path}/{each['digest']}"))[1] for each in originals[:20]]
    sent = session.messages(59)[1:]
    assert originals and bodies == [sent[each["position"]] for each in originals[:20]]


@pytest.mark.system(8)
async def test_row_8_a_hook_adds_context_and_each_compaction_is_published() -> None:
    async with ToyUpstream(window=WINDOW) as toy, hooked(context=["Branch: row-eight"]) as hook:
        hooks = f'{ADMIN}hooks: {{pre_compact: [{{url: "http://127.0.0.1:{hook.port}/hook"}}]}}\n'
        async with serve_toy(toy, make_settings(toy, more=hooks)) as house, listening(house) as heard:
            run = await house.play(make_row_session(), SHAPE)
            await wait_until(lambda: heard.find(type="session.compacted") is not None)
    event = heard.find(type="session.compacted") or {}
    assert run.failed == [] and "Branch: row-eight" in run.summaries[0].body.decode()
    assert 0 < event["post_tokens"] < event["pre_tokens"]


@pytest.mark.system(9)
async def test_row_9_the_environment_switches_compaction_and_pruning_off() -> None:
    env = {"GATEWAY_DISABLE_AUTOCOMPACT": "1", "GATEWAY_DISABLE_PRUNE": "1"}
    async with ToyUpstream(window=WINDOW) as toy:
        toy.window = 1_000_000
        settings = make_settings(toy).replace("context: 1000000", f"context: {WINDOW}")
        async with serve_toy(toy, settings, env) as house:
            run = await house.play(make_row_session(), SHAPE)
    assert run.failed == [] and set(run.plans) == {"passthrough"} and run.summaries == []
    compacted = await play("compaction: {auto: true, prune: false}, estimator: chars")
    assert "pivot" in compacted.plans and PLACEHOLDER not in str(list_texts(compacted))


@pytest.mark.system(10)
async def test_row_10_at_90_percent_all_but_ten_messages_are_compacted_and_logged() -> None:
    more = f"{ADMIN}policies: {{default: {{preset: recent}}}}\n"
    async with ToyUpstream(window=WINDOW) as toy, serve_toy(toy, make_settings(toy, more=more)) as house:
        run = await house.play(make_row_session(), SHAPE)
        await house.at_rest()
        log = await look(house, f"/conversations/{run.conversation}/log")
    first = find_first(run, "pivot")
    line = 0.9 * WINDOW
    assert max(seen.prompt_tokens for seen in run.outgoing[:first]) <= line
    messages, received = list_messages(run, first), make_row_session().messages(first)
    kept = [message for message in messages if message in received and message["role"] != "system"]
    # Ten, and the rest of the group that the tenth is in.
    assert 10 <= len(kept) <= 14 and kept == received[-len(kept) :]
    assert log["log"][-1]["pre_tokens"] > line


@pytest.mark.system(11)
async def test_row_11_a_rolling_window_or_pruning_alone_asks_no_model() -> None:
    rolled = await play("preset: rolling")
    assert rolled.summaries == []
    texts = list_texts(rolled)
    assert texts[2] == "[Older messages were left out to fit the context window.]"
    pruned = await play("preset: prune_only", last=35)
    assert pruned.summaries == [] and PLACEHOLDER in list_texts(pruned)


@pytest.mark.system(12)
async def test_row_12_from_80_percent_on_40_percent_are_preserved() -> None:
    session, sent = make_row_session(90, style="talk"), list[Run]()
    async with (
        ToyUpstream(window=WINDOW) as toy,
        serve_toy(toy, make_settings(toy, output_tokens=OUTPUT, more=UTILIZATION)) as house,
    ):
        while not sent or sent[-1].plans == ["passthrough"]:
            sent.append(await house.play(session, SHAPE, len(sent), len(sent) + 1))
            # The summary is ready before the next request.
            await house.at_rest()
    # A quarter of a small window is reserved for the reply.
    lines = [ratio * WINDOW - 0.25 * WINDOW for ratio in (0.8, 0.95)]
    prompts = [run.outgoing[0].prompt_tokens for run in sent[:-1]]
    assert lines[0] - 1_500 < max(prompts) <= lines[1]
    messages, received = list_messages(sent[-1]), session.messages(len(sent) - 1)
    tail = [message for message in messages if message in received and message["role"] != "system"]
    share = sum(count_text(str(message["content"])) for message in tail) / WINDOW
    assert 0.35 < share < 0.45


@pytest.mark.system(13)
async def test_row_13_a_cheaper_model_summarizes_messages_cut_to_2000_characters() -> None:
    run = await play('preset: utilization, summary: {model_map: {"toy-*": toy-small}}')
    asked = run.summaries[0].request
    assert asked["model"] == "toy-small" and asked["max_tokens"] >= 2_000  # type: ignore[operator]
    messages: Any = asked["messages"]
    turns = str(messages[0]["content"]).split("\n\n[")
    assert len(messages) == 1 and max(map(len, turns)) < 2_600
    for number in range(1, 6):
        assert f"{number}." in turns[-1]


@pytest.mark.system(14)
async def test_row_14_hooks_hear_of_a_compaction_before_and_after_it_and_its_boundary_is_published() -> None:
    async with ToyUpstream(window=WINDOW) as toy, hooked() as before, hooked() as after:
        urls = [f'[{{url: "http://127.0.0.1:{hook.port}/hook"}}]' for hook in (before, after)]
        hooks = f"{ADMIN}hooks: {{pre_compact: {urls[0]}, session_start: {urls[1]}}}\n"
        async with serve_toy(toy, make_settings(toy, more=hooks)) as house, listening(house) as heard:
            await house.play(make_row_session(), SHAPE)
            await wait_until(lambda: bool(after.told) and heard.find(subtype="compact_boundary") is not None)
    assert before.told[0]["hook"] == "pre_compact" and before.told[0]["trigger"] == "auto"
    assert after.told[0]["hook"] == "session_start" and after.told[0]["source"] == "compact"
    boundary = (heard.find(subtype="compact_boundary") or {})["compact_metadata"]
    assert boundary["trigger"] == "auto" and boundary["pre_tokens"] > 10_000


@pytest.mark.system(15)
async def test_row_15_an_operator_compacts_by_hand_with_instructions() -> None:
    session = make_session(14, 3)
    async with ToyUpstream() as toy, serve_toy(toy, make_settings(toy, more=ADMIN)) as house:
        before = await house.play(session, last=12)
        path, body = f"/conversations/{before.conversation}/compact", b'{"instructions": "Keep row 15."}'
        status, told = await house.admin(path, "POST", body)
        await house.at_rest()
        after = await house.play(session, first=12, last=14)
    assert (status, told["begins"]) == (202, "now") and b"Keep row 15." in toy.summaries[0].body
    assert after.plans == ["pivot", "pivot"]


@pytest.mark.system(16)
async def test_row_16_a_beta_flag_opens_the_long_window_of_sonnet() -> None:
    session = replace(make_session(12, 3, "one_user", 20_000), model="claude-sonnet-4-5")
    shape = Shape(dialect=MESSAGES, max_tokens=1_000)
    plans = []
    for beta in ("context-1m-2025-08-07", "other-2025-01-01"):
        async with ToyUpstream(window=1_000_000) as toy:
            settings = make_settings(toy).replace('match: "toy-*", context: 1000000', 'match: "toy-*"')
            async with serve_toy(toy, settings) as house:
                pace = Pace(first=11, headers={"anthropic-beta": beta})
                run = await run_session(session, house.product.base_url, toy, shape, pace)
                assert run.failed == []
                plans.append(run.plans[0])
    assert plans == ["passthrough", "pivot"]


@pytest.mark.system(17)
async def test_row_17_long_old_results_are_cut_to_200_characters() -> None:
    run = await play("preset: utilization", make_row_session(30, turn_tokens=700), window=64_000)
    results = [str(m["content"]) for m in list_messages(run) if m["role"] == "tool"]
    cut = [text for text in results if " characters left out " in text or "[..." in text]
    assert cut and max(map(len, cut)) < 300
    assert any(len(text) > 1_000 for text in results)


@pytest.mark.system(18)
async def test_row_18_without_a_summary_the_history_is_truncated_and_estimates_are_within_20_percent() -> (
    None
):
    failed = RawAnswer(status=500, pieces=(b'{"error": {"message": "no"}}',))
    async with ToyUpstream(window=WINDOW) as toy, serve_toy(toy, make_settings(toy)) as house:
        toy.summary_failures = [failed] * 100
        run = await house.play(make_row_session(), SHAPE)
    assert run.failed == [] and run.refusals == [] and "digest" in run.plans
    sent = [read_sent_tokens(answer.header("x-gateway-tokens")) for answer in run.answers]
    true = [seen.prompt_tokens for seen in run.outgoing]
    assert all(abs(one - other) <= 0.2 * other for one, other in zip(sent[1:], true[1:], strict=True))


@pytest.mark.system(19)
async def test_row_19_pruning_at_the_start_protects_the_newest_40000_tokens_of_everything() -> None:
    run = await play("preset: rfc007", make_row_session(110), window=200_000)
    messages = list_messages(run)
    cleared = [at for at, message in enumerate(messages) if message.get("content") == PLACEHOLDER]
    behind = messages[max(cleared) + 1 :]
    texts = [json.dumps(message.get("tool_calls", "")) + str(message["content"]) for message in behind]
    assert sum(map(len, texts)) / 4 >= 38_000
    assert all(m.get("content") == PLACEHOLDER for m in messages[: max(cleared)] if m["role"] == "tool")


def edit(number: int, path: str, old: str, new: str) -> list[dict[str, Any]]:
    """As opencode's tool `edit` does."""
    function = {
        "name": "edit",
        "arguments": json.dumps({"filePath": path, "oldString": old, "newString": new}),
    }
    call = {"id": f"call_{number}", "type": "function", "function": function}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"call_{number}", "content": "Edit applied successfully."},
    ]


@pytest.mark.system(20)
async def test_row_20_a_session_has_file_changes_and_titles() -> None:
    messages = [{"role": "user", "content": "Fix the parser of dates"}, *edit(1, "/a.py", "1\n", "2\n3\n")]
    messages += [*edit(2, "/b.py", "x\n", "y\n"), *edit(3, "/a.py", "2\n", "4\n")]
    tools = [{"type": "function", "function": {"name": "edit", "parameters": {"type": "object"}}}]
    async with ToyUpstream(window=64_000) as toy, serve_toy(toy, make_settings(toy, more=ADMIN)) as house:
        for end in range(1, len(messages) + 1, 2):
            body = {"model": "toy-model", "messages": messages[:end], "tools": tools}
            answer = await house.post("/chat/completions", body)
            assert answer.status == 200
        await house.at_rest()
        path = f"/conversations/{answer.header('x-gateway-conversation')}"
        page, diff = await look(house, f"{path}/summary"), await look(house, f"{path}/diff")
    files = {each["path"]: (each["additions"], each["deletions"]) for each in page["files"]}
    assert files == {"/a.py": (3, 2), "/b.py": (1, 1)} and page["title"] == "Fix the parser of dates"
    assert [message["title"] for message in page["messages"]]
    changes = [(each["file"], each["additions"], each["deletions"]) for each in diff["files"]]
    assert changes == [("/a.py", 3, 2), ("/b.py", 1, 1)]


def test_each_of_the_twenty_systems_has_its_row() -> None:
    rows = re.findall(r"^async def test_row_(\d+)_", Path(__file__).read_text("utf-8"), re.MULTILINE)
    assert {*map(int, rows)} == {*range(1, 21)}


def read_sent_tokens(header: str | None) -> int:
    return int((header or "sent=0").rpartition("sent=")[2])
