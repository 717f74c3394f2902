"""Every preset carries a scripted agent past its window, and keeps the promises of its document."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from tests.toy.agent import Session, Shape, make_session
from tests.toy.checks import Promise, check_conversation
from tests.toy.delivery import RawAnswer
from tests.toy.dialect import Dialect
from tests.toy.dialects import DIALECTS
from tests.toy.house import ADMIN, House, make_settings
from tests.toy.messages import Messages
from tests.toy.product import serve
from tests.toy.responses import Responses
from tests.toy.running import Run
from tests.toy.upstream import Seen, ToyUpstream

pytestmark = pytest.mark.asyncio(loop_scope="module")

WINDOW = 32_000
PRESETS = (
    "adaptive",
    "opencode",
    "opencode-current",
    "recent",
    "utilization",
    "rfc007",
    "rolling",
    "prune_only",
)
# Without summaries it cannot stay inside the window.
STAYING = [preset for preset in PRESETS if preset != "prune_only"]
# A model for each policy. `toy-small` is a cheaper one that summarizes.
_POLICIES = {
    **{preset: f"preset: {preset}" for preset in PRESETS},
    "digests": "preset: adaptive, summary: {method: digest}",
    "mapped": 'preset: utilization, summary: {model_map: {"toy-mapped": toy-small}}',
    "lacking": 'preset: utilization, summary: {model_map: {"toy-lacking": toy-absent}}',
    "words": "preset: adaptive, economy: 0, compaction: {prune: false}, summary: {instructions: Keep ports.}",
    "pruned": (
        "preset: adaptive, pruning: {eager: true, protect_tokens: 4000, minimum_tokens: 2000,"
        ' protected_tools: [search, read_file], placeholder: "[gone]"}'
    ),
    "manual": "preset: adaptive, compaction: {auto: false, prune: false}",
    "unpruned": "preset: prune_only, compaction: {prune: false}",
}
_MORE = "policies:\n" + "".join(f"  {name}: {{{keys}}}\n" for name, keys in _POLICIES.items())
SHAPE = Shape(max_tokens=1_000)
_DIGEST = "This digest was made without a model."


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_house() -> AsyncIterator[House]:
    """One product whose models have a policy each."""
    free = "price: {input: 0, output: 0}"
    rows = [
        f'  - {{match: "toy-{name}", policy: {name}, context: {WINDOW}, output: 4096, {free}}}\n'
        for name in _POLICIES
    ]
    async with ToyUpstream(window=WINDOW) as toy:
        settings = make_settings(toy, more=ADMIN + _MORE).replace("models:\n", "models:\n" + "".join(rows))
        async with serve(settings) as product:
            yield House(toy, product, "sk-nobody")


def session_of(policy: str, turns: int = 60) -> Session:
    return replace(make_session(turns, 5, "many_users", 900, facts="all"), model=f"toy-{policy}")


def read_array(seen: Seen) -> list[Any]:
    messages = seen.request["messages"]
    assert isinstance(messages, list)
    return messages


def texts_of(seen: Seen) -> list[str]:
    return [str(message.get("content")) for message in read_array(seen)]


@pytest.mark.parametrize("preset", STAYING)
async def test_a_preset_stays_inside_the_window(house: House, preset: str) -> None:
    run = await house.play(session_of(preset), SHAPE)
    assert run.failed == []
    assert run.refusals == []
    assert bool(run.summaries) == (preset != "rolling")
    assert all(seen.prompt_tokens + 1_000 <= WINDOW for seen in run.outgoing)


@pytest.mark.parametrize("dialect", [Messages(), Responses()], ids=["messages", "responses"])
@pytest.mark.parametrize("preset", ["opencode", "utilization"])
async def test_so_it_does_in_the_other_formats(
    house: House, preset: str, dialect: Messages | Responses
) -> None:
    run = await house.play(session_of(preset), replace(SHAPE, dialect=dialect, stream=True))
    assert run.failed == [] and run.refusals == [] and run.summaries


async def test_the_default_keeps_every_promise(house: House) -> None:
    session = session_of("adaptive")
    run = await house.play(session, SHAPE)
    check_conversation(session, SHAPE, run, promise=Promise(window=WINDOW, protect_tokens=5_000))


@pytest.mark.system(11)
async def test_a_policy_that_only_prunes_asks_no_model(house: House) -> None:
    session = session_of("prune_only")
    run = await house.play(session, SHAPE, last=35)
    sent = check_conversation(session, SHAPE, run, promise=Promise(facts=("user", "assistant")))
    assert run.summaries == [] and sent[-1].shortened


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.path)
async def test_pruning_spares_protected_tools_and_the_newest_results_and_says_what_it_is_told(
    house: House, dialect: Dialect
) -> None:
    """In Messages the results of several tools stand in one message."""
    session, shape = session_of("pruned"), replace(SHAPE, dialect=dialect)
    run = await house.play(session, shape)
    promise = Promise(
        placeholder="[gone]", protected=("search", "read_file"), protect_tokens=4_000, window=WINDOW, budget=9
    )
    sent = check_conversation(session, shape, run, promise=promise)
    assert any(len(each.shortened) > 3 for each in sent)
    assert "pruned" in run.plans and "pivot+pruned" in run.plans


async def test_without_pruning_or_compaction_everything_passes_until_upstream_refuses(house: House) -> None:
    for policy in ("manual", "unpruned"):
        session = session_of(policy)
        run = await house.play(session, SHAPE)
        assert set(run.plans) == {"passthrough"} and run.summaries == []
        for turn, tries in enumerate(run.sent):
            assert len(tries) == 1 and read_array(tries[0]) == session.messages(turn)
        assert run.answers[-1].status == 400 and b"context_length_exceeded" in run.answers[-1].body


@pytest.mark.system(11)
async def test_a_rolling_window_keeps_the_task_and_notes_the_missing_messages(house: House) -> None:
    session = session_of("rolling")
    run = await house.play(session, SHAPE)
    messages = read_array(run.outgoing[-1])
    assert messages[1] == session.opening[0]
    assert messages[2]["content"] == "[Older messages were left out to fit the context window.]"
    # It does not roll on at each turn: that would break the cached prefix each time.
    starts = [json.dumps(read_array(seen)[:4]) for seen in run.outgoing]
    assert len(set(starts[2:])) <= 4


async def test_a_policy_may_ask_for_digests_only(house: House) -> None:
    run = await house.play(session_of("digests"), SHAPE)
    assert (run.failed, run.refusals, run.summaries) == ([], [], [])
    assert run.answers[-1].header("x-gateway-plan") == "digest"


async def test_a_digest_on_a_digest_is_made_of_the_messages_that_both_stand_for(house: House) -> None:
    run = await house.play(session_of("digests"), SHAPE)
    told = list(dict.fromkeys(text for seen in run.outgoing for text in texts_of(seen) if _DIGEST in text))
    assert len(told) > 1
    for text in told:
        assert text.count(_DIGEST) == 1 and "## Earlier summary" not in text
    # What the user asked behind the opening stands in each of them.
    (first, *_), (last, *_) = (
        text.partition("## What the user asked\n- ")[2].splitlines() for text in (told[0], told[-1])
    )
    assert first[:40] == last[:40]


@pytest.mark.system(3)
async def test_the_summary_of_opencode_answers_its_question_and_the_model_is_told_to_go_on(
    house: House,
) -> None:
    session = session_of("opencode")
    run = await house.play(session, SHAPE)
    first = run.plans.index("pivot")
    messages = read_array(run.outgoing[first])
    assert [message["role"] for message in messages[:3]] == ["system", "user", "assistant"]
    assert messages[1]["content"] == "What did we do so far?"
    assert any("Continue if you have next steps" in text for text in texts_of(run.outgoing[first]))
    asked = run.summaries[0].request
    assert "tools" not in asked and "Provide a detailed prompt for continuing" in str(asked["messages"])


@pytest.mark.system(10)
async def test_the_recent_preset_keeps_the_last_ten_messages(house: House) -> None:
    session = session_of("recent")
    run = await house.play(session, SHAPE)
    first = next(at for at, plan in enumerate(run.plans) if plan == "pivot")
    # 90 % of all: nothing is compacted before.
    assert run.outgoing[first - 1].prompt_tokens > 0.75 * WINDOW
    own, sent = session.messages(first), read_array(run.outgoing[first])
    kept = 0
    while kept < len(sent) and own[-1 - kept] == sent[-1 - kept]:
        kept += 1
    assert 9 <= kept <= 14


@pytest.mark.system(13)
async def test_a_cheaper_model_summarizes_if_the_upstream_has_it(house: House) -> None:
    run = await house.play(session_of("mapped"), SHAPE)
    assert {seen.request["model"] for seen in run.summaries} == {"toy-small"}
    assert run.failed == []
    # The document's prompt: one user message, no system prompt.
    assert [message["role"] for message in read_array(run.summaries[0])] == ["user"]


@pytest.mark.system(13)
@pytest.mark.parametrize("status", [404, 400])
async def test_if_the_upstream_lacks_the_cheaper_model_the_conversations_model_summarizes_from_then_on(
    house: House, status: int
) -> None:
    error = {"error": {"message": "The model `toy-absent` does not exist", "code": "model_not_found"}}

    def refuse(seen: Seen) -> RawAnswer | None:
        is_absent = seen.request.get("model") == "toy-absent"
        return RawAnswer(status=status, pieces=(json.dumps(error).encode(),)) if is_absent else None

    house.toy.intercept = refuse
    run: Run = await house.play(session_of("lacking"), SHAPE)
    assert run.failed == []
    models = [seen.request["model"] for seen in run.summaries]
    assert "toy-lacking" in models and "toy-absent" not in models[1:]


@pytest.mark.system(15)
async def test_instructions_of_the_policy_reach_the_summary(house: House) -> None:
    run = await house.play(session_of("words"), SHAPE)
    assert run.summaries and all(b"Keep ports." in seen.body for seen in run.summaries)
    assert not any(b"Keep ports." in seen.body for seen in run.outgoing)
