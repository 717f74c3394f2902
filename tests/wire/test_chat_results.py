import json
from typing import Any

import pytest

from gateway.wire.chat_results import open_results

_PARTS = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:,x"}}]


@pytest.mark.parametrize("content", ["a", "", None, 7, _PARTS])
def test_the_content_is_taken_out_and_the_rest_is_kept(content: Any) -> None:
    message = {"role": "tool", "content": content, "tool_call_id": "a", "x-unknown": 1}
    opened = open_results(json.dumps(message).encode())
    assert opened.contents == (content,)
    assert json.loads(opened.frame) == {**message, "content": ""}


def test_a_result_without_a_content_is_like_one_that_has_none() -> None:
    opened = open_results(b'{"role":"tool"}')
    assert opened == (b'{"role":"tool","content":""}', (None,))


def test_every_other_value_stays_as_it_was_written() -> None:
    opened = open_results(b'{ "n": 1.10, "content": "a", "big": 123456789012345678901234 }')
    assert opened.frame == b'{"n":1.10,"content":"","big":123456789012345678901234}'
