import pytest

from gateway.wire.response.held_body import MAX_HELD_BYTES, MAX_PARTS, HeldBody


def test_a_body_waits_until_it_is_complete() -> None:
    held = HeldBody()
    assert (held.feed(b'{"a"'), held.feed(b":1}"), held.end()) == (b"", b"", b'{"a":1}')
    assert (held.data, held.is_passing) == (b'{"a":1}', False)


def test_the_next_body_begins_with_its_first_piece_or_with_its_end() -> None:
    held = HeldBody()
    held.feed(b"{}")
    assert held.end() == b"{}"
    assert held.end() == b""
    assert (held.feed(b"[]"), held.end()) == (b"", b"[]")


def test_one_that_is_too_large_passes_with_all_that_follows() -> None:
    held = HeldBody()
    large = b"x" * MAX_HELD_BYTES
    assert held.feed(large) == b""
    assert held.feed(b"y") == large + b"y"
    assert (held.feed(b"z"), held.end(), held.data, held.is_passing) == (b"z", None, b"", True)
    assert held.feed(b"{}") == b"{}"


@pytest.mark.parametrize("part", [b"{}", b"[]", b"0"])
def test_one_of_very_many_parts_is_not_read_and_waits_as_it_is(part: bytes) -> None:
    held = HeldBody()
    body = b"[%s]" % b",".join([part] * (MAX_PARTS + 1))
    assert (held.feed(body), held.end(), held.data) == (b"", None, body)
