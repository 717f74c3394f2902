"""What a replay found, as values."""

import json
from pathlib import Path

import msgspec

from gateway.replay.report import SIMULATED, ReplayReport, make_json, split_conversations
from tests.replay.samples import (
    BY_SIZE,
    MODEL,
    PRICING,
    make_messages,
    make_transcript,
    play,
    write_json,
    write_lines,
)


def _make_report(folder: Path) -> ReplayReport:
    small = write_json(folder / "small.json", make_transcript(4))
    large = write_json(folder / "large.json", make_transcript(40))
    names = ["default", "small"]
    return ReplayReport(
        policies=names,
        sources=play([small, large], folder, policies=names, settings=BY_SIZE),
        pricing=PRICING,
        seconds=2.5,
    )


def test_the_largest_session_is_shown_under_the_best_policy(tmp_path: Path) -> None:
    report = _make_report(tmp_path)
    assert report.best is not None
    assert report.shown == report.best
    name, runs = report.find_largest(report.shown)
    assert (name, len(runs)) == ("large", 41)
    assert [name for name, _ in report.list_sessions(0)] == ["small", "large"]


def test_one_recording_alone_is_shown_by_its_conversations(tmp_path: Path) -> None:
    others = [{"role": "user", "content": "another task"}]
    lines = [
        {"model": MODEL, "messages": messages} for messages in (make_messages(1), others, make_messages(2))
    ]
    sources = play([write_lines(tmp_path / "log.jsonl", lines)], tmp_path)
    report = ReplayReport(policies=["default"], sources=sources, pricing=PRICING, seconds=1)
    assert sorted(result.sums.requests for _, result in report.list_sessions(0)) == [1, 2]
    assert [len(runs) for runs in split_conversations(sources[0].played[0]).values()] == [2, 1]
    assert report.best is None


def test_programs_get_every_request_and_what_is_simulated(tmp_path: Path) -> None:
    report = _make_report(tmp_path)
    value = json.loads(msgspec.json.encode(make_json(report)))
    assert value["simulated"] == SIMULATED
    assert [each["policy"] for each in value["policies"]] == ["default", "small"]
    assert sum(each["is_best"] for each in value["policies"]) == 1
    large = value["sessions"][1]
    assert (large["name"], large["kind"], large["skipped"]) == ("large", "transcript", 0)
    assert len(large["played"][0]["requests"]) == 41
    assert large["results"][0]["cost"]["without_usd"] > large["results"][0]["cost"]["with_usd"] > 0
