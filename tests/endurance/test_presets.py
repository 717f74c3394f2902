"""Every preset carries a scripted agent past its window, in front of a strict upstream."""

import json

import pytest

from tests.sources.test_presets import PRESETS
from tests.toy.agent import Shape, make_session
from tests.toy.delivery import RawAnswer
from tests.toy.gateway import make_settings, running_gateway
from tests.toy.running import Pace, Run, run_session
from tests.toy.upstream import Seen, ToyUpstream

WINDOW = 32_000
SHAPE = Shape(max_tokens=1_000)
# Without summaries it cannot stay inside the window.
STAYING = [preset for preset in PRESETS if preset != "prune_only"]


async def play(toy: ToyUpstream, preset: str, keys: str = "", pace: Pace | None = None) -> Run:
    session = make_session(60, 5, "many_users", 900)
    more = f"policies: {{default: {{preset: {preset}{keys}}}}}\n"
    async with toy, running_gateway(make_settings(toy, output_tokens=4_096, more=more)) as gateway:
        return await run_session(session, gateway.base_url, toy, SHAPE, pace or Pace())


@pytest.mark.parametrize("preset", STAYING)
async def test_a_preset_stays_inside_the_window(preset: str) -> None:
    run = await play(ToyUpstream(window=WINDOW), preset)
    assert run.failed == []
    assert run.refusals == []
    assert bool(run.summaries) == (preset != "rolling")


@pytest.mark.system(11)
async def test_a_policy_that_only_prunes_asks_no_model() -> None:
    run = await play(ToyUpstream(window=WINDOW), "prune_only", pace=Pace(last=35))
    assert run.failed == []
    assert run.summaries == []
    assert "[Old tool result content cleared]" in run.outgoing[-1].body.decode()


@pytest.mark.system(11)
async def test_a_rolling_window_keeps_the_task_and_notes_the_missing_messages() -> None:
    run = await play(ToyUpstream(window=WINDOW), "rolling")
    messages = run.outgoing[-1].request["messages"]
    assert isinstance(messages, list)
    assert messages[1] == json.loads(run.outgoing[0].body)["messages"][1]
    assert messages[2]["content"] == "[Older messages were left out to fit the context window.]"
    # It does not roll on at each turn: that would break the cached prefix each time.
    starts = [json.dumps(seen.request["messages"][:4]) for seen in run.outgoing]  # type: ignore[index]
    assert len(set(starts[2:])) <= 4


async def test_a_policy_may_ask_for_digests_only() -> None:
    run = await play(ToyUpstream(window=WINDOW), "adaptive", ", summary: {method: digest}")
    assert (run.failed, run.refusals, run.summaries) == ([], [], [])
    assert run.answers[-1].header("x-gateway-plan") == "digest"


async def test_a_model_may_have_a_policy_of_its_own() -> None:
    toy = ToyUpstream(window=WINDOW)
    session = make_session(40, 5, "one_user", 900)
    async with toy:
        settings = make_settings(toy, more="policies: {small: {preset: rolling}}\n")
        settings = settings.replace('match: "toy-*"', 'match: "toy-*", policy: small')
        async with running_gateway(settings) as gateway:
            run = await run_session(session, gateway.base_url, toy, SHAPE)
    assert (run.failed, run.summaries) == ([], [])


@pytest.mark.system(13)
async def test_a_cheaper_model_summarizes_if_the_upstream_has_it() -> None:
    keys = ', summary: {model_map: {"toy-*": toy-small}}'
    run = await play(ToyUpstream(window=WINDOW), "utilization", keys)
    assert {seen.request["model"] for seen in run.summaries} == {"toy-small"}
    assert run.failed == []
    asked = run.summaries[0].request["messages"]
    # The document's prompt: one user message, no system prompt.
    assert isinstance(asked, list) and [message["role"] for message in asked] == ["user"]


@pytest.mark.system(13)
@pytest.mark.parametrize("status", [404, 400])
async def test_if_the_upstream_lacks_the_cheaper_model_the_conversations_model_summarizes_from_then_on(
    status: int,
) -> None:
    error = {"error": {"message": "The model `toy-small` does not exist", "code": "model_not_found"}}

    def refuse(seen: Seen) -> RawAnswer | None:
        is_small = seen.request.get("model") == "toy-small"
        return RawAnswer(status=status, pieces=(json.dumps(error).encode(),)) if is_small else None

    toy = ToyUpstream(window=WINDOW)
    toy.intercept = refuse
    run = await play(toy, "utilization", ', summary: {model_map: {"toy-*": toy-small}}')
    assert run.failed == []
    models = [seen.request["model"] for seen in run.summaries]
    assert models[0] == "toy-small" and len(models) > 2
    assert "toy-small" not in models[1:]
