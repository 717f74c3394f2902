import pytest

from gateway.core.history.recall import ReplyMark
from gateway.wire.recall import RecallRequest
from gateway.wire.response.stitcher_choice import ChosenStitcher


class _Named:
    """Puts its name before what it is fed."""

    has_shown = True
    reply = ReplyMark(text="x")

    def __init__(self, name: bytes) -> None:
        self._name = name

    def feed(self, piece: bytes) -> bytes:
        return self._name + piece

    def end(self) -> RecallRequest | None:
        return None

    def finish(self) -> bytes:
        return b"."


def _choose() -> ChosenStitcher:
    return ChosenStitcher(lambda: _Named(b"stream "), lambda: _Named(b"body "))


@pytest.mark.parametrize(
    ("start", "name"),
    [(b'{"id"', b"body "), (b"[", b"body "), (b"event: x", b"stream "), (b":", b"stream ")],
)
@pytest.mark.parametrize("blank", [b"", b"  \n", b"\xef\xbb\xbf"])
def test_the_first_byte_that_is_no_blank_decides(start: bytes, name: bytes, blank: bytes) -> None:
    stitcher = _choose()
    assert stitcher.feed(blank) == b""
    had_shown = stitcher.has_shown
    assert stitcher.feed(start) == name + blank + start
    assert stitcher.feed(b"{") == name + b"{"
    assert (had_shown, stitcher.has_shown) == (False, True)
    assert stitcher.reply.text == "x"
    assert stitcher.end() is None and stitcher.finish() == b"."


def test_a_response_of_blanks_alone_passes() -> None:
    stitcher = _choose()
    assert stitcher.feed(b"\n") == b""
    assert stitcher.end() is None
    assert stitcher.finish() == b"\n"
    assert stitcher.reply == ReplyMark()


def test_blanks_are_held_only_up_to_a_bound() -> None:
    stitcher = _choose()
    blanks = b" " * 65_536
    assert stitcher.feed(blanks) == b""
    assert stitcher.feed(b"\n") == b"stream " + blanks + b"\n"
