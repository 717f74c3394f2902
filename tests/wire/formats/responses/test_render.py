import json
from typing import Any

import pytest

from gateway.core.history.pivot import Mark
from gateway.wire.formats.responses.render import BLANK_SCREENSHOT, render_marked, render_summary
from tests.builders.chat import PLACEHOLDER, RESUME, make_pivot
from tests.builders.responses import JSON, read, render

_SCREEN = {"type": "computer_screenshot", "image_url": "data:image/png;base64," + "A" * 400}


def mark(item: object, keep_chars: int | None = None) -> Any:
    raw = render_marked(json.dumps(item).encode(), Mark(0, keep_chars), PLACEHOLDER)
    return json.loads(raw)


def output(kind: str, value: object) -> JSON:
    return {"type": f"{kind}_output", "call_id": "a", "id": "x_1", "output": value}


_CLEARED = [{"type": "input_text", "text": PLACEHOLDER}]
_SHELL = {"stdout": "x" * 400, "stderr": "y", "outcome": {"type": "exit", "exit_code": 1}}


@pytest.mark.parametrize(
    ("kind", "value", "cleared"),
    [
        ("function_call", "x" * 400, PLACEHOLDER),
        (
            "function_call",
            [{"type": "input_text", "text": "x"}, {"type": "input_image", "image_url": "u"}],
            _CLEARED,
        ),
        ("custom_tool_call", "x" * 400, PLACEHOLDER),
        ("local_shell_call", "x" * 400, PLACEHOLDER),
        ("shell_call", [_SHELL, _SHELL], [{**_SHELL, "stdout": PLACEHOLDER, "stderr": ""}] * 2),
        ("computer_call", _SCREEN, {"type": "computer_screenshot", "image_url": BLANK_SCREENSHOT}),
    ],
)
def test_a_cleared_output_stays_what_it_was(kind: str, value: object, cleared: object) -> None:
    assert mark(output(kind, value)) == {**output(kind, value), "output": cleared}


def test_tools_that_were_found_can_be_found_again() -> None:
    found = {"type": "tool_search_output", "call_id": "a", "tools": [{"name": "x"}]}
    assert mark(found) == {**found, "tools": []}


@pytest.mark.parametrize(
    "item",
    [
        {"type": "mcp_approval_response", "approval_request_id": "a", "approve": True},
        {"type": "compaction", "encrypted_content": "x" * 900},
        {"type": "of_tomorrow", "text": "x" * 900},
        {"role": "assistant", "content": "x" * 900},
        {"type": "function_call", "call_id": "a", "name": "look", "arguments": "x" * 900},
    ],
)
def test_what_has_nothing_to_shorten_changes_no_byte(item: JSON) -> None:
    raw = json.dumps(item, indent=1).encode()
    assert render_marked(raw, Mark(0), PLACEHOLDER) == raw
    assert render_marked(raw, Mark(0, 64), "") == raw


def test_a_screenshot_cannot_be_cut() -> None:
    raw = json.dumps(output("computer_call", _SCREEN)).encode()
    assert render_marked(raw, Mark(0, 64), "") == raw


def test_texts_are_cut_wherever_they_are() -> None:
    long = "x" * 400
    shell = mark(output("shell_call", [_SHELL]), 64)["output"][0]
    assert len(shell["stdout"]) < 200 and shell["stderr"] == "y"
    parts = mark(
        {"role": "user", "content": [{"type": "input_text", "text": long}, {"type": "input_image"}]}, 64
    )
    assert len(parts["content"][0]["text"]) < 200 and parts["content"][1] == {"type": "input_image"}
    assert len(mark(long, 64)) < 200
    assert mark("short", 64) == "short"


def test_fields_that_are_kept_keep_their_bytes() -> None:
    raw = b'{"type":"function_call_output","x":1.10,"output":"xxxxxxxx","call_id":"a"}'
    assert render_marked(raw, Mark(0), "-") == raw.replace(b"xxxxxxxx", b"-")


def test_a_summary_is_items_without_ids() -> None:
    conversation = read(
        render([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}])
    ).conversation
    pivot = make_pivot(conversation, 2)
    items = json.loads(b"[" + render_summary(pivot, "assistant") + b"]")
    assert [(item["type"], item["role"], item["content"][0]["type"]) for item in items] == [
        ("message", "assistant", "output_text"),
        ("message", "user", "input_text"),
    ]
    assert items[1]["content"][0]["text"] == RESUME
    assert all("id" not in item for item in items)
