"""Which headers pass in each direction, and how heads look as bytes."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy
from pydantic import SecretStr
from yarl import URL

from gateway.headers import (
    CONTENT_LENGTH,
    ResponseHead,
    UpstreamHead,
    has_same_origin,
    make_fields,
    make_response_head,
    make_upstream_headers,
    names_loopback,
    read_identity,
    without_cookies,
    without_credential,
)
from gateway.settings import UpstreamSettings
from tests.builders.upstream import make_upstream

CHAT = "/v1/chat/completions"
_names = st.sampled_from([b"X-A", b"x-b", b"Content-Length", b"Server-Timing"])
_headers = st.lists(st.tuples(_names, st.binary(max_size=8)), max_size=4)


def raw(*pairs: tuple[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in pairs]


def to_upstream(
    received: list[tuple[bytes, bytes]], upstream: UpstreamSettings | None = None, path: str = CHAT
) -> list[tuple[str, str]]:
    return list(make_upstream_headers(received, upstream or make_upstream(), path).items())


def to_client(received: list[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    lines = make_response_head(200, "OK", received).render((1, 1)).decode().split("\r\n")
    assert lines[0] == "HTTP/1.1 200 OK" and lines[-2:] == ["", ""]
    return [(name, value) for name, _, value in (line.partition(": ") for line in lines[1:-2])]


HOP_BY_HOP = raw(
    ("Host", "a"),
    ("connection", "Close, x-hop"),
    ("Connection", "x-other-hop"),
    ("X-Hop", "1"),
    ("X-Other-Hop", "1"),
    ("Transfer-Encoding", "chunked"),
    ("TE", "trailers"),
    ("Content-Length", "3"),
    ("Expect", "100-continue"),
    ("X-Gateway-Session", "s"),
    ("X-Stays", "1"),
)


def test_headers_of_one_connection_do_not_pass_to_the_upstream() -> None:
    assert to_upstream(HOP_BY_HOP) == [("X-Stays", "1")]


def test_headers_of_one_connection_do_not_pass_to_the_client() -> None:
    expected = [("Host", "a"), ("Content-Length", "3"), ("Expect", "100-continue"), ("X-Stays", "1")]
    assert to_client(HOP_BY_HOP) == expected


@given(
    st.lists(st.tuples(st.sampled_from(["X-A", "x-a", "Set-Cookie", "B"]), st.text("ab ,;=é", max_size=9)))
)
def test_order_case_and_repetition_are_kept(headers: list[tuple[str, str]]) -> None:
    assert to_upstream(raw(*headers)) == headers
    assert to_client(raw(*headers)) == headers


CALLER = raw(
    ("Authorization", "Bearer caller"),
    ("authorization", "bearer other"),
    ("X-Api-Key", "caller"),
    ("api-key", "caller"),
    ("X-Goog-Api-Key", "caller"),
    ("Ocp-Apim-Subscription-Key", "caller"),
    ("CF-AIG-Authorization", "Bearer caller"),
    ("Cookie", "a=1"),
    ("cookie", "b=1"),
    ("OpenAI-Organization", "org-1"),
    ("openai-project", "proj-1"),
    ("X-Goog-User-Project", "p"),
    ("ChatGPT-Account-Id", "a"),
    ("X-A", "1"),
)


def test_without_a_key_of_the_upstream_the_callers_credentials_pass() -> None:
    assert raw(*to_upstream(CALLER)) == CALLER


@pytest.mark.parametrize(
    ("path", "credential"),
    [
        (CHAT, ("Authorization", "Bearer sk-own")),
        ("/v1/other", ("Authorization", "Bearer sk-own")),
        ("/v1/messages", ("x-api-key", "sk-own")),
    ],
)
def test_a_key_of_the_upstream_replaces_every_credential(path: str, credential: tuple[str, str]) -> None:
    upstream = make_upstream(api_key=SecretStr("sk-own"))
    assert to_upstream(CALLER, upstream, path) == [("X-A", "1"), credential]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/v1/models?key=k", "/v1/models"),
        ("/v1/models?", "/v1/models?"),
        ("/v1/models?a=%2f&key=k&&b", "/v1/models?a=%2f&&b"),
        ("/v1/models?key=k&key=l&x=key", "/v1/models?x=key"),
        ("/v1/models?%6Bey=k&Key=1", "/v1/models?Key=1"),
        ("/v1/models?subscription-key=k&", "/v1/models?"),
        ("/v1/key?keys=1", "/v1/key?keys=1"),
    ],
)
def test_a_credential_leaves_the_query_and_every_other_byte_stays(target: str, expected: str) -> None:
    assert without_credential(target) == expected


def received(*pairs: tuple[str, str]) -> CIMultiDictProxy[str]:
    return CIMultiDictProxy(CIMultiDict(pairs))


def test_credentials_are_read_from_every_form_in_order() -> None:
    pairs = [(name.decode(), value.decode()) for name, value in CALLER]
    identity = read_identity(received(*pairs), "/?key=q")
    assert identity.plain == ("caller", "other", "caller", "caller", "caller")
    assert identity.credentials == (*identity.plain, "caller", "caller", "q")
    assert identity.further == (
        *("ocp-apim-subscription-key:caller", "cf-aig-authorization:caller", "key:q"),
        *("openai-organization:org-1", "openai-project:proj-1"),
        *("x-goog-user-project:p", "chatgpt-account-id:a"),
    )


@pytest.mark.parametrize(
    ("value", "credentials"),
    [("bearer  k ", ("k",)), ("Basic k", ("Basic k",)), ("k", ("k",)), ("Bearer", ()), ("", ())],
)
def test_a_credential_is_read_without_its_scheme(value: str, credentials: tuple[str, ...]) -> None:
    assert read_identity(received(("authorization", value)), "/").credentials == credentials


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1:8080", True),
        ("localhost", True),
        ("[::1]:8080", True),
        ("Host.Docker.Internal:8080", True),
        ("evil.test:8080", False),
        ("[", False),
    ],
)
def test_a_loopback_host_is_recognized(host: str, expected: bool) -> None:
    assert names_loopback(received(("Host", host)), ["host.docker.internal"]) is expected


def test_a_request_without_a_host_names_no_loopback_host() -> None:
    assert not names_loopback(received())


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ("http://127.0.0.1:8080", True),
        ("https://chat.test", True),
        ("http://chat.test", False),
        ("http://127.0.0.1:3000", False),
        ("null", False),
        ("", False),
    ],
)
def test_a_request_of_another_web_page_is_recognized(origin: str, expected: bool) -> None:
    headers = received(("Host", "127.0.0.1:8080"), ("Origin", origin))
    assert has_same_origin(headers, ["https://chat.test"]) is expected
    assert has_same_origin(received(("Host", "127.0.0.1:8080")))


def test_a_response_may_lose_its_cookies() -> None:
    headers = raw(("Set-Cookie", "a=1"), ("X-A", "1"), ("set-cookie", "b=2"))
    assert list(without_cookies(headers)) == raw(("X-A", "1"))


@given(st.sampled_from([200, 404, 499]), st.text(max_size=5), _headers)
def test_a_response_head_has_one_line_for_the_status_and_one_for_each_header(
    status: int, reason: str, headers: list[tuple[bytes, bytes]]
) -> None:
    """Whatever bytes they hold: a space takes the place of each control character."""
    reason = reason.encode("utf-8", "replace").decode()
    rendered = make_response_head(status, reason, headers).render((1, 1))
    first, *lines = rendered.split(b"\r\n")
    assert re.fullmatch(rb"HTTP/1\.1 %d [^\x00-\x08\x0a-\x1f\x7f]*" % status, first)
    assert lines[-2:] == [b"", b""]
    assert len(lines) == len(headers) + 2
    for line, (name, value) in zip(lines, headers, strict=False):
        assert line == b"%b: %b" % (name, re.sub(rb"[\x00-\x08\x0a-\x1f\x7f]", b" ", value))


def test_response_values_that_are_not_valid_text_pass_unchanged() -> None:
    head = make_response_head(200, "OK", [(b"X-Raw", b"\xe9\xff \x80\t.")])
    assert head.render((1, 0)) == b"HTTP/1.0 200 OK\r\nX-Raw: \xe9\xff \x80\t.\r\n\r\n"


def test_response_headers_are_found_and_dropped_regardless_of_case_and_number() -> None:
    head = make_response_head(200, "OK", [(b"CONTENT-length", b"3"), (b"X", b"1"), (b"content-Length", b"4")])
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


def test_a_response_head_of_the_gateway_is_made_of_text() -> None:
    head = ResponseHead(503, "Service Unavailable", make_fields({"Retry-After": "1"}))
    assert head.render((1, 1)) == b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n\r\n"


def make_head(target: str = "/v1/x?", **headers: str) -> UpstreamHead:
    pairs = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return UpstreamHead("POST", URL("http://api.test:8080/v1/x"), target, CIMultiDict(pairs))


def test_an_upstream_head_has_the_target_as_given_and_the_host_first() -> None:
    lines = make_head(X_One="1", x_two="a, b").lines
    assert lines == b"POST /v1/x? HTTP/1.1\r\nHost: api.test:8080\r\nX-One: 1\r\nx-two: a, b\r\n"


def test_request_values_that_are_not_valid_text_pass_unchanged() -> None:
    headers = make_upstream_headers([(b"X-Old", b"caf\xe9 \xc3\xa9")], make_upstream(), CHAT)
    head = UpstreamHead("GET", URL("http://api.test"), "/", headers)
    assert head.lines.endswith(b"X-Old: caf\xe9 \xc3\xa9\r\n")


@pytest.mark.parametrize("bad", ["a\rb", "a\nb", "a\0b", "a\x7fb"])
def test_control_characters_in_an_upstream_head_are_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="control character"):
        make_head(X_Bad=bad).lines  # noqa: B018 - rendered when it is read
    with pytest.raises(ValueError, match="control character"):
        make_head(target=f"/{bad}").lines  # noqa: B018


def test_changing_a_header_makes_another_head() -> None:
    head = make_head(Accept_Encoding="gzip", Content_Encoding="br")
    assert head.asking_for_identity.headers["accept-encoding"] == "identity"
    assert "content-encoding" not in head.without_encoding.headers
    assert list(head.headers.items()) == [("Accept-Encoding", "gzip"), ("Content-Encoding", "br")]
    assert head.without_encoding.without_encoding is head.without_encoding
