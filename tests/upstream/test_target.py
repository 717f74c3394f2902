"""Where a request goes and with which headers: values in, values out."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict
from pydantic import SecretStr

from gateway.core.errors import RequestRefused
from gateway.headers import make_answer_head, make_headers
from gateway.settings import UpstreamSettings
from gateway.settings.schema import WIRE_FORMATS, FormatName
from gateway.upstream.target import make_url


def upstream(
    base_url: str = "https://api.test/v1",
    key: str | None = None,
    formats: Sequence[FormatName] = WIRE_FORMATS,
) -> UpstreamSettings:
    return UpstreamSettings(
        name="default",
        base_url=base_url,
        api_key=SecretStr(key) if key else None,
        formats=frozenset(formats),
        include_usage=True,
        discover=False,
        max_body_bytes=None,
        max_images=None,
        connect_seconds=1,
        idle_seconds=1,
    )


def raw(*pairs: tuple[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in pairs]


def pairs(headers: CIMultiDict[str]) -> list[tuple[str, str]]:
    return list(headers.items())


def answered(received: list[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    """The headers of an answer as they go downstream."""
    lines = make_answer_head(200, "OK", received).render((1, 1)).decode().split("\r\n")
    assert lines[0] == "HTTP/1.1 200 OK" and lines[-2:] == ["", ""]
    return [(name, value) for name, _, value in (line.partition(": ") for line in lines[1:-2])]


@pytest.mark.parametrize(
    "base_url", ["https://api.test/v1", "http://10.0.0.1:8000", "https://api.test/a/b%2Fc"]
)
@pytest.mark.parametrize(
    "path", ["/v1/models", "/models", "/v1/a%2Fb?x=%20&y=", "//evil.test/x", "/@evil.test"]
)
def test_a_path_goes_behind_the_base_url(base_url: str, path: str) -> None:
    assert str(make_url(upstream(base_url), path)) == base_url + path.removeprefix("/v1")


SEGMENTS = st.lists(st.sampled_from(["..", ".", "a", "%2e%2e", "%2E.", "..%2f", "%5c..", "...", "v1", ""]))


@given(SEGMENTS)
def test_no_path_climbs_out(segments: list[str]) -> None:
    """Whatever is let through names no parent, however often it is unquoted by one server."""
    path = "/" + "/".join(segments)
    try:
        url = make_url(upstream(), path)
    except RequestRefused as error:
        assert error.status == 400
    else:
        assert url.host == "api.test"
        assert not {"..", "."} & set(url.path.replace("\\", "/").split("/"))


def test_dots_in_a_query_are_no_path() -> None:
    assert make_url(upstream(), "/x?file=../../y").query_string == "file=../../y"


CHAT = "/v1/chat/completions"
CALLERS = raw(
    ("Authorization", "Bearer caller"), ("X-Api-Key", "caller"), ("api-key", "caller"), ("X-A", "1")
)


def test_without_a_key_the_callers_credentials_pass() -> None:
    assert raw(*pairs(make_headers(CALLERS, upstream(), CHAT))) == CALLERS


def test_a_key_replaces_every_credential() -> None:
    headers = make_headers(CALLERS, upstream("https://api.test", "sk-own"), CHAT)
    assert pairs(headers) == [("X-A", "1"), ("Authorization", "Bearer sk-own")]


def test_a_key_takes_the_form_of_the_only_format() -> None:
    headers = make_headers(CALLERS, upstream("https://api.test", "sk-own"), "/v1/messages")
    assert pairs(headers) == [("X-A", "1"), ("x-api-key", "sk-own")]


def test_what_belongs_to_one_connection_stays_there() -> None:
    received = raw(
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
    assert pairs(make_headers(received, upstream(), CHAT)) == [("X-Stays", "1")]
    kept = answered(received)
    assert kept == [("Host", "a"), ("Content-Length", "3"), ("Expect", "100-continue"), ("X-Stays", "1")]


@given(
    st.lists(st.tuples(st.sampled_from(["X-A", "x-a", "Set-Cookie", "B"]), st.text("ab ,;=é", max_size=9)))
)
def test_order_case_and_repetition_are_kept(headers: list[tuple[str, str]]) -> None:
    received = raw(*headers)
    assert pairs(make_headers(received, upstream(), CHAT)) == headers
    assert answered(received) == headers
