"""Sizes of requests, and what a cache can reuse of them."""

import json
from pathlib import Path

import pytest

from gateway.replay.measuring import TokenRatio
from tests.replay.samples import MODEL, make_messages, make_transcript, play, write_json, write_lines


def test_without_recorded_usage_a_growing_history_is_reused_as_far_as_it_went(tmp_path: Path) -> None:
    path = write_json(tmp_path / "t.json", make_transcript(3, chars=400))
    runs = play([path], tmp_path)[0].played[0].requests
    assert [run.received_cached for run in runs] == [0, *(run.received for run in runs[:-1])]
    assert [run.sent for run in runs] == [run.received for run in runs]
    assert not any(run.is_usage_recorded for run in runs)


def test_recorded_usage_is_the_size_of_what_came(tmp_path: Path) -> None:
    steps = [{"i": 1, "prompt_tokens": 5_000}, {"i": 3, "prompt_tokens": 5_500}]
    path = write_json(tmp_path / "t.json", make_transcript(2, usage_by_assistant=steps))
    runs = play([path], tmp_path)[0].played[0].requests
    assert [run.received for run in runs[:2]] == [5_000, 5_500]
    assert [run.is_usage_recorded for run in runs] == [True, True, False]


def test_what_a_summary_takes_away_is_scaled_to_the_recorded_usage(tmp_path: Path) -> None:
    turns = 40
    plain = write_json(tmp_path / "plain.json", make_transcript(turns))
    counted = play([plain], tmp_path)[0].played[0].requests
    # A tokenizer that counts half as much again, and a system prompt that was not recorded.
    steps = [
        {"i": 1 + 2 * at, "prompt_tokens": 1_000 + run.received * 3 // 2}
        for at, run in enumerate(counted[:-1])
    ]
    path = write_json(tmp_path / "usage.json", make_transcript(turns, usage_by_assistant=steps))
    runs = play([path], tmp_path)[0].played[0].requests[:-1]
    folded = next(run for run in runs if run.covers)
    kept = runs[-1]
    assert folded.sent < folded.received / 2
    assert kept.sent < kept.received / 2
    assert min(run.sent for run in runs[1:] if run.covers) > 1_000


def test_a_client_that_changes_its_history_breaks_the_cache_itself(tmp_path: Path) -> None:
    first, second, third = make_messages(1, 400), make_messages(2, 400), make_messages(3, 400)
    third[4]["content"] = "cleared"
    bodies = (first, second, third, [*third, *third[-2:]])
    lines = [{"model": MODEL, "messages": messages} for messages in bodies]
    runs = play([write_lines(tmp_path / "log.jsonl", lines)], tmp_path)[0].played[0].requests
    assert [(run.change, run.is_rewritten) for run in runs[1:3]] == [(None, False), ("history", True)]
    assert 0 < runs[2].received_cached < runs[1].received
    assert runs[3].change is None


def test_other_tools_leave_nothing_to_reuse(tmp_path: Path) -> None:
    messages = make_messages(1, 400)
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    lines = [{"model": MODEL, "messages": messages}, {"model": MODEL, "tools": tools, "messages": messages}]
    runs = play([write_lines(tmp_path / "log.jsonl", lines)], tmp_path)[0].played[0].requests
    assert runs[1].received_cached == 0


def test_a_ratio_learns_from_steps_and_stays_plausible() -> None:
    assert TokenRatio().value == 1.0
    assert TokenRatio().with_step(150, 100).value == pytest.approx(1.5)
    assert TokenRatio().with_step(10, 10) == TokenRatio(), "a small step says little"
    assert TokenRatio().with_step(-500, 100) == TokenRatio()
    assert TokenRatio().with_step(100_000, 100).value == 3.0
    assert json.dumps(TokenRatio().with_step(60, 1_000).value) == "0.5"
