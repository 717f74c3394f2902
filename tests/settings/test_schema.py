"""Single values of a settings file: stores, URLs, credentials."""

from pathlib import Path

import pytest

from gateway.settings import SettingsError
from tests.builders.settings import KEYED, PLAIN, TENANT, assert_refused, load_text


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("store: 'disk:'\n", 1, "disk:PATH"),
        ("store: /var/lib\n", 1, "disk:PATH"),
        ("store: 'redis://'\n", 1, "must be redis://[USER:PASSWORD@]HOST"),
        ("store: 'redis://:hunter2@h?prefx=a'\n", 1, "the nearest valid one is 'prefix'"),
        ("store: 'redis:h'\n", 1, "must be redis://"),
    ],
)
def test_a_store_must_be_of_a_known_form(tmp_path: Path, text: str, line: int, expected: str) -> None:
    assert_refused(tmp_path, text, line, expected)


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("upstreams:\n  a:\n", 2, "base_url: is required"),
        ("upstreams:\n  a: {base_url: 'ftp://x'}\n", 2, "must be http://"),
        ("upstreams:\n  a: {base_url: 'x.example/v1'}\n", 2, "must be http://"),
        ("upstreams:\n  a: {base_url: 'https://x/v1?a=b'}\n", 2, "query or fragment"),
        ("upstreams:\n  a: {base_url: 'https://x/v1#'}\n", 2, "query or fragment"),
        ("upstreams:\n  a: {base_url: 'https://hunter2@x/v1'}\n", 2, "user or password"),
        ("upstreams:\n  a: {base_url: 'https://hunter2:hunter2@x:99999/'}\n", 2, "not a valid URL"),
        ("upstreams:\n  a: {base_url: 'https://x/ y'}\n", 2, "spaces"),
        ("upstreams:\n  a: {base_url: 'localhost:8000/v1'}\n", 2, "must be http://"),
        ("upstreams:\n  a: {base_url: 'http://x/v1/chat/completions'}\n", 2, "write http://x/v1"),
        ("upstreams:\n  a: {base_url: 'http://x/v1/responses/'}\n", 2, "write http://x/v1"),
        ("upstreams:\n  a: {base_url: 'http://x/v1/messages'}\n", 2, "write http://x/v1"),
        ("upstreams:\n  a: {base_url: 'http://x/v1/completions'}\n", 2, "write http://x/v1"),
        ("upstreams:\n  a: {base_url: 'http://x/v1/models'}\n", 2, "write http://x/v1"),
        (
            "upstreams:\n  a: {base_url: 'https://x', formats: [chatt]}\n",
            2,
            "'chat', 'responses' or 'messages'",
        ),
        ("upstreams:\n  a: {base_url: 'https://x', formats: []}\n", 2, "must not be empty"),
        (
            "upstreams:\n  a: {base_url: 'https://x', api_key: 'hunter2 x'}\n",
            2,
            "api_key: must not contain spaces",
        ),
    ],
)
def test_an_upstream_must_be_a_plain_http_url(tmp_path: Path, text: str, line: int, expected: str) -> None:
    assert_refused(tmp_path, text, line, expected)


def test_secrets_do_not_appear_in_the_representation(tmp_path: Path) -> None:
    text = KEYED + TENANT + "admin: {token: sk-admin}\nstore: 'redis://:sk-redis@h/0'\n"
    shown = repr(load_text(tmp_path, text.replace("k1", "sk-tenant")))
    assert "sk-" not in shown


def test_limits_of_an_upstream_are_unknown_unless_configured(tmp_path: Path) -> None:
    plain = load_text(tmp_path, PLAIN).upstreams["default"]
    assert (plain.discover, plain.max_body_bytes, plain.max_images) == (True, None, None)
    said = PLAIN.replace("}", ", discover: false, max_body_bytes: 20000000, max_images: 8}")
    upstream = load_text(tmp_path, said).upstreams["default"]
    assert (upstream.discover, upstream.max_body_bytes, upstream.max_images) == (False, 20_000_000, 8)


@pytest.mark.parametrize("key", ["max_body_bytes: 0", "max_images: 0", "max_images: many", "discover: 7"])
def test_limits_of_an_upstream_are_validated(tmp_path: Path, key: str) -> None:
    with pytest.raises(SettingsError, match=f"upstreams.default.{key.partition(':')[0]}"):
        load_text(tmp_path, PLAIN.replace("}", f", {key}}}"))
