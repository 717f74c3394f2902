"""The twenty systems of the source documents (docs/sources.md), each through a running gateway.

Each row is a session of a scripted agent in front of a strict upstream; what is asserted is what the upstream
was sent and what operators are told. The details of each system are tested elsewhere, beside their sources.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.reporting.events import CompactBoundary, Event, SessionCompacted, Subscription
from tests.hooks.listener import hook_settings, listening, responding
from tests.toy.admin_port import ADMIN, ask_to_compact, get, get_json
from tests.toy.agent import Session, Shape, Style, make_session
from tests.toy.counting import count_text
from tests.toy.delivery import RawAnswer
from tests.toy.gateway import make_settings, running_gateway
from tests.toy.messages import MESSAGES
from tests.toy.reply import Reply
from tests.toy.running import Pace, Run, run_session, wait_until
from tests.toy.sessions import SESSION, TASK
from tests.toy.sessions import play as play_editing
from tests.toy.upstream import ToyUpstream

WINDOW = 32_000
OUTPUT = 4_096
SHAPE = Shape(max_tokens=1_000)
RESUME = "Continue if you have next steps"
QUESTION = "What did we do so far?"
PLACEHOLDER = "[Old tool result content cleared]"


def make_row_session(turns: int = 60, style: Style = "many_users", turn_tokens: int = 900) -> Session:
    return make_session(turns, 5, style, turn_tokens)


def write_settings(toy: ToyUpstream, policy: str = "", more: str = "") -> str:
    """policy: the inside of a map of YAML, such as `preset: recent`."""
    return make_settings(toy, output_tokens=OUTPUT, more=f"{more}policies: {{default: {{{policy}}}}}\n")


async def play(
    policy: str, session: Session | None = None, window: int = WINDOW, last: int | None = None
) -> Run:
    """The whole session, or its first turns, under a policy."""
    async with ToyUpstream(window=window) as toy, running_gateway(write_settings(toy, policy)) as gateway:
        run = await run_session(session or make_row_session(), gateway.base_url, toy, SHAPE, Pace(last=last))
        await gateway.settle()
    assert run.failed == [] and run.refusals == []
    return run


def list_messages(run: Run, at: int = -1) -> list[dict[str, Any]]:
    """As a request of the conversation reached the upstream."""
    messages: Any = run.outgoing[at].request["messages"]
    return list(messages)


def list_texts(run: Run, at: int = -1) -> list[str]:
    return [str(message.get("content")) for message in list_messages(run, at)]


def find_first(run: Run, plan: str) -> int:
    """The place of the first response with this plan."""
    return next(at for at, found in enumerate(run.plans) if found == plan)


async def hear_until(heard: Subscription, kind: type[Event]) -> Event:
    """The next event of a kind."""
    while not isinstance(event := await heard.next(), kind):
        pass
    return event


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
        async with running_gateway(unlimited) as gateway:
            free = await run_session(make_row_session(), gateway.base_url, toy, SHAPE)
    assert set(free.plans) == {"passthrough"} and free.summaries == []


@pytest.mark.system(2)
async def test_row_2_a_queued_compaction_survives_a_restart(tmp_path: Path) -> None:
    session = make_session(150, 7, "one_user", 120)
    async with ToyUpstream(window=16_000) as toy:
        toy.summary_delivery = replace(toy.summary_delivery, never=True)
        settings = make_settings(toy, store=f"disk:{tmp_path}")
        turn = 0
        async with running_gateway(settings) as gateway:
            while not toy.summaries:
                await run_session(session, gateway.base_url, toy, SHAPE, Pace(first=turn, last=turn + 1))
                turn += 1
                await wait_until(lambda: gateway.app.is_idle or bool(toy.summaries))
        toy.summary_delivery = replace(toy.summary_delivery, never=False)
        asked = len(toy.summaries)
        async with running_gateway(settings) as gateway:
            await run_session(session, gateway.base_url, toy, SHAPE, Pace(first=turn, last=turn + 1))
            await gateway.settle()
            assert len(toy.summaries) == asked + 1
            # It is carried out once: the next request starts nothing.
            await run_session(session, gateway.base_url, toy, SHAPE, Pace(first=turn + 1, last=turn + 2))
            await gateway.settle()
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
    async with ToyUpstream(window=WINDOW) as toy, running_gateway(make_settings(toy)) as gateway:
        toy.summary_failures = [failed] * 2
        run = await run_session(session, gateway.base_url, toy, SHAPE)
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
    run = await play("preset: opencode", make_row_session(130, turn_tokens=1_200), window=300_000)
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
        for message in make_row_session(130, turn_tokens=1_200).messages(129)
        if "tool_call_id" in message
    }
    gone = [str(before[messages[at]["tool_call_id"]]["content"]) for at in cleared]
    assert sum(map(len, gone)) / 4 > 20_000
    assert run.summaries == []


@pytest.mark.system(7)
async def test_row_7_what_was_removed_can_be_read_as_it_was() -> None:
    session = make_row_session()
    async with ToyUpstream(window=WINDOW) as toy, running_gateway(make_settings(toy, more=ADMIN)) as gateway:
        run = await run_session(session, gateway.base_url, toy, SHAPE)
        await gateway.settle()
        path = f"/conversations/{run.conversation}/originals"
        listed = await get_json(gateway, path)
        originals = [each for taken in listed["taken"] for each in taken["messages"]]
        bodies = [(await get(gateway, f"{path}/{each['digest']}"))[1] for each in originals[:20]]
    raws = [
        json.dumps(message, ensure_ascii=False, separators=(",", ":")) for message in session.messages(59)[1:]
    ]
    assert [body.decode() for body in bodies] == [raws[each["position"]] for each in originals[:20]]


@pytest.mark.system(8)
async def test_row_8_a_hook_adds_context_and_each_compaction_is_published() -> None:
    async with (
        ToyUpstream(window=WINDOW) as toy,
        listening(responding(context=["Branch: row-eight"])) as hook,
        running_gateway(make_settings(toy, more=hook_settings(hook.port))) as gateway,
    ):
        with gateway.bus.subscribe() as heard:
            run = await run_session(make_row_session(), gateway.base_url, toy, SHAPE)
            await gateway.settle()
            event = await hear_until(heard, SessionCompacted)
    assert run.failed == [] and "Branch: row-eight" in run.summaries[0].body.decode()
    assert isinstance(event, SessionCompacted) and 0 < (event.post_tokens or 0) < event.pre_tokens


@pytest.mark.system(9)
async def test_row_9_the_environment_switches_compaction_and_pruning_off() -> None:
    env = {"GATEWAY_DISABLE_AUTOCOMPACT": "1", "GATEWAY_DISABLE_PRUNE": "1"}
    async with ToyUpstream(window=WINDOW) as toy:
        toy.window = 1_000_000
        settings = make_settings(toy).replace("context: 1000000", f"context: {WINDOW}")
        async with running_gateway(settings, env=env) as gateway:
            run = await run_session(make_row_session(), gateway.base_url, toy, SHAPE)
    assert run.failed == [] and set(run.plans) == {"passthrough"} and run.summaries == []
    compacted = await play("compaction: {auto: true, prune: false}, estimator: chars")
    assert "pivot" in compacted.plans and PLACEHOLDER not in str(list_texts(compacted))


@pytest.mark.system(10)
async def test_row_10_at_90_percent_all_but_ten_messages_are_compacted_and_logged() -> None:
    more = f"{ADMIN}policies: {{default: {{preset: recent}}}}\n"
    async with ToyUpstream(window=WINDOW) as toy, running_gateway(make_settings(toy, more=more)) as gateway:
        run = await run_session(make_row_session(), gateway.base_url, toy, SHAPE)
        await gateway.settle()
        log = await get_json(gateway, f"/conversations/{run.conversation}/log")
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


@pytest.mark.system(11)
async def test_row_11_an_external_memory_gives_back_what_the_summary_left_out() -> None:
    session = make_row_session()
    async with ToyUpstream(window=WINDOW) as toy, running_gateway(make_settings(toy, more=ADMIN)) as gateway:
        toy.summary = lambda _: Reply(text="The storage layer is being ported; work goes on. " * 20)
        run = await run_session(session, gateway.base_url, toy, SHAPE)
        await gateway.settle()
        forgotten = [fact.token for fact in session.facts if fact.token not in run.outgoing[-1].body.decode()]
        found = [
            await get_json(gateway, f"/conversations/{run.conversation}/search?q={token}")
            for token in forgotten
        ]
    assert run.failed == [] and forgotten
    for token, page in zip(forgotten, found, strict=True):
        assert token in page["found"][0]["text"]


@pytest.mark.system(12)
async def test_row_12_from_80_percent_on_40_percent_are_preserved() -> None:
    session, sent = make_row_session(90, style="talk"), list[Run]()
    async with (
        ToyUpstream(window=WINDOW) as toy,
        running_gateway(write_settings(toy, "preset: utilization")) as gateway,
    ):
        while not sent or sent[-1].plans == ["passthrough"]:
            pace = Pace(first=len(sent), last=len(sent) + 1)
            sent.append(await run_session(session, gateway.base_url, toy, SHAPE, pace))
            # The summary is ready before the next request.
            await gateway.settle()
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
    async with (
        ToyUpstream(window=WINDOW) as toy,
        listening(responding()) as before,
        listening(responding()) as after,
    ):
        urls = [f'[{{url: "http://127.0.0.1:{hook.port}/hook"}}]' for hook in (before, after)]
        hooks = f"hooks: {{pre_compact: {urls[0]}, session_start: {urls[1]}}}\n"
        async with running_gateway(make_settings(toy, more=hooks)) as gateway:
            with gateway.bus.subscribe() as heard:
                await run_session(make_row_session(), gateway.base_url, toy, SHAPE)
                await gateway.settle()
                boundary = await hear_until(heard, CompactBoundary)
            await wait_until(lambda: bool(after.heard))
    assert before.heard[0]["hook"] == "pre_compact" and before.heard[0]["trigger"] == "auto"
    assert after.heard[0]["hook"] == "session_start" and after.heard[0]["source"] == "compact"
    assert isinstance(boundary, CompactBoundary)
    assert boundary.compact_metadata.trigger == "auto" and boundary.compact_metadata.pre_tokens > 10_000


@pytest.mark.system(15)
async def test_row_15_an_operator_compacts_by_hand_with_instructions() -> None:
    session = make_session(14, 3)
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=ADMIN)) as gateway:
        before = await run_session(session, gateway.base_url, toy, pace=Pace(last=12))
        status, told = await ask_to_compact(gateway, before.conversation, b'{"instructions": "Keep row 15."}')
        await gateway.settle()
        after = await run_session(session, gateway.base_url, toy, pace=Pace(first=12, last=14))
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
            async with running_gateway(settings) as gateway:
                pace = Pace(first=11, headers={"anthropic-beta": beta})
                run = await run_session(session, gateway.base_url, toy, shape, pace)
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
    async with ToyUpstream(window=WINDOW) as toy, running_gateway(make_settings(toy)) as gateway:
        toy.summary_failures = [failed] * 100
        run = await run_session(make_row_session(), gateway.base_url, toy, SHAPE)
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


@pytest.mark.system(20)
async def test_row_20_a_session_has_file_changes_and_titles() -> None:
    async with ToyUpstream(window=64_000) as toy, running_gateway(make_settings(toy, more=ADMIN)) as gateway:
        identity = await play_editing(gateway, SESSION)
        page = await get_json(gateway, f"/conversations/{identity}/summary")
        diff = await get_json(gateway, f"/conversations/{identity}/diff")
    files = {each["path"]: (each["additions"], each["deletions"]) for each in page["files"]}
    assert files == {"/a.py": (3, 2), "/b.py": (1, 1)} and page["title"] == TASK
    assert [message["title"] for message in page["messages"]]
    assert [(each["file"], each["additions"], each["deletions"]) for each in diff["files"]] == [
        ("/a.py", 3, 2),
        ("/b.py", 1, 1),
    ]


def read_sent_tokens(header: str | None) -> int:
    return int((header or "sent=0").rpartition("sent=")[2])
