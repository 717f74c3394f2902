import pytest

from gateway.core.errors import Unreadable
from gateway.wire.formats.responses.items import (
    Item,
    find_answered,
    find_call,
    is_opaque,
    joins,
    parse_items,
    role_of,
)


@pytest.mark.parametrize(
    ("item", "role"),
    [
        ({"role": "developer", "content": "x"}, "system"),
        ({"type": "message", "role": "system", "content": "x"}, "system"),
        ({"role": "user", "content": "x"}, "user"),
        ({"type": "message", "role": "assistant", "content": []}, "assistant"),
        ({"type": "message", "role": "critic"}, "other"),
        ({"type": "message", "role": []}, "other"),
        ({"type": "message", "role": {}}, "other"),
        ({"type": "reasoning", "summary": []}, "assistant"),
        ({"type": "function_call", "call_id": "a"}, "assistant"),
        ({"type": "web_search_call"}, "assistant"),
        ({"type": "mcp_list_tools"}, "assistant"),
        ({"type": "mcp_approval_request", "id": "a"}, "assistant"),
        ({"type": "mcp_approval_response", "approval_request_id": "a"}, "tool"),
        ({"type": "custom_tool_call_output", "call_id": "a"}, "tool"),
        ({"type": "tool_search_output", "call_id": "a"}, "tool"),
        ({"type": "shell_call_output"}, "assistant"),
        ({"type": "item_reference", "id": "a"}, "assistant"),
        ({"type": "compaction", "encrypted_content": "x"}, "other"),
        ({"type": "compaction_trigger"}, "other"),
        ({"type": "of_tomorrow"}, "other"),
    ],
)
def test_the_role_of_an_item(item: Item, role: str) -> None:
    assert role_of(item) == role


@pytest.mark.parametrize(
    ("item", "call"),
    [
        ({"type": "function_call", "call_id": "a", "name": "look"}, ("a", "look")),
        ({"type": "custom_tool_call", "call_id": "a", "name": "patch"}, ("a", "patch")),
        ({"type": "local_shell_call", "call_id": "a"}, ("a", "local_shell")),
        ({"type": "computer_call", "call_id": "a"}, ("a", "computer")),
        ({"type": "of_tomorrow_call", "call_id": "a"}, ("a", "of_tomorrow")),
        ({"type": "mcp_approval_request", "id": "a", "name": "look"}, ("a", "look")),
        # The upstream answers these calls.
        ({"type": "web_search_call", "id": "ws_1"}, None),
        ({"type": "tool_search_call", "call_id": None}, None),
        ({"type": "function_call_output", "call_id": "a"}, None),
        ({"role": "assistant", "content": "x"}, None),
    ],
)
def test_the_calls_that_the_client_must_answer(item: Item, call: tuple[str, str] | None) -> None:
    assert find_call(item) == call


def test_an_output_names_its_call() -> None:
    assert find_answered({"type": "shell_call_output", "call_id": "a"}) == "a"
    assert find_answered({"type": "mcp_approval_response", "approval_request_id": "b"}) == "b"
    assert find_answered({"type": "shell_call", "call_id": "a"}) is None


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("compaction", True),
        ("compaction_summary", True),
        ("context_compaction", True),
        ("item_reference", True),
        ("compaction_trigger", False),
        ("reasoning", False),
    ],
)
def test_items_that_only_the_upstream_can_read_are_opaque(kind: str, expected: bool) -> None:
    assert is_opaque({"type": kind}) is expected


_THOUGHT = b'{"summary":[],"type":"reasoning"}'


@pytest.mark.parametrize(
    ("before", "behind", "expected"),
    [
        (_THOUGHT, b'{"type":"function_call","call_id":"a"}', True),
        (_THOUGHT, b'{"role":"assistant","content":"x"}', True),
        (_THOUGHT, b'{"type":"of_tomorrow"}', True),
        (_THOUGHT, _THOUGHT, True),
        (_THOUGHT + b", " + _THOUGHT, b'{"type":"web_search_call"}', True),
        (_THOUGHT, b'{"role":"user","content":"x"}', False),
        (_THOUGHT, b'{"type":"function_call_output","call_id":"a"}', False),
        (_THOUGHT, b'{"type":"compaction"}', False),
        (b'{"role":"user","content":"\\"reasoning\\""}', _THOUGHT, False),
        (b'{"role":"user","content":"reasoning"}', _THOUGHT, False),
        (_THOUGHT + b',{"role":"assistant","content":"x"}', b'{"type":"function_call"}', False),
    ],
)
def test_reasoning_and_the_next_item_of_the_model_are_one_message(
    before: bytes, behind: bytes, expected: bool
) -> None:
    assert joins(before, behind) is expected


def test_a_string_is_a_user_message() -> None:
    assert parse_items(b'"a\\ud800"')[0]["role"] == "user"


@pytest.mark.parametrize("raw", [b"1", b"null", b"[]", b"{}", b'{"type":7}', b'{"type":""', b"{" * 9_999])
def test_an_invalid_item_is_unreadable(raw: bytes) -> None:
    with pytest.raises(Unreadable):
        parse_items(raw)
