import json

from gateway.wire.formats.chat.whole_response import WholeResponse
from gateway.wire.recall import RECALL_TOOL
from gateway.wire.response.held_body import MAX_HELD_BYTES
from tests.wire.formats.chat.turns import DrawnCall, DrawnResponse, render_whole

_RECALL = DrawnCall("r", RECALL_TOOL, '{"query":"x"}')
_READ = DrawnCall("a", "read", '{"path":"p"}')


def test_only_the_array_of_calls_changes() -> None:
    response = WholeResponse()
    body = b" \n" + render_whole(DrawnResponse(("a",), (), (_READ, _RECALL)), indent=1)
    assert response.feed(body) == b""
    request = response.end()
    assert request is not None
    assert request.is_parallel
    start, end = body.index(b'"tool_calls": [') + 14, body.rindex(b"]", 0, body.rindex(b'"finish_reason"'))
    shown = response.release()
    assert shown.startswith(body[:start])
    assert shown.endswith(body[end + 1 :])
    assert [call["id"] for call in json.loads(shown)["choices"][0]["message"]["tool_calls"]] == ["a"]
    assert (response.call_ids, response.text) == (["a"], "a")


def test_a_body_above_the_bound_passes() -> None:
    response = WholeResponse()
    body = render_whole(DrawnResponse(("x" * MAX_HELD_BYTES,), (), (_RECALL,)))
    pieces = [response.feed(piece) for piece in (body[:10], body[10:-10], body[-10:])]
    assert pieces == [b"", body[:-10], body[-10:]]
    assert response.end() is None
    assert response.release() == b""


def test_a_body_with_repeated_keys_passes() -> None:
    response = WholeResponse()
    body = render_whole(DrawnResponse((), (), (_RECALL,))).replace(b'{"id"', b'{"id":1,"id"', 1)
    response.feed(body)
    response.end()
    assert response.release() == body


def test_nothing_is_shown_if_another_response_follows() -> None:
    response = WholeResponse()
    response.feed(render_whole(DrawnResponse(("a",), (), (_RECALL,))))
    assert response.end() is not None
    assert (response.leave(), response.text, response.call_ids) == (b"", "", [])
