import pytest

from gateway.wire.edits import Edit, apply_edits
from gateway.wire.formats.messages.request import parse_body
from gateway.wire.recall import insert_behind_tools
from gateway.wire.structure import UNBOUNDED

_MESSAGES = b'"messages":[{"role":"user","content":"a"}]'


def test_a_tool_stands_directly_behind_the_last_one() -> None:
    body = parse_body(b'{"tools": [ {"name":"x"} , {"name":"y"} \n], ' + _MESSAGES + b"}", UNBOUNDED)
    found = insert_behind_tools(body, b"{}")
    data = apply_edits(body.data, [Edit(found.at, found.at, found.new)])
    assert data == b'{"tools": [ {"name":"x"} , {"name":"y"},{} \n], ' + _MESSAGES + b"}"


@pytest.mark.parametrize("tools", [b"", b'"tools":[],', b'"tools":null,'])
def test_a_request_without_tools_has_no_place_for_one(tools: bytes) -> None:
    body = parse_body(b"{" + tools + _MESSAGES + b"}", UNBOUNDED)
    with pytest.raises(ValueError, match="no tools"):
        insert_behind_tools(body, b"{}")
