from collections.abc import AsyncIterator

import pytest
from aiohttp import hdrs

from gateway.core.errors import RequestRefused
from gateway.pipeline.admission import Admission
from gateway.tenants import Tenancy
from gateway.upstream.target import Upstreams
from tests.builders.pipeline import SETTINGS, load_text, make_request_head

_TENANTS = SETTINGS + "tenants: [{name: a, keys: [sk-a]}]\n"


def make_admission(text: str = SETTINGS) -> Admission:
    settings = load_text(text)
    return Admission(settings, Tenancy(settings), Upstreams(settings))


def test_the_path_tells_the_format() -> None:
    admission = make_admission()
    formats = {
        "/v1/chat/completions": "chat",
        "/v1/messages": "messages",
        "/v1/responses": "responses",
        "/v1/messages/count_tokens": "messages",
        "/v1/embeddings": None,
    }
    for path, name in formats.items():
        wire_format = admission.admit(make_request_head(path)).format
        assert (wire_format.name if wire_format is not None else None) == name


def test_only_a_count_is_a_count() -> None:
    admission = make_admission()
    assert admission.admit(make_request_head("/v1/messages/count_tokens")).is_count
    assert not admission.admit(make_request_head("/v1/messages")).is_count


@pytest.mark.parametrize(
    "head",
    [make_request_head(more=[("x-gateway-bypass", "1")]), make_request_head(method="GET")],
    ids=["bypass", "GET"],
)
def test_a_request_that_need_not_be_understood_is_only_relayed(head: object) -> None:
    assert make_admission().admit(head).format is None  # type: ignore[arg-type]  # from the parameters


def test_equal_heads_get_the_same_route_whatever_the_length_of_their_bodies() -> None:
    admission = make_admission()
    first = admission.admit(make_request_head(more=[("Content-Length", "10")]))
    assert admission.admit(make_request_head(more=[("Content-Length", "11")])) is first
    assert admission.admit(make_request_head(key="sk-other")) is not first


def test_an_unknown_key_is_refused_where_tenants_are_configured() -> None:
    admission = make_admission(_TENANTS)
    assert admission.admit(make_request_head(key="sk-a")).tenant.id == "tenant:a"
    with pytest.raises(RequestRefused) as refused:
        admission.admit(make_request_head(key="sk-b"))
    assert refused.value.status == 401


@pytest.mark.parametrize("path", ["/v1/../admin", "/v1/%2e%2e/admin", "chat"])
def test_a_path_that_leaves_the_base_url_is_refused(path: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        make_admission().admit(make_request_head(path))
    assert refused.value.status == 400


_KEYED = SETTINGS.replace("discover: false", 'discover: false, api_key: "sk-own"')
_HOST = ("Host", "localhost:8080")


def refuse(text: str, path: str, *more: tuple[str, str], method: str = "POST") -> tuple[int, str | None]:
    with pytest.raises(RequestRefused) as refused:
        make_admission(text).admit(make_request_head(path, more, method=method))
    return refused.value.status, refused.value.code


def test_with_a_key_of_the_upstream_only_model_endpoints_are_open() -> None:
    assert refuse(_KEYED, "/v1/files", _HOST, method="GET") == (403, "path_not_allowed")
    allowed = _KEYED.replace("api_key", "allow: [files], api_key")
    assert make_admission(allowed).admit(make_request_head("/v1/files", [_HOST])).format is None
    assert make_admission().admit(make_request_head("/v1/files")).format is None


def test_with_a_key_of_the_upstream_on_loopback_host_and_origin_are_checked() -> None:
    path, origin = "/v1/chat/completions", ("Origin", "http://evil.test")
    assert refuse(_KEYED, path, ("Host", "evil.test")) == (403, "foreign_origin")
    assert refuse(_KEYED, path, _HOST, origin) == (403, "foreign_origin")
    named = "listen: {hosts: [evil.test], origins: ['http://evil.test']}\n"
    for text in (_KEYED + "tenants: [{name: a, keys: [sk-toy]}]\n", _KEYED + named, SETTINGS):
        assert make_admission(text).admit(make_request_head(path, [("Host", "evil.test"), origin]))


def test_a_credential_in_the_query_stays_only_where_the_upstream_has_no_key() -> None:
    head = make_request_head("/v1/models?key=k&a=%20", [_HOST], method="GET")
    assert make_admission(_KEYED).admit(head).head.target == "/v1/models?a=%20"
    assert make_admission().admit(head).head.target == "/v1/models?key=k&a=%20"


def test_names_of_stored_responses_are_noticed_where_the_upstream_has_a_key() -> None:
    paths = ("/v1/responses", "/v1/responses/resp_1", "/v1/chat/completions")
    for text, expected in (
        (_KEYED, [(None, True), ("resp_1", False), (None, False)]),
        (SETTINGS, [(None, False)] * 3),
    ):
        routes = [make_admission(text).admit(make_request_head(path, [_HOST])) for path in paths]
        assert [(route.stored_response, route.naming is not None) for route in routes] == expected


_OWN = (
    SETTINGS
    + "tenants: [{name: a, keys: [sk-a], upstream: default, api_key: sk-up}, {name: b, keys: [sk-b]}]\n"
)


def test_a_tenants_own_credential_takes_the_place_of_the_callers() -> None:
    admission = make_admission(_OWN)
    more = [("Cookie", "a=b"), ("OpenAI-Organization", "org")]
    own = admission.admit(make_request_head("/v1/chat/completions?key=sk-a", more, key="sk-a"))
    assert own.head.headers["Authorization"] == "Bearer sk-up"
    assert own.head.target == "/v1/chat/completions"
    assert own.head.headers.keys().isdisjoint({"Cookie", "OpenAI-Organization"})
    messages = admission.admit(make_request_head("/v1/messages", key="sk-a"))
    assert messages.head.headers["x-api-key"] == "sk-up"
    other = admission.admit(make_request_head("/v1/chat/completions", more, key="sk-b"))
    assert other.head.headers["Authorization"] == "Bearer sk-b"


def test_a_tenants_own_credential_is_guarded_like_a_key_of_the_upstream() -> None:
    admission = make_admission(_OWN)
    with pytest.raises(RequestRefused) as refused:
        admission.admit(make_request_head("/v1/files", method="GET", key="sk-a"))
    assert (refused.value.status, refused.value.code) == (403, "path_not_allowed")
    assert admission.admit(make_request_head("/v1/files", method="GET", key="sk-b")).format is None
    stored = make_request_head("/v1/responses/resp_1", method="GET", key="sk-a")
    assert admission.admit(stored).stored_response == "resp_1"
    assert admission.admit(make_request_head("/v1/responses", key="sk-a")).naming is not None
    assert admission.admit(make_request_head("/v1/responses", key="sk-b")).naming is None


def test_a_websocket_is_refused() -> None:
    with pytest.raises(RequestRefused) as refused:
        make_admission().admit(make_request_head("/v1/responses", [("Upgrade", "WebSocket")], method="GET"))
    assert refused.value.status == 426


def test_the_headers_tell_session_and_sub_agent() -> None:
    more = [("x-session-id", "ses_1"), ("x-parent-session-id", "ses_0")]
    route = make_admission().admit(make_request_head(more=more))
    assert (route.session, route.is_agent) == ("ses_1", True)


def test_a_streamed_body_keeps_the_length_that_the_client_told() -> None:
    async def stream() -> AsyncIterator[bytes]:
        yield b"{}"

    route = make_admission().admit(make_request_head("/v1/embeddings"))
    assert route.with_body(stream(), 2).head.headers[hdrs.CONTENT_LENGTH] == "2"
    # The length of a body that is at hand is known where it is written.
    for call in (route.with_body(stream()), route.with_body(b"{}", 2), route.with_body(None)):
        assert hdrs.CONTENT_LENGTH not in call.head.headers
