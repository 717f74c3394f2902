import json

from gateway.wire.messages_summary import render_summary_request
from gateway.wire.summary_request import SummaryRequest
from tests.toy.validity_messages import find_violation


def make_request(system: str, greeting: tuple[str, ...] = ()) -> SummaryRequest:
    parts = ("What did we do?", "Sum up.")
    return SummaryRequest(
        model="m", system=system, parts=parts, output_key="max_tokens", cap=700, room=9_000, greeting=greeting
    )


def test_the_request_has_one_user_message_and_nothing_that_invites_more_than_text() -> None:
    sent = json.loads(render_summary_request(make_request("You sum up.")))
    assert sent == {
        "model": "m",
        "system": [{"type": "text", "text": "You sum up."}],
        "messages": [{"role": "user", "content": "What did we do?\n\nSum up."}],
        "max_tokens": 700,
        "stream": True,
    }
    assert find_violation(sent) is None


def test_without_a_system_prompt_there_is_none() -> None:
    sent = json.loads(render_summary_request(make_request(" ")))
    assert "system" not in sent and find_violation(sent) is None


def test_the_clients_introduction_comes_first() -> None:
    sent = json.loads(render_summary_request(make_request("You sum up.", ("I am it.",))))
    assert [block["text"] for block in sent["system"]] == ["I am it.", "You sum up."]
