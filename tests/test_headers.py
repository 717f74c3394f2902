import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict
from yarl import URL

from gateway.headers import CONTENT_LENGTH, ResponseHead, UpstreamHead, make_answer_head, make_fields

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
    head = ResponseHead(503, "Service Unavailable", make_fields({"Retry-After": "1"}))
    assert head.render((1, 1)) == b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n\r\n"


# JOINED: The first lines of a request to an upstream, as bytes.


def make_head(target: str = "/v1/x?", **headers: str) -> UpstreamHead:
    pairs = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return UpstreamHead("POST", URL("http://api.test:8080/v1/x"), target, CIMultiDict(pairs))


def test_the_target_stands_as_it_was_given_and_the_host_comes_first() -> None:
    lines = make_head(X_One="1", x_two="a, b").lines
    assert lines == b"POST /v1/x? HTTP/1.1\r\nHost: api.test:8080\r\nX-One: 1\r\nx-two: a, b\r\n"


def test_bytes_of_no_encoding_come_out_as_they_came_in() -> None:
    value = b"caf\xe9 \xc3\xa9".decode("utf-8", "surrogateescape")
    assert make_head(X_Old=value).lines.endswith(b"X-Old: caf\xe9 \xc3\xa9\r\n")


@pytest.mark.parametrize("bad", ["a\rb", "a\nb", "a\0b", "a\x7fb"])
def test_what_would_begin_another_line_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="control character"):
        make_head(X_Bad=bad).lines  # noqa: B018 - made when it is read
    with pytest.raises(ValueError, match="control character"):
        make_head(target=f"/{bad}").lines  # noqa: B018


def test_another_header_makes_another_head() -> None:
    head = make_head(Accept_Encoding="gzip", Content_Encoding="br")
    assert head.uncoded.headers["accept-encoding"] == "identity"
    assert "content-encoding" not in head.plain.headers
    assert list(head.headers.items()) == [("Accept-Encoding", "gzip"), ("Content-Encoding", "br")]
    assert head.plain.plain is head.plain
