import re

import pytest

from gateway.core.history.tagged_blocks import without_blocks

_OPENING = re.compile("<(a|b)>")


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("plain", "plain"),
        ("1 < 2", "1 < 2"),
        ("x<a>1</a>y<b>2</b>z", "xyz"),
        ("<a><b>1</b></a> x", " x"),
        ("<a>1</a", "<a>1</a"),
        ("<a>x<b>1</b>", "<a>x"),
        ("<c>1</c>", "<c>1</c>"),
    ],
)
def test_closed_blocks_of_these_tags_are_left_out(text: str, kept: str) -> None:
    assert without_blocks(text, _OPENING) == kept


def test_many_unclosed_blocks_are_looked_for_once() -> None:
    text = "<a>" * 200_000
    assert without_blocks(text, _OPENING) == text
