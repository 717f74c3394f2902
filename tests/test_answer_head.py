import re

from hypothesis import given
from hypothesis import strategies as st

from gateway.answer_head import CONTENT_LENGTH, AnswerHead, make_fields
from gateway.upstream import make_answer_head

_names = st.sampled_from([b"X-A", b"x-b", b"Content-Length", b"Server-Timing"])
_headers = st.lists(st.tuples(_names, st.binary(max_size=8)), max_size=4)


@given(st.sampled_from([200, 404, 499]), st.text(max_size=5), _headers)
def test_it_is_one_line_for_the_status_and_one_for_each_header_whatever_stands_in_them(
    status: int, reason: str, headers: list[tuple[bytes, bytes]]
) -> None:
    reason = reason.encode("utf-8", "replace").decode()
    rendered = make_answer_head(status, reason, headers).render((1, 1))
    first, *lines = rendered.split(b"\r\n")
    assert re.fullmatch(rb"HTTP/1\.1 %d [^\x00-\x08\x0a-\x1f\x7f]*" % status, first)
    assert lines[-2:] == [b"", b""]
    assert len(lines) == len(headers) + 2
    for line, (name, value) in zip(lines, headers, strict=False):
        assert line == b"%b: %b" % (name, re.sub(rb"[\x00-\x08\x0a-\x1f\x7f]", b" ", value))


def test_bytes_that_are_no_text_pass_as_they_came() -> None:
    head = make_answer_head(200, "OK", [(b"X-Raw", b"\xe9\xff \x80\t.")])
    assert head.render((1, 0)) == b"HTTP/1.0 200 OK\r\nX-Raw: \xe9\xff \x80\t.\r\n\r\n"


def test_names_are_found_and_dropped_whatever_their_case_and_number() -> None:
    head = make_answer_head(200, "OK", [(b"CONTENT-length", b"3"), (b"X", b"1"), (b"content-Length", b"4")])
    assert head.has(CONTENT_LENGTH)
    head.drop(CONTENT_LENGTH)
    assert not head.has(CONTENT_LENGTH)
    head.add({"X-Gateway-Plan": "pivot", "x": "ü"})
    assert head.render((1, 1)).split(b"\r\n")[1:] == [
        b"X-Gateway-Plan: pivot",
        "x: ü".encode(),
        b"X: 1",
        b"",
        b"",
    ]


def test_one_of_our_own_is_made_of_text() -> None:
    head = AnswerHead(503, "Service Unavailable", make_fields({"Retry-After": "1"}))
    assert head.render((1, 1)) == b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n\r\n"
