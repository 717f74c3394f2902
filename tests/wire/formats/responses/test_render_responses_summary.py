import json

from gateway.wire.formats.responses.render import render_summary_request
from gateway.wire.wire_format import SummaryRequest
from tests.toy.validity_responses import find_violation


def render(cap: int = 1_000, room: int = 50_000, system: str = "You summarise.") -> dict[str, object]:
    request = SummaryRequest(
        model="m", system=system, parts=("history", "now"), output_key="max_output_tokens", cap=cap, room=room
    )
    return dict(json.loads(render_summary_request(request)))


def test_it_asks_without_tools_and_keeps_nothing_upstream() -> None:
    request = render()
    assert find_violation(request) is None
    assert request.keys() == {"model", "instructions", "input", "max_output_tokens", "store", "stream"}
    assert (request["store"], request["stream"]) == (False, True)


def test_thinking_gets_half_of_what_is_left_at_most() -> None:
    assert render()["max_output_tokens"] == 1_000 + 8_192
    assert render(room=3_000)["max_output_tokens"] == 2_000
    assert render(room=100)["max_output_tokens"] == 1_000


def test_a_blank_system_prompt_is_left_out() -> None:
    assert "instructions" not in render(system=" ")
