import json
from dataclasses import replace

import pytest

from gateway.compaction.summary_client import (
    PromptRefused,
    SummaryCall,
    SummaryModels,
    SummaryReply,
)
from gateway.conversations.turn import Turn
from gateway.core.errors import ModelUnknown, UpstreamFailed
from gateway.core.policy import Policy, Summary
from gateway.core.sizing.usage import Usage
from gateway.limits.book import ServedModel
from gateway.tenants import Tenant
from gateway.wire.formats.chat import CHAT
from gateway.wire.wire_format import SummaryRequest
from tests.builders.chat import make_turn, read, render
from tests.builders.compaction import ModelReply, compaction_parts, refuse, say
from tests.store.clock import Clock

_MAPPED = replace(Policy(), summary=Summary(model_map=(("toy", "small"),)))

SMALL = ServedModel("t", "a", "small")


def turn(policy: Policy = _MAPPED, tenant: str = "t") -> Turn:
    received = read(render([{"role": "user", "content": "Hi."}]))
    return make_turn(received, policy=policy, tenant=Tenant(tenant, None, "default"))


def test_an_unknown_model_is_remembered_for_the_tenant_and_the_upstream() -> None:
    models = SummaryModels(Clock())
    assert models.choose(turn(), "a") == SMALL
    assert models.note_unknown(turn(), SMALL)
    assert models.choose(turn(), "a") == SMALL._replace(model="toy")
    assert models.choose(turn(), "b") == SMALL._replace(upstream="b")
    assert models.choose(turn(tenant="other"), "a") == SMALL._replace(owner="other")


def test_an_unknown_model_is_asked_again_after_an_hour() -> None:
    clock = Clock()
    models = SummaryModels(clock)
    models.note_unknown(turn(), SMALL)
    clock.now += 3_599.0
    assert models.choose(turn(), "a").model == "toy"
    clock.now += 1.0
    assert models.choose(turn(), "a").model == "small"


def test_the_policys_own_model_and_the_conversations_model_are_never_replaced() -> None:
    models = SummaryModels(Clock())
    named = replace(Policy(), summary=Summary(model="mine"))
    assert not models.note_unknown(turn(named), SMALL._replace(model="mine"))
    assert models.choose(turn(named), "a").model == "mine"
    assert not models.note_unknown(turn(), SMALL._replace(model="toy"))


def test_only_the_newest_unknown_models_are_remembered() -> None:
    models = SummaryModels(Clock())
    models.note_unknown(turn(), SMALL)
    for at in range(10_000):
        models.note_unknown(turn(), SMALL._replace(model=f"m{at}"))
    assert models.choose(turn(), "a").model == "small"


# Calls


_CALL = SummaryCall(
    format=CHAT,
    url="http://up.example/v1/chat/completions",
    headers=(("authorization", "Bearer k"), ("content-length", "9")),
    request=SummaryRequest(
        model="toy",
        system="Be brief.",
        parts=("History.", "Summarize."),
        output_key="max_tokens",
        cap=100,
        room=900,
    ),
    timeout_seconds=5.0,
)


async def ask(*replies: ModelReply | Exception) -> SummaryReply:
    async with compaction_parts(*replies) as parts:
        return await parts.client.ask(_CALL)


async def test_a_call_has_the_callers_headers_and_asks_for_a_stream_without_tools() -> None:
    async with compaction_parts() as parts:
        await parts.client.ask(_CALL)
        (request,), (body,) = parts.model.requests, parts.model.calls
    assert (str(request.url), request.headers["authorization"]) == (_CALL.url, "Bearer k")
    assert request.headers["content-length"] == str(len(request.content))
    assert body["stream"] is True and "tools" not in body
    assert [message["role"] for message in body["messages"]] == ["system", "user"]


async def test_a_whole_reply_is_read_with_its_usage() -> None:
    reply = await ask(say("A summary.", prompt_tokens=70, completion_tokens=5))
    assert (reply.candidate.text, reply.candidate.finish_reason) == ("A summary.", "stop")
    assert (reply.candidate.has_tool_calls, reply.candidate.has_error) == (False, False)
    assert reply.usage == Usage(70, 5)


async def test_a_reply_without_usage_has_no_number_of_tokens() -> None:
    assert (await ask(say("A summary."))).usage is None


async def test_a_stream_is_read_to_its_end() -> None:
    deltas = [{"content": "A "}, {"content": "summary."}]
    events = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    stream = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    whole = await ask(ModelReply(200, stream + b"data: [DONE]\n\n"))
    assert (whole.candidate.text, whole.candidate.has_error) == ("A summary.", False)


async def test_a_stream_that_breaks_off_is_an_error() -> None:
    event = {"choices": [{"index": 0, "delta": {"content": "A "}}]}
    cut = await ask(ModelReply(200, b"data: " + json.dumps(event).encode() + b"\n\n"))
    assert cut.candidate.has_error


async def test_a_model_in_a_loop_is_not_read_to_its_end() -> None:
    event = {"choices": [{"index": 0, "delta": {"content": "x" * 1_000_001}}]}
    reply = await ask(ModelReply(200, b"data: " + json.dumps(event).encode() + b"\n\n"))
    assert reply.candidate.has_error


async def test_of_a_huge_error_the_beginning_is_read() -> None:
    message = b"This model's maximum context length is 4096 tokens. "
    with pytest.raises(PromptRefused) as caught:
        await ask(ModelReply(400, message + b" " * (1 << 17)))
    assert caught.value.overflow is not None and caught.value.overflow.context == 4_096


@pytest.mark.parametrize("status", [401, 429, 500, 503])
async def test_a_failure_is_named_by_its_status_alone(status: int) -> None:
    with pytest.raises(UpstreamFailed) as caught:
        await ask(refuse(status, "secret words of a user"))
    assert str(caught.value) == f"status {status}"


async def test_a_prompt_that_was_too_long_tells_the_window() -> None:
    with pytest.raises(PromptRefused) as caught:
        await ask(refuse(400, "This model's maximum context length is 4096 tokens."))
    assert caught.value.overflow is not None and caught.value.overflow.context == 4_096


async def test_another_refusal_tells_no_window() -> None:
    with pytest.raises(PromptRefused) as caught:
        await ask(refuse(400, "temperature must be 1"))
    assert caught.value.overflow is None


async def test_a_model_that_is_not_served_is_told_apart() -> None:
    body = {"error": {"message": "The model `toy` does not exist", "code": "model_not_found"}}
    with pytest.raises(ModelUnknown):
        await ask(ModelReply(404, body))


async def test_a_connection_that_fails_is_named_by_its_address_and_reason() -> None:
    with pytest.raises(UpstreamFailed) as caught:
        await ask(ConnectionResetError(104, "10.0.0.1 is gone"))
    assert str(caught.value) == "http://up.example reset the connection before it answered"


async def test_a_body_that_rides_leaves_as_it_is_and_may_be_answered_either_way() -> None:
    async with compaction_parts(say("We looked.")) as parts:
        await parts.client.ask(replace(_CALL, riding=b'{"messages": [1.10]}'))
        (request,) = parts.model.requests
    assert request.content == b'{"messages": [1.10]}'
    assert request.headers["accept"] == "text/event-stream, application/json"
