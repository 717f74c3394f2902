import json
from typing import Any

import pytest

from gateway.core.history.transcript import render_transcript
from gateway.wire.formats.responses.text import parse_entry, split_results
from tests.builders.responses import JSON
from tests.shared_data import SHARED, requires_shared


def speak(*items: JSON) -> str:
    return render_transcript([parse_entry(b",".join(json.dumps(item).encode() for item in items))])


@pytest.mark.parametrize(
    ("item", "line"),
    [
        ({"role": "user", "content": "Look."}, "[user]: Look."),
        (
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]},
            "[assistant]: Done.",
        ),
        (
            {"type": "function_call", "call_id": "a", "name": "look", "arguments": '{"a":1}'},
            '[assistant calls look]: {"a":1}',
        ),
        (
            {"type": "custom_tool_call", "call_id": "a", "name": "patch", "input": "*** Begin"},
            "[assistant calls patch]: *** Begin",
        ),
        (
            {"type": "local_shell_call", "call_id": "a", "action": {"command": ["ls"]}},
            '[assistant calls local_shell]: {"action":{"command":["ls"]}}',
        ),
        ({"type": "function_call_output", "call_id": "a", "output": "found"}, "[tool result]: found"),
        (
            {"type": "shell_call_output", "call_id": "a", "output": [{"stdout": "one", "stderr": "two"}]},
            "[tool result]: one\ntwo",
        ),
    ],
)
def test_the_entry_of_an_item_holds_the_text_that_a_person_would_read(item: JSON, line: str) -> None:
    assert line in speak(item)


def test_reasoning_is_counted_and_never_quoted() -> None:
    thought = {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "Hm."}],
        "encrypted_content": "x" * 600,
    }
    message = {"role": "assistant", "content": "Done."}
    entry = parse_entry(json.dumps(thought).encode() + b"," + json.dumps(message).encode())
    assert (entry.text, entry.hidden, entry.media_tokens) == ("Done.", "Hm.", 100)
    assert "Hm." not in speak(thought, message)


@pytest.mark.parametrize("kind", [[], {}, 1, None])
def test_a_part_of_an_unknown_kind_is_counted_by_its_words(kind: object) -> None:
    part = {"type": kind, "text": "Look."}
    assert parse_entry(json.dumps({"role": "user", "content": [part]}).encode()).hidden == "Look."


def test_images_have_a_fixed_size_in_every_place() -> None:
    url = "data:image/png;base64," + "A" * 9_000
    message = {"role": "user", "content": [{"type": "input_image", "image_url": url}]}
    screen = {
        "type": "computer_call_output",
        "call_id": "a",
        "output": {"type": "computer_screenshot", "image_url": url},
    }
    drawn = {"type": "image_generation_call", "id": "ig_1", "result": "A" * 9_000}
    entries = [parse_entry(json.dumps(item).encode()) for item in (message, screen, drawn)]
    assert [entry.media for entry in entries] == [1, 1, 1]
    assert all(0 < entry.media_tokens < 2_000 and len(entry.hidden) < 100 for entry in entries)


def test_a_call_that_the_upstream_answered_is_read_like_any_call() -> None:
    item = {
        "type": "mcp_call",
        "id": "m",
        "name": "look",
        "arguments": "{}",
        "output": "found",
        "server_label": "s",
    }
    entry = parse_entry(json.dumps(item).encode())
    assert (entry.calls, entry.text, entry.is_result) == ((("look", "{}"),), "found", False)


_PARTS = [{"type": "input_text", "text": "a"}]
_SHELL = [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]


@pytest.mark.parametrize(
    ("kind", "output"),
    [
        ("function_call_output", "a"),
        ("function_call_output", _PARTS),
        ("function_call_output", None),
        ("custom_tool_call_output", "a"),
        ("local_shell_call_output", '{"output":"a"}'),
        ("shell_call_output", _SHELL),
        ("apply_patch_call_output", "Done."),
    ],
)
def test_the_output_is_split_off_and_the_rest_is_kept(kind: str, output: Any) -> None:
    item = {"type": kind, "call_id": "a", "output": output, "status": "completed"}
    split = split_results(json.dumps(item).encode())
    assert split.contents == (output,)
    assert json.loads(split.frame) == {**item, "output": ""}


@pytest.mark.parametrize(
    "item",
    [
        {"type": "computer_call_output", "call_id": "a", "output": {"type": "computer_screenshot"}},
        {"type": "mcp_call", "id": "a", "output": "text"},
        {"type": "message", "role": "user", "content": "output"},
        {"role": "user", "content": "no type at all"},
        {"type": 7, "output": "a"},
        {"type": ["function_call_output"], "output": "a"},
    ],
)
def test_nothing_is_split_off_from_other_items(item: Any) -> None:
    raw = json.dumps(item).encode()
    assert split_results(raw) == (raw, ())


@requires_shared
def test_only_outputs_are_split_off_from_recorded_requests() -> None:
    taken = 0
    for path in sorted((SHARED / "data/captures").glob("*/*_responses.json")):
        items = json.loads(path.read_text("utf-8"))["body"]["input"]
        for item in items if isinstance(items, list) else ():
            split = split_results(json.dumps(item).encode())
            frame = json.loads(split.frame)
            taken += len(split.contents)
            assert {**frame, "output": split.contents[0]} == item if split.contents else frame == item
    assert taken


def test_many_parts_of_a_shell_beside_others_are_told_apart_one_by_one() -> None:
    shell = [{"stdout": f"{number}", "stderr": ""} for number in range(20_000)]
    others = [{"type": "input_image", "number": number} for number in range(20_000)]
    item = {"type": "shell_call_output", "call_id": "a", "output": [*shell, *others]}
    entry = parse_entry(json.dumps(item).encode())
    assert entry.media == 20_000
    assert entry.text.split() == [str(number) for number in range(20_000)]
