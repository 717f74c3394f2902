"""Recordings through the real plan."""

from pathlib import Path

import pytest

from gateway.replay.offline import SUMMARY_TOKENS
from tests.replay.samples import MODEL, make_messages, make_transcript, play, write_json, write_lines


def test_a_session_that_outgrows_its_window_is_compacted_in_time(tmp_path: Path) -> None:
    path = write_json(tmp_path / "t.json", make_transcript(60))
    runs = play([path], tmp_path)[0].played[0].requests
    made = [compaction for run in runs for compaction in run.compactions]
    assert len(made) >= 2
    assert all(compaction.failure is None for compaction in made)
    assert max(run.received for run in runs) > 16_000
    assert max(run.sent for run in runs) < 16_000
    assert {run.plan for run in runs} >= {"passthrough", "pivot"}
    assert sum(run.change == "compaction" for run in runs) == len({run.covers for run in runs} - {0})
    assert (runs[0].window, runs[0].hard) == (16_000, runs[1].hard)


def test_each_summary_is_a_call_of_the_stated_size(tmp_path: Path) -> None:
    path, settings = (
        write_json(tmp_path / "t.json", make_transcript(60)),
        "policies: {default: {economy: 0}}\n",
    )
    runs = play([path], tmp_path, settings=settings)[0].played[0].requests
    calls = [call for run in runs for call in run.calls]
    assert len(calls) >= 2
    assert all(0 < call.output_tokens <= SUMMARY_TOKENS and call.prompt_tokens > 1_000 for call in calls)
    assert {call.model for call in calls} == {MODEL}


_PRICES = {
    "automatic": "{input: 1, cached: 0.1, output: 8}",
    "marked": "{input: 1, cached: 0.1, write: 1.25, output: 8}",
    "none": "{input: 1, output: 8}",
}


@pytest.mark.parametrize("cache", _PRICES)
def test_a_summary_rides_on_what_the_provider_has_read(tmp_path: Path, cache: str) -> None:
    messages = make_messages(60)
    mark = {"type": "text", "text": "Work.", "cache_control": {"type": "ephemeral"}}
    for message in messages:
        if message["role"] == "tool":
            message["content"] = [{**mark, "text": message["content"]}]
    path = write_json(tmp_path / "t.json", make_transcript(0, messages=messages))
    settings = (
        f'models: [{{match: "*", price: {_PRICES[cache]}}}]\n'
        "policies: {default: {estimator: chars, economy: 0}}\n"
    )
    runs = play([path], tmp_path, settings=settings)[0].played[0].requests
    calls = [(run, call) for run in runs for call in run.calls]
    assert len(calls) >= 2
    for run, call in calls:
        fresh = call.prompt_tokens - call.cached_tokens - call.written_tokens
        assert (call.cached_tokens > 0) == (cache != "none")
        assert cache == "none" or call.prompt_tokens > run.sent
        assert cache == "none" or fresh < 0.2 * call.prompt_tokens


def test_recordings_do_not_learn_from_each_other(tmp_path: Path) -> None:
    one = write_json(tmp_path / "one.json", make_transcript(40))
    two = write_json(tmp_path / "two.json", make_transcript(40))
    alone = play([two], tmp_path)[0].played[0].requests
    after = play([one, two], tmp_path)[1].played[0].requests
    ids = {run.conversation for run in alone} | {run.conversation for run in after}
    assert len(ids) == 2, "each recording is a tenant of its own"
    assert [(run.sent, run.plan, run.covers) for run in alone] == [
        (run.sent, run.plan, run.covers) for run in after
    ]


def test_policies_are_played_side_by_side_as_each_would_be_alone(tmp_path: Path) -> None:
    path = write_json(tmp_path / "t.json", make_transcript(40))
    both = play([path], tmp_path, policies=["default", "small"])[0].played
    alone = play([path], tmp_path, policies=["small"])[0].played[0]
    assert [played.policy for played in both] == ["default", "small"]
    assert [run.sent for run in both[1].requests] == [run.sent for run in alone.requests]
    assert [run.sent for run in both[0].requests] != [run.sent for run in both[1].requests]


def test_what_a_gateway_would_relay_unread_is_counted(tmp_path: Path) -> None:
    body = {"model": MODEL, "messages": make_messages(1)}
    lines = [
        {"path": "/v1/chat/completions", "body": body},
        {
            "path": "/v1/responses",
            "body": {"model": MODEL, "input": [{"role": "user"}], "previous_response_id": "r"},
        },
        {"path": "/v1/chat/completions", "body": body | {"messages": [{"content": "no role"}]}},
    ]
    played = play([write_lines(tmp_path / "log.jsonl", lines)], tmp_path)[0].played[0]
    assert (len(played.requests), played.unread) == (1, 2)


def test_a_request_that_failed_leaves_no_usage_behind(tmp_path: Path) -> None:
    body = {"model": MODEL, "messages": make_messages(1)}
    lines = [{"body": body, "status": 500}, {"body": body}]
    played = play([write_lines(tmp_path / "log.jsonl", lines)], tmp_path)[0].played[0]
    assert (len(played.requests), played.failed) == (2, 1)


def test_a_command_is_answered_without_the_upstream(tmp_path: Path) -> None:
    messages = [
        *make_messages(20),
        {"role": "assistant", "content": "done"},
        {"role": "user", "content": "/compact"},
    ]
    settings = "policies: {default: {estimator: chars, commands: true}}\n"
    lines = [{"model": MODEL, "messages": messages[:-2]}, {"model": MODEL, "messages": messages}]
    path = write_lines(tmp_path / "log.jsonl", lines)
    assert len(play([path], tmp_path, settings=settings, window=200_000)[0].played[0].requests) == 1
    assert len(play([path], tmp_path, window=200_000)[0].played[0].requests) == 2
