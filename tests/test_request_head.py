"""The first lines of a request to an upstream, as bytes."""

import pytest
from multidict import CIMultiDict
from yarl import URL

from gateway.request_head import RequestHead


def make_head(target: str = "/v1/x?", **headers: str) -> RequestHead:
    pairs = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return RequestHead("POST", URL("http://api.test:8080/v1/x"), target, CIMultiDict(pairs))


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
