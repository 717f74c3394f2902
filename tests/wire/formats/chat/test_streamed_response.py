import json

from gateway.wire.formats.chat.shown_stream import ShownStream
from gateway.wire.formats.chat.streamed_response import (
    MAX_WAITING_BYTES,
    StreamedResponse,
)
from gateway.wire.recall import RECALL_TOOL
from gateway.wire.response.held_events import MAX_HELD_BYTES
from tests.wire.formats.chat.turns import (
    DrawnCall,
    DrawnResponse,
    ServerStyle,
    read_stream,
    render_stream,
)

_RECALL = DrawnCall("r", RECALL_TOOL, '{"query":"x"}')
_RECALLER = DrawnCall("a", "recaller", '{"path":"p"}')


def list_events(response: DrawnResponse, style: ServerStyle) -> list[bytes]:
    return [event + b"\n\n" for event in render_stream(response, style).split(b"\n\n")[:-1]]


def test_a_chunk_waits_only_while_a_name_may_become_the_tools() -> None:
    response = StreamedResponse(ShownStream())
    # The role, three pieces of a name, the arguments, the end, usage and [DONE].
    events = list_events(DrawnResponse((), (), (_RECALLER,)), ServerStyle(names=3, pieces=0))
    shown = [response.feed(event) for event in events]
    assert shown == [events[0], b"", b"", b"".join(events[1:4]), *([b""] * 3)]
    assert response.end() is None
    assert response.release() == b"".join(events[4:])
    assert response.call_ids == ["a"]


def test_text_behind_a_name_waits_with_it() -> None:
    response = StreamedResponse(ShownStream())
    events = list_events(DrawnResponse((), (), (_RECALL,)), ServerStyle(names=6))
    text = events[0].replace(b'"content":""', b'"content":"Hm"')
    assert response.feed(b"".join([events[0], events[1], text, b": alive\n\n"])) == events[0]
    assert response.feed(b"".join(events[2:])) == text + b": alive\n\n"
    request = response.end()
    assert request is not None
    assert json.loads(request.call)["content"] == "Hm"
    assert response.text == "Hm"


def test_what_waits_is_bounded() -> None:
    response = StreamedResponse(ShownStream())
    piece = b'data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"%s"}}]}}]}\n\n'
    events = [piece % (b"x" * 60_000)] * (MAX_WAITING_BYTES // 60_000 + 2)
    assert b"".join(map(response.feed, events)) == b"".join(events)


def test_contents_of_the_end_are_shown_if_another_response_follows() -> None:
    shown = ShownStream()
    response = StreamedResponse(shown)
    style = ServerStyle(finish_with_content=True, pieces=0)
    events = list_events(DrawnResponse((), (), (_RECALL,)), style)
    last = events[1].replace(b'"tool_calls":', b'"content":"late","tool_calls":', 1)
    assert response.feed(events[0] + last + b"".join(events[2:])) == events[0]
    assert response.end() is not None
    left = response.leave()
    assert read_stream(left).text == "late"
    assert read_stream(left).finish_reasons == []


def test_an_event_without_its_blank_line_is_closed_if_another_response_follows() -> None:
    response = StreamedResponse(ShownStream())
    first = list_events(DrawnResponse(("a",)), ServerStyle())[1].rstrip(b"\n")
    assert response.feed(first) == b""
    assert response.end() is None
    assert response.leave() == first + b"\n\n"


def test_what_is_held_behind_the_end_is_bounded() -> None:
    shown = ShownStream()
    response = StreamedResponse(shown)
    stream = render_stream(DrawnResponse((), (), (_RECALL,)), ServerStyle())
    comment = b": " + b"x" * 1_000_000 + b"\n\n"
    count = MAX_HELD_BYTES // 1_000_000
    assert comment not in response.feed(stream + comment * count)
    passed = response.feed(comment)
    assert passed.count(comment) == count + 1 and b"recall" not in passed
    assert response.feed(comment) == comment
    assert response.end() is None
    assert (response.release(), shown.has_content) == (b"", True)
