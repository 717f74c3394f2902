import json

import pytest

from gateway.wire.formats.chat.assistant_draft import AssistantDraft
from gateway.wire.formats.chat.call_tracker import CallTracker
from gateway.wire.formats.chat.recall_request import make_request, may_follow
from gateway.wire.recall import RECALL_TOOL, RecallCall, RecallRequest


@pytest.mark.parametrize(
    ("reason", "is_done", "expected"),
    [
        ("tool_calls", False, True),
        ("stop", False, True),
        (None, True, True),
        (None, False, False),
        ("length", True, False),
        ("content_filter", True, False),
        ("model_context_window_exceeded", True, False),
    ],
)
def test_a_response_that_was_cut_off_is_not_followed(
    reason: str | None, is_done: bool, expected: bool
) -> None:
    assert may_follow(reason, is_done=is_done) is expected


def request(*names: str) -> RecallRequest | None:
    tracker, draft = CallTracker(), AssistantDraft()
    draft.add({"content": "Hm.", "reasoning_content": "I see"})
    for number, name in enumerate(names):
        function = {"name": name, "arguments": f'{{"query":"q{number}"}}'}
        tracker.add_whole({"id": f"c{number}", "type": "function", "function": function})
    tracker.place()
    return make_request(tracker, draft, "")


def test_a_response_that_calls_nothing_or_others_asks_for_nothing() -> None:
    assert request() is None
    assert request("read") is None


def test_of_a_response_with_calls_of_the_tool_only_the_message_is_kept() -> None:
    found = request(RECALL_TOOL, RECALL_TOOL)
    assert found is not None
    assert found.calls == (RecallCall("c0", "q0"), RecallCall("c1", "q1"))
    assert not found.is_parallel
    assert found.call == found.reply
    message = json.loads(found.call)
    assert [call["id"] for call in message.pop("tool_calls")] == ["c0", "c1"]
    assert message == {"role": "assistant", "content": "Hm.", "reasoning_content": "I see"}


def test_calls_beside_the_clients_are_kept_with_their_places() -> None:
    found = request("read", RECALL_TOOL, "read", RECALL_TOOL)
    assert found is not None
    assert (found.is_parallel, found.shown, found.reply) == (True, 1, "")
    assert [(at, call["id"]) for at, call in json.loads(found.call)] == [(1, "c1"), (2, "c3")]
