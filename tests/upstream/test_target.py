"""To which upstream and URL a request goes: values in, values out."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy

from gateway.core.errors import RequestRefused
from gateway.settings import load_settings
from gateway.tenants import Tenant, list_tenants
from gateway.upstream.target import Upstreams, make_target, make_url
from tests.builders.upstream import make_upstream

_TEXT = """\
upstreams:
  chat: {base_url: "https://chat.test", formats: [chat]}
  claude: {base_url: "https://claude.test", formats: [messages]}
  late: {base_url: "https://late.test", formats: [chat, messages]}
"""
_BASE_URLS = ["https://api.test/v1", "http://10.0.0.1:8000", "https://api.test/a/b%2Fc"]


def make_headers(**headers: str) -> CIMultiDictProxy[str]:
    return CIMultiDictProxy(CIMultiDict({name.replace("_", "-"): text for name, text in headers.items()}))


@pytest.fixture
def upstreams(tmp_path: Path) -> Upstreams:
    file = tmp_path / "gateway.yaml"
    file.write_text(_TEXT, "utf-8")
    return Upstreams(load_settings(file, {}))


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/chat/completions", "chat"),
        ("/v1/messages", "claude"),
        ("/v1/responses", "chat"),
        ("/v1/x", "chat"),
    ],
)
def test_a_tenant_without_an_upstream_gets_the_first_that_serves_the_format(
    upstreams: Upstreams, path: str, name: str
) -> None:
    assert upstreams.choose(Tenant("t", None, "default"), path, make_headers()).name == name


def test_a_tenants_own_upstream_is_chosen_for_every_path(upstreams: Upstreams) -> None:
    tenant = Tenant("t", "late", "default")
    chosen = {upstreams.choose(tenant, path, make_headers()).name for path in ("/v1/messages", "/v1/x")}
    assert chosen == {"late"}


def test_an_upstream_is_found_by_name(upstreams: Upstreams) -> None:
    found = upstreams.find("claude", "t")
    assert found is not None and found.base_url == "https://claude.test"
    assert upstreams.find("none", "t") is None


def test_a_tenant_with_a_credential_of_its_own_gets_the_upstream_with_that(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    text = (
        "tenants:\n  - {name: a, keys: [k], upstream: late, api_key: sk-own}\n"
        "  - {name: b, keys: [l], upstream: late}\n"
    )
    file.write_text(_TEXT + text, "utf-8")
    settings = load_settings(file, {})
    upstreams = Upstreams(settings)
    tenant, other = list_tenants(settings)
    own = upstreams.choose(tenant, "/v1/chat/completions", make_headers())
    assert own.api_key is not None and own.api_key.get_secret_value() == "sk-own"
    assert (own.name, own.base_url, own.key_owner) == ("late", "https://late.test", tenant.id)
    assert upstreams.find("late", tenant.id) is own
    # Elsewhere, and for others, the shared upstream counts.
    assert upstreams.find("chat", tenant.id) is settings.upstreams["chat"]
    assert upstreams.find("late", other.id) is settings.upstreams["late"]


@pytest.mark.parametrize(
    ("path", "key", "name"),
    [
        ("/v1/models", "sk-ant-api03-a", "anthropic"),
        ("/v1/models", "sk-a", "default"),
        ("/v1/messages", "sk-ant-api03-a", "anthropic"),
        ("/v1/messages", "of-another-form", "anthropic"),
        ("/v1/messages", "sk-a", None),
        ("/v1/messages", "sk-proj-a", None),
        ("/v1/chat/completions", "sk-a", "default"),
        ("/v1/chat/completions", "sk-ant-oat01-a", None),
        ("/v1/models", "of-another-form", None),
    ],
)
def test_the_built_in_upstreams_get_their_own_keys_only(path: str, key: str, name: str | None) -> None:
    upstreams = Upstreams(load_settings(None, {}))
    headers = make_headers(Authorization=f"Bearer {key}")
    try:
        chosen = upstreams.choose(Tenant("t", None, "default"), path, headers).name
    except RequestRefused as error:
        assert (error.status, name) == (400, None)
    else:
        assert chosen == name


@pytest.mark.parametrize("base_url", _BASE_URLS)
@pytest.mark.parametrize(
    "path", ["/v1/models", "/models", "/v1/a%2Fb?x=%20&y=", "//evil.test/x", "/@evil.test"]
)
def test_a_path_is_appended_to_the_base_url(base_url: str, path: str) -> None:
    assert str(make_url(make_upstream(base_url), path)) == base_url + path.removeprefix("/v1")


@pytest.mark.parametrize(
    ("base_url", "path", "target"),
    [
        ("https://api.test/v1", "/v1/models?", "/v1/models?"),
        ("https://api.test", "/v1/a%2fb?x=%20&y=", "/a%2fb?x=%20&y="),
        ("https://api.test", "/v1", "/"),
        ("https://api.test/a/b%2Fc", "/models", "/a/b%2Fc/models"),
    ],
)
def test_the_request_line_names_the_target_byte_for_byte(base_url: str, path: str, target: str) -> None:
    assert make_target(make_upstream(base_url), path) == target


SEGMENTS = st.lists(st.sampled_from(["..", ".", "a", "%2e%2e", "%2E.", "..%2f", "%5c..", "...", "v1", ""]))


@given(SEGMENTS)
def test_a_path_that_leaves_the_base_url_is_refused(segments: list[str]) -> None:
    path = "/" + "/".join(segments)
    try:
        url = make_url(make_upstream(), path)
    except RequestRefused as error:
        assert error.status == 400
    else:
        assert url.host == "api.test"
        assert not {"..", "."} & set(url.path.replace("\\", "/").split("/"))


def test_dots_in_a_query_are_allowed() -> None:
    assert make_url(make_upstream(), "/x?file=../../y").query_string == "file=../../y"
