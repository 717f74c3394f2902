import json
from typing import Any

import pytest

from gateway.wire.responses_results import open_results
from tests.shared_data import SHARED, requires_shared

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
def test_the_output_is_taken_out_and_the_rest_is_kept(kind: str, output: Any) -> None:
    item = {"type": kind, "call_id": "a", "output": output, "status": "completed"}
    opened = open_results(json.dumps(item).encode())
    assert opened.contents == (output,)
    assert json.loads(opened.frame) == {**item, "output": ""}


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
def test_of_every_other_item_nothing_is_taken_out(item: Any) -> None:
    raw = json.dumps(item).encode()
    assert open_results(raw) == (raw, ())


@requires_shared
def test_of_recorded_requests_nothing_but_outputs_is_taken_out() -> None:
    taken = 0
    for path in sorted((SHARED / "data/captures").glob("*/*_responses.json")):
        items = json.loads(path.read_text("utf-8"))["body"]["input"]
        for item in items if isinstance(items, list) else ():
            opened = open_results(json.dumps(item).encode())
            frame = json.loads(opened.frame)
            taken += len(opened.contents)
            assert {**frame, "output": opened.contents[0]} == item if opened.contents else frame == item
    assert taken
