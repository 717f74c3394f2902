"""`refold replay`: recordings of every form, and the figures that it finds for them."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.surface.written import write
from tests.toy.product import Result, command
from tests.toy.transcripts import MODEL, make_messages, make_transcript

_RECORDINGS = Path(__file__).parent / "recordings"
_FORMS = sorted(path.name for path in _RECORDINGS.iterdir() if path.is_dir())
_PRICE = f"models: [{{match: {MODEL}, price: {{input: 1, cached: 0.1, output: 5}}}}]\n"
# So that tests need no tokenizer.
_CHARS = "policies: {default: {estimator: chars}, small: {estimator: chars, trigger: {hard_ratio: 0.5}}}\n"
_BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
_USAGE = {"prompt_tokens": 30, "completion_tokens": 4}


def save(folder: Path, value: object, name: str = "session.json") -> str:
    """A list of values is a file of lines."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    many = value if isinstance(value, list) else [value]
    path.write_text("\n".join(map(json.dumps, many)), "utf-8")
    return str(path)


def replay(folder: Path, *words: str, settings: str = _CHARS + _PRICE) -> Result:
    return command("replay", *words, "--config", write(folder, settings))


def read(folder: Path, *words: str, settings: str = _CHARS + _PRICE) -> Any:
    result = replay(folder, *words, "--json", settings=settings)
    assert result.status == 0, result.err
    return json.loads(result.out)


def play(folder: Path, value: object, *words: str, settings: str = _CHARS + _PRICE) -> list[Any]:
    """The requests of the first policy."""
    (session,) = read(folder, save(folder, value), *words, settings=settings)["sessions"]
    return list(session["played"][0]["requests"])


# Forms.

_SHOWN = (
    "purpose",
    "model",
    "messages",
    "size_bytes",
    "received",
    "output",
    "is_usage_recorded",
    "conversation",
)


@pytest.mark.parametrize("name", _FORMS)
def test_a_recording_stands_for_these_requests(tmp_path: Path, name: str) -> None:
    """`requests.json` beside the recording. Sizes and ids of conversations follow from the bodies."""
    (session,) = read(tmp_path, str(_RECORDINGS / name), settings=_CHARS)["sessions"]
    (played,) = session["played"]
    found = {
        **{key: session[key] for key in ("kind", "skipped", "request_bytes")},
        **{key: played[key] for key in ("unread", "failed")},
        "requests": [{key: each[key] for key in _SHOWN} for each in played["requests"]],
    }
    golden = _RECORDINGS / f"{name}.requests.json"
    # Of a new recording: WRITE_GOLDEN=1 writes it, to be looked at before it is committed.
    if os.environ.get("WRITE_GOLDEN") == "1" and not golden.exists():
        golden.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    assert found == json.loads(golden.read_text("utf-8"))


def test_every_form_has_an_example() -> None:
    kinds = {
        json.loads((_RECORDINGS / f"{name}.requests.json").read_text("utf-8"))["kind"] for name in _FORMS
    }
    assert kinds == {
        *("transcript", "request log", "Claude Code session", "Codex rollout", "gateway export"),
    }


@pytest.mark.parametrize(
    "entry",
    [
        _BODY,
        {"body": _BODY},
        {"body": json.dumps(_BODY)},
        {"request": _BODY},
        {"request": {"method": "POST", "body": _BODY}},
        {"request_body": json.dumps(_BODY)},
        {"request": {"url": "https://x/v1/chat/completions", "body": json.dumps(_BODY)}},
        {"url": "http://[", "body": _BODY},
        {"url": "https://x/proxy/api/v1/messages", "body": _BODY},
        {"interactions": [{"body": _BODY}]},
        {"entries": [{"body": _BODY}]},
    ],
)
def test_the_body_of_a_request_is_found_wherever_logs_put_it(tmp_path: Path, entry: object) -> None:
    (found,) = play(tmp_path, entry)
    assert (found["model"], found["messages"]) == ("m", 1)


@pytest.mark.parametrize(
    "response",
    [
        {"usage": _USAGE},
        {"status": 200, "body": json.dumps({"usage": _USAGE})},
        json.dumps({"usage": _USAGE}),
        {"usage": {"input_tokens": 4, "cache_read_input_tokens": 16, "cache_creation_input_tokens": 10}},
        f"data: {json.dumps({'choices': [], 'usage': _USAGE})}\n\ndata: [DONE]\n\n",
    ],
)
def test_recorded_usage_is_the_size_of_what_came(tmp_path: Path, response: object) -> None:
    (found,) = play(tmp_path, {"body": _BODY, "response": response})
    assert (found["received"], found["is_usage_recorded"]) == (30, True)


def test_usage_of_a_transcript_stands_at_the_reply(tmp_path: Path) -> None:
    steps = [{"i": 1, "prompt_tokens": 5_000}, {"i": 3, "prompt_tokens": 5_500}, {"i": 99}, "?"]
    found = play(tmp_path, make_transcript(2, usage_by_assistant=steps))
    assert [each["received"] for each in found[:2]] == [5_000, 5_500]
    assert [each["is_usage_recorded"] for each in found] == [True, True, False]


@pytest.mark.parametrize(
    ("roles", "cuts"),
    [("user assistant assistant user", [1, 4]), ("assistant user assistant", [2]), ("user user", [2])],
)
def test_a_reply_of_several_messages_is_one(tmp_path: Path, roles: str, cuts: list[int]) -> None:
    messages = [{"role": role, "content": f"{at}"} for at, role in enumerate(roles.split())]
    found = play(tmp_path, {"messages": messages, "usage_by_assistant": []})
    assert [each["messages"] for each in found] == cuts


def test_what_cannot_be_played_is_counted(tmp_path: Path) -> None:
    unread = {
        "path": "/v1/responses",
        "body": {"model": "m", "input": [{"role": "user"}], "previous_response_id": "r"},
    }
    failed = [{"body": _BODY, **more} for more in ({"status": 400}, {"response": {"status_code": 429}})]
    path = save(tmp_path, [{"body": _BODY}, unread, *failed, {"body": {"other": 1}}], "log.jsonl")
    with Path(path).open("a", encoding="utf-8") as file:
        file.write("\n{broken\n")
    (session,) = read(tmp_path, path)["sessions"]
    (played,) = session["played"]
    assert (len(played["requests"]), played["unread"], played["failed"], session["skipped"]) == (3, 1, 2, 2)
    text = " ".join(replay(tmp_path, path).out.split())
    assert "2 damaged lines or entries were skipped" in text and "1 requests would pass unread" in text
    assert "2 requests failed when they were recorded" in text


def test_folders_are_walked_and_other_files_are_named_with_a_reason(tmp_path: Path) -> None:
    folder = tmp_path / "all"
    save(folder, make_transcript(1), "a/one.json")
    save(folder, make_transcript(1), "b/deep/two.json")
    save(folder, {"name": "x"}, "package.json")
    for number in (1, 2, 10):
        save(folder, {"body": {**_BODY, "model": f"m{number}"}}, f"log/{number}.json")
    (folder / "notes.md").write_text("no suffix of a recording", "utf-8")
    result = replay(tmp_path, str(folder), "--json")
    sessions = {each["name"]: each for each in json.loads(result.out)["sessions"]}
    assert {"a/one", "b/deep/two"} < sessions.keys() and len(sessions) == 3
    # Files of one request each are one recording, in the order of their numbers.
    (log,) = [each for name, each in sessions.items() if name.startswith("log")]
    assert [each["model"] for each in log["played"][0]["requests"]] == ["m1", "m2", "m10"]
    assert "package.json" in result.err and "'name'" in result.err and "notes.md" not in result.err


@pytest.mark.parametrize(
    ("value", "words", "said"),
    [
        ("", [], "no JSON object"),
        ("hello", [], "no JSON object"),
        ({"name": "x", "version": 1}, [], "a JSON object with 'name', 'version'; known are request logs"),
        ([{"type": "gateway.export", "version": 2}, {"type": "body", "body": {}}], [], "version 2"),
        (make_transcript(1), ["--policy", "nope"], "no policy 'nope'"),
        (make_transcript(1), ["--window", "500"], "--window 500 is a number of tokens, so 128K is written"),
        (make_transcript(1), ["--price", "nobody-knows"], "no price is known for 'nobody-knows'"),
    ],
)
def test_wrong_usage_ends_with_status_2_and_one_sentence(
    tmp_path: Path, value: object, words: list[str], said: str
) -> None:
    path = save(tmp_path, value)
    if isinstance(value, str):
        Path(path).write_text(value, "utf-8")
    result = replay(tmp_path, path, *words)
    assert (result.status in (1, 2), "Traceback" in result.err) == (True, False)
    assert said in " ".join((result.out + result.err).split())
    missing = replay(tmp_path, str(tmp_path / "missing"))
    assert missing.status == 2 and "there is no such file" in " ".join(missing.err.split())


# Figures.


def test_without_recorded_usage_a_growing_history_is_reused_as_far_as_it_went(tmp_path: Path) -> None:
    runs = play(tmp_path, make_transcript(3, chars=400), "--window", "16000")
    assert [run["messages"] for run in runs] == [1, 3, 5, 7]
    assert [run["received_cached"] for run in runs] == [0, *(run["received"] for run in runs[:-1])]
    assert [run["sent"] for run in runs] == [run["received"] for run in runs]


def test_a_session_that_outgrows_its_window_is_compacted_in_time(tmp_path: Path) -> None:
    value = read(tmp_path, save(tmp_path, make_transcript(60)), "--window", "16000", settings=_CHARS)
    runs = value["sessions"][0]["played"][0]["requests"]
    made = [compaction for run in runs for compaction in run["compactions"]]
    calls = [call for run in runs for call in run["calls"]]
    assert len(made) >= 2 and all(each["failure"] is None for each in made)
    assert max(run["received"] for run in runs) > 16_000 > max(run["sent"] for run in runs)
    assert {run["plan"] for run in runs} >= {"passthrough", "pivot"}
    changes = sum(run["change"] == "compaction" for run in runs)
    assert changes == len({run["covers"] for run in runs} - {0})
    assert all(0 < call["output_tokens"] <= 1_500 and call["prompt_tokens"] > 1_000 for call in calls)
    sums = value["policies"][0]["sums"]
    assert sums["requests"] == 61 and sums["window"] == 16_000 and sums["too_large"] == 0
    assert (sums["received"], sums["sent"]) == (
        sum(run["received"] for run in runs),
        sum(run["sent"] for run in runs),
    )
    assert (sums["compactions"], sums["calls"]) == (len(made), len(calls))
    assert sums["call_prompt"] == sum(call["prompt_tokens"] for call in calls)


def test_money_is_that_of_prompts_replies_and_summaries(tmp_path: Path) -> None:
    value = read(tmp_path, save(tmp_path, make_transcript(60)), "--window", "16000")
    (result,) = value["policies"]
    runs = value["sessions"][0]["played"][0]["requests"]

    def price(tokens: int, cached: int, output: int) -> float:
        return ((tokens - cached) + 0.1 * cached + 5 * output) / 1e6

    cost = result["cost"]
    without = sum(price(run["received"], run["received_cached"], run["output"]) for run in runs)
    assert cost["without_usd"] == pytest.approx(without, rel=0.02)
    calls = [call for run in runs for call in run["calls"]]
    summaries = sum(
        price(call["prompt_tokens"], call["cached_tokens"], call["output_tokens"]) for call in calls
    )
    assert cost["summaries_usd"] == pytest.approx(summaries, rel=0.001)
    assert cost["saved_usd"] == pytest.approx(cost["without_usd"] - cost["with_usd"], abs=1e-9)
    assert cost["unpriced_requests"] == 0
    unpriced = read(tmp_path, save(tmp_path, {**make_transcript(3), "model": "nobody-knows"}))["policies"][0]
    assert (unpriced["cost"]["with_usd"], unpriced["cost"]["unpriced_requests"]) == (None, 4)
    named = read(tmp_path, save(tmp_path, {**make_transcript(3), "model": "nobody-knows"}), "--price", MODEL)
    assert named["policies"][0]["cost"]["with_usd"] > 0


@pytest.mark.parametrize(
    ("price", "is_cached"), [("{input: 1, cached: 0.1, output: 8}", True), ("{input: 1, output: 8}", False)]
)
def test_a_summary_rides_on_what_the_provider_has_read(tmp_path: Path, price: str, is_cached: bool) -> None:
    settings = (
        f'models: [{{match: "*", price: {price}}}]\npolicies: {{default: {{estimator: chars, economy: 0}}}}\n'
    )
    runs = play(tmp_path, make_transcript(60), "--window", "16000", settings=settings)
    calls = [call for run in runs for call in run["calls"]]
    assert len(calls) >= 2
    assert all((call["cached_tokens"] > 0) == call["is_riding"] == is_cached for call in calls)


def test_policies_are_played_side_by_side_as_each_would_be_alone(tmp_path: Path) -> None:
    path = save(tmp_path, make_transcript(60))
    words = ("--policy", "default", "--policy", "small", "--window", "16000")
    both = read(tmp_path, path, *words)
    alone = read(tmp_path, path, *words[2:])
    assert [each["policy"] for each in both["policies"]] == ["default", "small"]
    assert sum(each["is_best"] for each in both["policies"]) == 1
    first, second = both["sessions"][0]["played"]
    shown = ("sent", "plan", "covers")
    apart = [
        [[run[key] for key in shown] for run in runs]
        for runs in (alone["sessions"][0]["played"][0]["requests"], second["requests"], first["requests"])
    ]
    assert apart[0] == apart[1] != apart[2]
    best = min(both["policies"], key=lambda each: (each["sums"]["too_large"], each["cost"]["with_usd"]))
    assert best["is_best"]


def test_a_client_that_changes_its_history_breaks_the_cache_itself(tmp_path: Path) -> None:
    first, second, third = (make_messages(turns, 400) for turns in (1, 2, 3))
    third[4]["content"] = "cleared"
    lines = [{"model": MODEL, "messages": messages} for messages in (first, second, third)]
    runs = play(tmp_path, lines, "--window", "16000")
    assert [(run["change"], run["is_rewritten"]) for run in runs[1:]] == [(None, False), ("history", True)]
    assert 0 < runs[2]["received_cached"] < runs[1]["received"]


def test_recordings_do_not_learn_from_each_other(tmp_path: Path) -> None:
    one, two = (save(tmp_path, make_transcript(40), f"{name}.json") for name in ("one", "two"))
    alone = read(tmp_path, two, "--window", "16000")["sessions"][0]["played"][0]["requests"]
    after = read(tmp_path, one, two, "--window", "16000")["sessions"][1]["played"][0]["requests"]
    assert len({run["conversation"] for run in (*alone, *after)}) == 2
    shown = ("sent", "plan", "covers")
    assert [[run[key] for key in shown] for run in alone] == [[run[key] for key in shown] for run in after]


def test_nothing_of_a_replay_reaches_outside(tmp_path: Path) -> None:
    """Neither store, upstream, hook nor collector of the settings is touched."""
    settings = f"""
store: "disk:{tmp_path}/state"
upstreams: {{default: {{base_url: "http://127.0.0.1:1/v1", api_key: sk-secret}}}}
traces: {{endpoint: "http://127.0.0.1:1"}}
hooks: {{pre_compact: [{{url: "http://127.0.0.1:1/hook"}}]}}
models: [{{match: "{MODEL}", context: 16000, policy: late}}]
policies:
  late: {{estimator: chars, trigger: {{hard_ratio: 0.9}}}}
  early: {{trigger: {{hard_ratio: 0.3}}}}
tenants: [{{name: a, keys: [sk-caller], policy: early, summary_budget: {{calls_per_hour: 1}}}}]
"""
    runs = play(tmp_path, make_transcript(60), settings=settings)
    assert sum(len(run["calls"]) for run in runs) > 1 and not (tmp_path / "state").exists()
    early = play(tmp_path, make_transcript(60), "--policy", "early", settings=settings)
    assert early[0]["hard"] < 6_000 and early[0]["window"] == 16_000


# What a person sees.


def find_numbers(lines: Sequence[str], name: str) -> list[str]:
    return next(line for line in lines if line.startswith(name))[len(name) :].split()


def test_it_shows_sessions_and_policies_in_80_columns(tmp_path: Path) -> None:
    path = save(tmp_path, make_transcript(60))
    words = ("--policy", "default", "--policy", "small", "--window", "16000")
    result = replay(tmp_path, path, *words)
    lines = result.out.splitlines()
    assert result.status == 0 and max(map(len, lines)) <= 80
    for part in ("each of the sessions", "conversation", "all sessions", "prefix reuse with"):
        assert part in result.out
    assert "Simulated: nothing was sent." in result.out and "MB/s" in result.out
    value = read(tmp_path, path, *words)
    sent = [each["sums"]["sent"] for each in value["policies"]]
    assert find_numbers(lines, "tokens sent") == [f"{tokens / 1_000:.0f}K" for tokens in sent]


def test_what_is_missing_for_a_full_answer_is_said(tmp_path: Path) -> None:
    text = " ".join(
        replay(tmp_path, save(tmp_path, {**make_transcript(3), "model": "nobody-knows"})).out.split()
    )
    assert "No window is known for the models of these recordings" in text
    assert "4 requests are of models without a price: try --price MODEL" in text


def test_a_name_cannot_command_the_terminal(tmp_path: Path) -> None:
    paths = [save(tmp_path, make_transcript(2), name) for name in ("a\x1b[2Jb.json", "c.json")]
    assert "\x1b" not in replay(tmp_path, *paths).out.partition("each of the sessions")[2]
