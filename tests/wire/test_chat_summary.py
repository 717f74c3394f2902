import json
from dataclasses import replace

import pytest

from gateway.wire.chat_summary import render_summary_request
from gateway.wire.summary_request import SummaryRequest
from tests.toy.validity import find_violation

_REQUEST = SummaryRequest(
    model="toy",
    system="You summarise.",
    parts=("What did we do?", '<conversation>\n"é"\n</conversation>', "Now write."),
    output_key="max_tokens",
    cap=4_000,
    room=30_000,
)


def test_the_call_is_two_messages_and_no_tools() -> None:
    assert json.loads(render_summary_request(_REQUEST)) == {
        "model": "toy",
        "messages": [
            {"role": "system", "content": "You summarise."},
            {
                "role": "user",
                "content": 'What did we do?\n\n<conversation>\n"é"\n</conversation>\n\nNow write.',
            },
        ],
        "max_tokens": 4_000,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_without_a_system_prompt_it_is_one_message() -> None:
    call = json.loads(render_summary_request(replace(_REQUEST, system=" ")))
    assert [message["role"] for message in call["messages"]] == ["user"]
    assert find_violation(call) is None


@pytest.mark.parametrize("key", ["max_tokens", "max_completion_tokens"])
def test_the_call_is_valid(key: str) -> None:
    request = replace(_REQUEST, output_key=key)
    assert find_violation(json.loads(render_summary_request(request))) is None


@pytest.mark.parametrize(
    ("room", "expected"), [(30_000, 12_192), (10_000, 10_000), (4_000, 4_000), (100, 4_000)]
)
def test_a_model_that_counts_its_thinking_gets_room_for_it_as_far_as_there_is(
    room: int, expected: int
) -> None:
    request = replace(_REQUEST, output_key="max_completion_tokens", room=room)
    assert json.loads(render_summary_request(request))["max_completion_tokens"] == expected
