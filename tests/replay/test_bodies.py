"""Bodies that grow."""

import json

from gateway.replay.bodies import GrowingBody


def test_each_body_is_json_and_begins_as_the_one_before() -> None:
    body = GrowingBody([("model", b'"m"'), ("tools", b"[1]")], "messages")
    assert json.loads(body.render()) == {"model": "m", "tools": [1], "messages": []}
    body.add([b'{"role":"user"}'])
    first = body.render()
    body.add([b'{"role":"assistant"}', b'{"role":"tool"}'])
    second = body.render()
    assert json.loads(first)["messages"] == [{"role": "user"}]
    assert [each["role"] for each in json.loads(second)["messages"]] == ["user", "assistant", "tool"]
    assert second.startswith(first.removesuffix(b"]}"))
