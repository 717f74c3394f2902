"""Lists of what was taken out: written, read back, and never believed where they are not whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.taken import Original, Taken, parse_taken, render_taken

_TAKEN = Taken(owner="t", created_seconds=1.5, kind="prune", originals=[Original(3, 20, "ab")])


def test_what_is_written_is_read_back() -> None:
    assert parse_taken(render_taken(_TAKEN)) == _TAKEN


@pytest.mark.parametrize(
    ("part", "instead"),
    [(b'"version":1', b'"version":2'), (b'"prune"', b'"other"'), (b"[3,", b'["3",'), (b'"owner"', b'"x"')],
)
def test_what_is_not_of_this_form_is_none(part: bytes, instead: bytes) -> None:
    whole = render_taken(_TAKEN)
    assert part in whole and parse_taken(whole.replace(part, instead)) is None


@given(st.binary())
def test_no_bytes_make_it_raise(data: bytes) -> None:
    assert parse_taken(data) is None
