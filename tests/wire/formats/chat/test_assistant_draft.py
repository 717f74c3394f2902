import json
from typing import Any

import pytest

from gateway.wire.formats.chat.assistant_draft import AssistantDraft


def render(*deltas: dict[str, Any]) -> dict[str, Any]:
    draft = AssistantDraft()
    for delta in deltas:
        draft.add(delta)
    message: dict[str, Any] = json.loads(draft.render([b'{"id":"a"}']))
    assert message.pop("role") == "assistant"
    assert message.pop("tool_calls") == [{"id": "a"}]
    return message


@pytest.mark.parametrize(
    ("contents", "expected"),
    [
        ([], None),
        ([None, ""], None),
        ([" \n"], None),
        (["a", None, " b"], "a b"),
        ([[{"type": "thinking", "thinking": "t"}, {"type": "text", "text": "a"}], "b"], "ab"),
        (["\ud83d", "\ude00"], "\U0001f600"),
        ([7], None),
    ],
)
def test_texts_are_joined(contents: list[Any], expected: str | None) -> None:
    assert render(*({"content": content} for content in contents)) == {"content": expected}


def test_reasoning_is_kept_as_it_came() -> None:
    message = render(
        {"reasoning_content": "I ", "reasoning": "x", "thinking_blocks": [{"type": "thinking"}], "other": 1},
        {"reasoning_content": "see", "extra_content": {"a": 1}, "reasoning": None},
        {"extra_content": {"a": 2}, "thinking_blocks": [{"type": "thinking"}]},
    )
    assert message == {
        "content": None,
        "reasoning_content": "I see",
        "reasoning": "x",
        "thinking_blocks": [{"type": "thinking"}, {"type": "thinking"}],
        "extra_content": {"a": 2},
    }


def test_pieces_of_one_detail_are_one() -> None:
    def detail(index: int, **fields: Any) -> dict[str, Any]:
        return {"reasoning_details": [{"type": "reasoning.text", "index": index, **fields}]}

    message = render(
        detail(0, text="I "),
        detail(0, text="see", signature=None),
        detail(0, signature="s"),
        detail(1, text="Now", format="f"),
        detail(1, text="\ud83d"),
        detail(1, text="\ude00"),
        {"reasoning_details": [7]},
    )
    assert message["reasoning_details"] == [
        {"type": "reasoning.text", "index": 0, "text": "I see", "signature": "s"},
        {"type": "reasoning.text", "index": 1, "text": "Now\U0001f600", "format": "f"},
        7,
    ]
