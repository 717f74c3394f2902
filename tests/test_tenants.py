"""A credential in, a tenant out; a tenant and a model in, a policy out."""

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy

from gateway.core.errors import RequestRefused
from gateway.settings import Quota, Settings, SettingsError, load_settings
from gateway.tenants import Policies, Tenancy, Tenant, list_tenants, make_tenant_id

OPEN = load_settings(None, {})
TENANTS = """
upstreams:
  one: {base_url: "https://one.test"}
  two: {base_url: "https://two.test"}
policies: {careful: {preset: opencode}}
tenants:
  - {name: a, keys: [sk-a, sk-a2], upstream: two, policy: careful}
  - {name: b, keys: [sk-b]}
"""
HEADER_VALUES = st.text(st.characters(min_codepoint=33, max_codepoint=0x24F), min_size=1, max_size=30)


@pytest.fixture
def closed(tmp_path: Path) -> Settings:
    file = tmp_path / "gateway.yaml"
    file.write_text(TENANTS, "utf-8")
    return load_settings(file, {})


def with_tenants(folder: Path, tenants: str) -> Settings:
    file = folder / "rotated.yaml"
    file.write_text(TENANTS.partition("tenants:")[0] + tenants, "utf-8")
    return load_settings(file, {})


def headers(*pairs: tuple[str, str]) -> CIMultiDictProxy[str]:
    return CIMultiDictProxy(CIMultiDict(pairs))


def bearer(key: str) -> CIMultiDictProxy[str]:
    return headers(("Authorization", f"Bearer {key}"))


def test_operators_see_the_name_of_a_tenant_or_the_beginning_of_a_hash(closed: Settings) -> None:
    assert Tenancy(closed).identify(bearer("sk-a")).display_name == "a"
    tenant = Tenancy(OPEN).identify(bearer("sk-a"))
    assert tenant.display_name == tenant.id[:16] and len(tenant.id) > 60


def test_a_configured_key_names_its_tenant(closed: Settings) -> None:
    tenancy = Tenancy(closed)
    expected = Tenant("tenant:a", "two", "careful")
    assert [tenancy.identify(bearer(key)) for key in ("sk-a", "sk-a2", "sk-a")] == [expected] * 3
    assert tenancy.identify(bearer("sk-b")) == Tenant("tenant:b", None, "default")


@pytest.mark.parametrize("key", ["", "sk-", "sk-A", "sk-a3", "SK-B", "sk-a sk-b"])
def test_an_unknown_key_is_refused_every_time(closed: Settings, key: str) -> None:
    tenancy = Tenancy(closed)
    for _ in range(2):
        with pytest.raises(RequestRefused) as refused:
            tenancy.identify(bearer(key))
        assert (refused.value.status, refused.value.code) == (401, "invalid_api_key")
        assert not key or key not in str(refused.value)


def test_the_hash_of_a_key_is_not_accepted_as_a_key(closed: Settings) -> None:
    fingerprint = Tenancy(OPEN).identify(bearer("sk-a")).id.removeprefix("key:")
    with pytest.raises(RequestRefused):
        Tenancy(closed).identify(bearer(fingerprint))


def test_a_key_of_which_only_the_hash_is_configured_is_accepted(tmp_path: Path) -> None:
    hashed = f"sha256:{hashlib.sha256(b'sk-a').hexdigest()}"
    tenancy = Tenancy(with_tenants(tmp_path, f"tenants: [{{name: a, keys: ['{hashed}']}}]\n"))
    assert tenancy.identify(bearer("sk-a")).id == "tenant:a"
    for wrong in (hashed, hashed.removeprefix("sha256:")):
        with pytest.raises(RequestRefused):
            tenancy.identify(bearer(wrong))


def test_a_tenant_stays_the_same_while_its_keys_change(tmp_path: Path) -> None:
    """State is kept under its id, so a rotation of keys loses nothing."""
    steps = ("[old]", "[old, new]", "[new]")
    ids = []
    for keys in steps:
        tenancy = Tenancy(with_tenants(tmp_path, f"tenants: [{{name: a, keys: {keys}}}]\n"))
        ids.append(tenancy.identify(bearer("old" if keys == "[old]" else "new")).id)
    assert set(ids) == {make_tenant_id("a")}
    with pytest.raises(RequestRefused):
        tenancy.identify(bearer("old"))


def test_two_forms_of_one_tenants_keys_in_one_request_are_accepted(closed: Settings) -> None:
    pairs = (("Authorization", "Bearer sk-a"), ("x-api-key", "sk-a2"))
    assert Tenancy(closed).identify(headers(*pairs)).id == "tenant:a"


def test_a_tenant_without_any_limit_has_no_quota(tmp_path: Path) -> None:
    text = "tenants: [{name: a, keys: [a]}, {name: b, keys: [b], requests_per_minute: 7}]\n"
    free, bound = list_tenants(with_tenants(tmp_path, text))
    assert free.quota is None
    assert bound.quota == Quota(requests_per_minute=7)


@given(HEADER_VALUES, HEADER_VALUES)
def test_without_tenants_each_key_is_its_own_tenant_and_only_its_hash_is_kept(
    first: str, second: str
) -> None:
    tenancy = Tenancy(OPEN)
    one, other = tenancy.identify(bearer(first)), tenancy.identify(bearer(second))
    assert (one == other) == (first == second)
    assert one == Tenancy(OPEN).identify(bearer(first))
    assert len(first) < 8 or first not in one.id


KEY_FORMS = [
    ((("Authorization", "Bearer sk-a"),), "/"),
    ((("x-api-key", "sk-a"),), "/"),
    ((("API-Key", "sk-a"),), "/"),
    ((("x-goog-api-key", "sk-a"),), "/"),
    ((("Ocp-Apim-Subscription-Key", "sk-a"),), "/"),
    ((("cf-aig-authorization", "bearer sk-a"),), "/"),
    ((), "/v1/models?key=sk-a"),
    ((("Authorization", "Bearer none"), ("x-goog-api-key", "sk-a")), "/"),
    ((("Authorization", "Bearer none"), ("Authorization", "Bearer sk-a")), "/"),
    ((("Authorization", "Bearer sk-a"), ("x-api-key", "sk-a2")), "/?key=none"),
]


@pytest.mark.parametrize(("pairs", "target"), KEY_FORMS, ids=str)
def test_a_configured_key_is_found_in_every_form(
    closed: Settings, pairs: tuple[tuple[str, str], ...], target: str
) -> None:
    assert Tenancy(closed).identify(headers(*pairs), target).id == "tenant:a"


def test_keys_of_two_tenants_in_one_request_are_refused(closed: Settings) -> None:
    with pytest.raises(RequestRefused) as refused:
        Tenancy(closed).identify(headers(("Authorization", "Bearer sk-a"), ("x-api-key", "sk-b")))
    assert refused.value.status == 401


def test_a_caller_with_usual_keys_alone_keeps_the_id_under_which_its_state_lies() -> None:
    tenancy = Tenancy(OPEN)
    pairs = [("Authorization", "Bearer a"), ("x-api-key", "b"), ("api-key", "c"), ("x-goog-api-key", "d")]
    for end in range(len(pairs) + 1):
        joined = "\0".join(value.split()[-1] for _, value in pairs[:end])
        expected = f"key:{hashlib.sha256(joined.encode()).hexdigest()}"
        assert tenancy.identify(headers(*pairs[:end])).id == expected


DIFFERENCES = [
    ((("x-goog-api-key", "1"),), ""),
    ((("ocp-apim-subscription-key", "1"),), ""),
    ((("ocp-apim-subscription-key", "2"),), ""),
    ((("cf-aig-authorization", "Bearer 1"),), ""),
    ((("openai-organization", "1"),), ""),
    ((("OpenAI-Project", "1"),), ""),
    ((("OpenAI-Project", "1"), ("openai-organization", "1")), ""),
    ((("x-goog-user-project", "1"),), ""),
    ((("chatgpt-account-id", "1"),), ""),
    ((), "/v1/models?key=1"),
    ((), "/v1/models?a=b&key=%2f"),
    ((), "/v1/models?subscription-key=1"),
    ((("Authorization", "Bearer other"),), ""),
    ((), ""),
]


@pytest.mark.parametrize("known", [(), (("Authorization", "Bearer k"),)])
def test_callers_who_differ_in_any_form_are_different_tenants(known: tuple[tuple[str, str], ...]) -> None:
    tenancy = Tenancy(OPEN)
    found = {tenancy.identify(headers(*known, *pairs), target).id for pairs, target in DIFFERENCES}
    assert len(found) == len(DIFFERENCES)


def test_a_cookie_counts_only_where_there_is_no_credential() -> None:
    """Cookies of load balancers change with every response."""
    tenancy = Tenancy(OPEN)
    key, cookies = ("x-api-key", "k"), [("Cookie", "session=1"), ("Cookie", "session=2")]
    assert len({tenancy.identify(headers(cookie)) for cookie in cookies}) == 2
    assert len({tenancy.identify(headers(key, cookie)) for cookie in cookies}) == 1


def test_callers_without_a_key_share_one_tenant() -> None:
    assert Tenancy(OPEN).identify(headers()) == Tenancy(OPEN).identify(headers(("X-Odd", "1")))


def test_a_key_that_is_not_valid_text_is_accepted_like_any_other() -> None:
    odd = b"k\xe9y".decode("utf-8", "surrogateescape")
    assert Tenancy(OPEN).identify(bearer(odd)) != Tenancy(OPEN).identify(bearer("key"))


_TEXT = """\
upstreams: {default: {base_url: "https://a.example"}, local: {base_url: "https://b.example"}}
policies: {default: , careful: {preset: recent}, small: {preset: rolling}}
models:
  - {match: "gpt-4o*", context: 1000}
  - {match: "qwen*", upstream: local, policy: small}
  - {match: "qwen*", context: 2000, policy: careful}
  - {match: "qwen-max", policy: small}
"""


def load(folder: Path, text: str = _TEXT) -> Settings:
    path = folder / "f.yaml"
    path.write_text(text, "utf-8")
    return load_settings(path, {})


def choose(settings: Settings, model: str, upstream: str = "default", policy: str = "default") -> str:
    return Policies(settings).choose(Tenant("t", None, policy), upstream, model).name


@pytest.mark.system(9)
def test_the_first_rule_that_fits_and_names_a_policy_decides(tmp_path: Path) -> None:
    settings = load(tmp_path)
    assert choose(settings, "gpt-4o") == "adaptive"
    assert choose(settings, "qwen-max") == "recent"
    assert choose(settings, "qwen-max", upstream="local") == "rolling"


def test_without_such_a_rule_the_tenants_policy_holds(tmp_path: Path) -> None:
    settings = load(tmp_path)
    assert choose(settings, "gpt-4o", policy="careful") == "recent"
    assert choose(settings, "qwen", policy="careful", upstream="local") == "rolling"


def test_a_tenants_own_rules_come_before_those_of_all(tmp_path: Path) -> None:
    own = "tenants: [{name: a, keys: [k], models: [{match: 'qwen-m*', policy: small}]}]\n"
    settings = load(tmp_path, _TEXT + own)
    policies, (tenant,) = Policies(settings), list_tenants(settings)
    assert policies.choose(tenant, "default", "qwen-max").name == "rolling"
    assert policies.choose(tenant, "default", "qwen-plus").name == "recent"
    assert policies.choose(Tenant("t", None, "default"), "default", "qwen-max").name == "recent"


def test_a_tenants_own_rules_count_without_any_for_all(tmp_path: Path) -> None:
    text = _TEXT.partition("models:")[0]
    own = "tenants: [{name: a, keys: [k], models: [{match: 'q*', policy: small}]}, {name: b, keys: [l]}]\n"
    settings = load(tmp_path, text + own)
    policies = Policies(settings)
    chosen = [policies.choose(tenant, "default", "qwen").name for tenant in list_tenants(settings)]
    assert chosen == ["rolling", "adaptive"]


def test_equal_arguments_give_the_same_object_however_many_models_are_named(tmp_path: Path) -> None:
    policies = Policies(load(tmp_path))
    tenant = Tenant("t", None, "default")
    first = policies.choose(tenant, "default", "qwen")
    for at in range(10_000):
        policies.choose(tenant, "default", f"m{at}")
    assert policies.choose(tenant, "default", "qwen") is first


def test_a_rule_that_only_names_a_policy_does_not_hide_limits(tmp_path: Path) -> None:
    rules = [rule for rule in load(tmp_path).models if rule.is_about_limits]
    assert [rule.limits.context for rule in rules] == [1_000, 2_000]


def test_a_rule_cannot_name_a_policy_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"f\.yaml:5: models\[1\]\.policy: there is no such policy"):
        load(tmp_path, _TEXT.replace("local, policy: small", "local, policy: smal"))
