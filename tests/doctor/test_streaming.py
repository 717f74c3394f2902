"""One request of one token: only if asked, and what its answer shows."""

import json
from pathlib import Path

from tests.toy.delivery import STREAM_HEADERS, RawAnswer
from tests.toy.doctoring import NO_STORE, find_bad, find_one, name_upstream, run_doctor
from tests.toy.upstream import ToyUpstream

LIST = ("GET", "/v1/models")
CHAT = ("POST", "/v1/chat/completions")
NAMES = RawAnswer(pieces=(b'{"data": [{"id": "toy-1"}, {"id": "toy-2"}]}',))


async def test_nothing_is_billed_unless_a_model_is_named(tmp_path: Path) -> None:
    async with ToyUpstream() as toy:
        toy.raw_answers[LIST] = NAMES
        await run_doctor(tmp_path, NO_STORE + name_upstream(toy.base_url), "--model", "toy-1")
        assert {seen.method for seen in toy.requests} == {"GET"}


async def test_a_stream_with_usage_says_what_it_cost(tmp_path: Path) -> None:
    async with ToyUpstream() as toy:
        toy.raw_answers[LIST] = NAMES
        text = (
            NO_STORE
            + name_upstream(toy.base_url)
            + "models: [{match: toy-1, price: {input: 2.5, output: 10}}]\n"
        )
        found = await run_doctor(tmp_path, text, "--ask", "toy-1")
        (asked,) = toy.chats
    assert find_bad(found, "streaming") == []
    (told,) = [finding.what for finding in found if finding.subject == "streaming"]
    assert "streams, with usage; this question cost" in told and "some $0.0000" in told
    body = json.loads(asked.body)
    assert body["max_tokens"] == 1 and body["stream"] and body["stream_options"] == {"include_usage": True}


async def test_a_stream_without_usage(tmp_path: Path) -> None:
    async with ToyUpstream() as toy:
        toy.raw_answers[LIST] = NAMES
        event = b'data: {"choices": [{"delta": {"content": "Hi"}}], "usage": null}\n\ndata: [DONE]\n\n'
        toy.raw_answers[CHAT] = RawAnswer(headers=STREAM_HEADERS, pieces=(event,))
        found = await run_doctor(tmp_path, NO_STORE + name_upstream(toy.base_url), "--ask", "toy-1")
    bad = find_one(found, "streaming")
    assert "streams without usage" in bad.what and "stream_options.include_usage" in (bad.fix or "")


async def test_an_answer_that_is_not_streamed(tmp_path: Path) -> None:
    async with ToyUpstream() as toy:
        toy.raw_answers[LIST] = NAMES
        toy.raw_answers[CHAT] = RawAnswer(pieces=(b'{"choices": []}',))
        found = await run_doctor(tmp_path, NO_STORE + name_upstream(toy.base_url), "--ask", "toy-1")
    assert "turn off buffering" in (find_one(found, "streaming").fix or "")


async def test_a_model_that_the_upstream_does_not_have(tmp_path: Path) -> None:
    async with ToyUpstream() as toy:
        toy.raw_answers[LIST] = NAMES
        toy.raw_answers[CHAT] = RawAnswer(status=404, pieces=(b'{"error": {"message": "no such model"}}',))
        found = await run_doctor(tmp_path, NO_STORE + name_upstream(toy.base_url), "--ask", "toy-l")
    bad = find_one(found, "streaming")
    assert bad.level == "problem" and "use a model that it lists, such as 'toy-" in (bad.fix or "")


async def test_a_quota_that_is_used_up(tmp_path: Path) -> None:
    async with ToyUpstream() as toy:
        toy.raw_answers[LIST] = NAMES
        toy.raw_answers[CHAT] = RawAnswer(status=429, pieces=(b"{}",))
        found = await run_doctor(tmp_path, NO_STORE + name_upstream(toy.base_url), "--ask", "toy-1")
    assert "raise the limits of this account" in (find_one(found, "streaming").fix or "")


async def test_newer_models_are_asked_with_the_newer_name_of_the_limit(tmp_path: Path) -> None:
    async with ToyUpstream() as toy:
        toy.raw_answers[LIST] = NAMES
        refusal = b'{"error": {"message": "Use max_completion_tokens instead."}}'
        toy.intercept = lambda seen: (
            RawAnswer(status=400, pieces=(refusal,)) if b'"max_tokens"' in seen.body else None
        )
        found = await run_doctor(tmp_path, NO_STORE + name_upstream(toy.base_url), "--ask", "toy-1")
        assert len(toy.chats) == 2
    assert find_bad(found, "streaming") == []
