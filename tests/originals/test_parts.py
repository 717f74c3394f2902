import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.search.cutting import cut_text
from gateway.originals.parts import join_texts, read_parts
from gateway.originals.removed import Origin

_CALL = {
    "id": "1",
    "type": "function",
    "function": {"name": "edit", "arguments": '{"path":"a.py","new":"x\\ny"}'},
}


def read(form: str, message: Any, *origins: Origin) -> list[tuple[str, str | None, str | None, str]]:
    parts = read_parts(form, json.dumps(message).encode(), origins)
    return [(part.role, part.tool, part.path, part.text) for part in parts]


@pytest.mark.parametrize("form", ["chat", ""])
def test_a_call_is_its_tool_and_its_arguments_as_they_are_read(form: str) -> None:
    message = {"role": "assistant", "content": "I edit.", "tool_calls": [_CALL]}
    assert read(form, message) == [
        ("assistant", None, None, "I edit."),
        ("assistant", "edit", "a.py", "edit\npath: a.py\nnew: x\ny"),
    ]


@pytest.mark.parametrize("form", ["messages", ""])
def test_each_result_of_a_message_has_its_own_origin(form: str) -> None:
    results = [{"type": "tool_result", "tool_use_id": str(n), "content": f"result {n}"} for n in (1, 2)]
    message = {"role": "user", "content": [*results, {"type": "text", "text": "Go on."}]}
    assert read(form, message, Origin("read", "a.py"), Origin("bash")) == [
        ("tool", "read", "a.py", "result 1"),
        ("tool", "bash", None, "result 2"),
        ("user", None, None, "Go on."),
    ]


@pytest.mark.parametrize("form", ["responses", ""])
def test_items_of_the_responses_api_are_read(form: str) -> None:
    said = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi."}]}
    assert read(form, said) == [("user", None, None, "Hi.")]
    called = {"type": "function_call", "call_id": "1", "name": "bash", "arguments": '{"command":"ls"}'}
    assert read(form, called) == [("assistant", "bash", None, "bash\ncommand: ls")]
    output = {"type": "function_call_output", "call_id": "1", "output": "a.py"}
    assert read(form, output, Origin("bash")) == [("tool", "bash", None, "a.py")]


@pytest.mark.parametrize("form", ["chat", "messages", "responses", "", "unknown"])
@given(data=st.binary(max_size=60))
def test_what_is_not_understood_has_no_parts(form: str, data: bytes) -> None:
    assert read_parts(form, b"{" + data, ()) == read_parts(form, b"", ()) == []


@given(st.lists(st.text(min_size=1, max_size=30).filter(str.strip), max_size=5))
def test_pieces_of_parts_are_the_text_again(texts: list[str]) -> None:
    message = {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "1", "content": t} for t in texts],
    }
    parts = read_parts("messages", json.dumps(message).encode(), ())
    pieces = [
        (part.start + start, part.text[start:end]) for part in parts for start, end in cut_text(part.text, 5)
    ]
    assert join_texts(pieces) == "\n\n".join(texts)
