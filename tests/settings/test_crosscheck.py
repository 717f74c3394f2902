"""Settings that are valid one by one, but do not fit together."""

import sqlite3
from pathlib import Path

import pytest

from gateway.settings import fingerprint
from gateway.settings.crosscheck import is_loopback
from tests.builders.settings import KEYED, PLAIN, TENANT, assert_refused, load_text


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("upstreams:\n  a: {base_url: 'http://127.0.0.1:8080/v1'}\n", 2, "points at the gateway itself"),
        ("upstreams:\n  a: {base_url: 'http://LOCALHOST:8080'}\n", 2, "points at the gateway itself"),
        ("upstreams:\n  a: {base_url: 'http://[::1]:8080'}\n", 2, "points at the gateway itself"),
        (
            "listen: {host: 0.0.0.0, port: 80}\nupstreams:\n  a: {base_url: 'http://localhost'}\n",
            3,
            "gateway itself",
        ),
        ("listen: {host: gw.lan}\nupstreams:\n  a: {base_url: 'http://gw.lan:8080'}\n", 3, "gateway itself"),
    ],
)
def test_an_upstream_must_not_be_the_gateway_itself(
    tmp_path: Path, text: str, line: int, expected: str
) -> None:
    assert_refused(tmp_path, text, line, expected)


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        (f"listen: {{host: 0.0.0.0}}\n{KEYED}", 5, "an open relay"),
        (f"listen: {{host: gw.lan}}\n{KEYED}", 5, "an open relay"),
    ],
)
def test_a_key_must_not_be_usable_by_everybody(tmp_path: Path, text: str, line: int, expected: str) -> None:
    assert_refused(tmp_path, text, line, expected)


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        (
            f"{PLAIN}models: [{{match: x, upstream: defalt}}]\n",
            3,
            "no such upstream; the nearest is 'default'",
        ),
        (f"{PLAIN}{TENANT}    upstream: defalt\n", 6, "no such upstream; the nearest is 'default'"),
        (f"{TENANT}    policy: defaul\n", 4, "no such policy; the nearest is 'default'"),
        (
            f"{PLAIN}policies:\n  p: {{summary: {{upstream: x}}}}\n",
            4,
            "policies.p.summary.upstream: there is no such",
        ),
    ],
)
def test_a_name_must_exist(tmp_path: Path, text: str, line: int, expected: str) -> None:
    assert_refused(tmp_path, text, line, expected)


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        (f"{TENANT}  - name: a\n    keys: [k2]\n", 4, "same name as tenants[0]"),
        (
            f"{TENANT.replace('k1', 'hunter2')}  - name: b\n    keys: [k2, hunter2]\n",
            5,
            "same key as tenants[0].keys[0]",
        ),
        ("tenants: [{name: a, keys: [hunter2, hunter2]}]\n", 1, "same key as tenants[0].keys[0]"),
        (
            f"{TENANT.replace('k1', 'hunter2')}  - name: b\n    keys: ['sha256:{fingerprint('hunter2')}']\n",
            5,
            "same key as tenants[0].keys[0]",
        ),
        ("tenants:\n  - name: a\n    keys: []\n", 3, "keys: must not be empty"),
        ("tenants:\n  - name: a\n    keys: ['']\n", 3, "keys[0]: must not be empty"),
        ("tenants:\n  - name: a\n    keys:\n", 3, "keys: must be a list"),
        ("tenants:\n  - name: a\n    keys: ['${K:-}']\n", 3, "must not be empty"),
        ("tenants:\n  - name: a\n    keys: [123]\n", 3, "must be text"),
        ("tenants:\n  - keys: [k]\n", 2, "tenants[0].name: is required"),
        ("tenants:\n  - {name: a, keys: ['${HUNTER}']}\n", 2, "variable HUNTER is not set"),
    ],
)
def test_tenants_must_not_share_names_or_keys(tmp_path: Path, text: str, line: int, expected: str) -> None:
    assert_refused(tmp_path, text, line, expected)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "models: [{match: m, upstream: defalt}]",
            "tenants[0].models[0].upstream: there is no such upstream",
        ),
        ("models: [{match: m, policy: defalt}]", "tenants[0].models[0].policy: there is no such policy"),
        ("models: [{match: m, context: 2000, output: 3000}]", "models[0].output: is larger than context"),
        ("api_key: hunter2", "tenants[0].api_key: needs the tenant's `upstream`"),
    ],
)
def test_what_a_tenant_has_of_its_own_must_fit(tmp_path: Path, line: str, expected: str) -> None:
    assert_refused(tmp_path, f"{PLAIN}{TENANT}    {line}\n", 6, expected)


_TWO = (
    "upstreams:\n  a: {base_url: 'http://127.0.0.1:8001/v1', formats: [chat]}\n"
    "  b: {base_url: 'http://127.0.0.1:8002/v1', formats: [messages]}\n"
)


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        (TENANT.replace("k1", "hunter2"), 3, "api.anthropic.com:443 and to api.openai.com:443, because"),
        (
            _TWO + TENANT,
            6,
            "tenants[0].keys: would be sent as credentials to 127.0.0.1:8001 and to 127.0.0.1",
        ),
    ],
)
def test_a_key_of_a_tenant_must_not_go_to_two_providers(
    tmp_path: Path, text: str, line: int, expected: str
) -> None:
    assert_refused(tmp_path, text, line, expected)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (_TWO.replace("8002", "8001") + TENANT, "one provider with two names"),
        (_TWO + TENANT + "    upstream: b\n", "the tenant's own upstream"),
        (_TWO.replace("formats: [chat]", "api_key: k") + TENANT, "the first gets all, and has a key"),
        (_TWO.replace("[chat]", "[chat], api_key: k") + TENANT, "one gets keys of callers"),
        (_TWO.replace("[chat]", "[chat, responses, messages]") + TENANT, "the second gets no request"),
    ],
)
def test_a_key_of_a_tenant_may_go_to_one_provider(tmp_path: Path, text: str, why: str) -> None:
    assert load_text(tmp_path, text), why


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("upstreams:\n  a: {base_url: 'http://127.0.0.1:8000/v1/'}\n", "another port"),
        ("listen: {port: 0}\nupstreams:\n  a: {base_url: 'http://127.0.0.1:8080'}\n", "a free port"),
        (
            "listen: {host: 10.0.0.5}\nupstreams:\n  a: {base_url: 'http://127.0.0.1:8080'}\n",
            "another address",
        ),
        (KEYED, "a key on loopback"),
        (f"listen: {{host: 0.0.0.0}}\n{KEYED}{TENANT}", "a key behind tenants"),
        (f"listen: {{host: '::1'}}\n{KEYED}", "a key on loopback"),
        ("listen: {host: 0.0.0.0}\n", "no key to spend"),
        ("store: 'memory:'\n", "a store"),
        ("store: 'redis://:pw@cache:6379/0'\n", "a store"),
        ("models: [{match: '*', context: 0, output: null}]\n", "0 and null are unset"),
    ],
)
def test_similar_settings_are_accepted(tmp_path: Path, text: str, why: str) -> None:
    assert load_text(tmp_path, text), why


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("LOCALHOST.", True),
        ("a.localhost", True),
        ("127.8.0.1", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
        ("localhost.example", False),
    ],
)
def test_a_loopback_address_is_recognized(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("embeddings: {upstream: nowhere, model: m}", "there is no such upstream"),
        ("embeddings: {upstream: default}", "needs both an upstream and a model"),
        ("embeddings: {model: m}", "needs both an upstream and a model"),
    ],
)
def test_embeddings_need_an_upstream_and_a_model(tmp_path: Path, line: str, expected: str) -> None:
    assert_refused(tmp_path, f"{line}\n{PLAIN}", 1, expected)


def test_a_python_that_cannot_load_extensions_says_so_at_the_start(tmp_path: Path) -> None:
    text = f"embeddings: {{upstream: default, model: m}}\n{PLAIN}"
    if hasattr(sqlite3.Connection, "enable_load_extension"):
        assert load_text(tmp_path, text).embeddings.model == "m"
    else:
        assert_refused(tmp_path, text, 1, "can load extensions")
