"""What a file may say about tenants: keys as text or as hashes, and how much each may use."""

import subprocess
from pathlib import Path

import pytest
from pydantic import SecretStr

from gateway.settings import Quota, fingerprint
from gateway.settings.tenant_schema import fingerprint_key
from tests.builders.settings import PLAIN, TENANT, assert_refused, load_text

_HASH = fingerprint("hunter2")


def test_a_key_and_its_hash_are_the_same_key() -> None:
    forms = ("hunter2", f"sha256:{_HASH}", f"sha256:{_HASH.upper()}")
    assert {fingerprint_key(SecretStr(form)) for form in forms} == {_HASH}


def test_the_hash_is_what_the_documented_command_writes() -> None:
    done = subprocess.run(
        ["sh", "-c", "printf %s hunter2 | sha256sum"], capture_output=True, check=True, text=True
    )
    assert done.stdout.split()[0] == _HASH


@pytest.mark.parametrize("key", ["sha256:", "sha256:hunter2", f"sha256:{_HASH}0", f"sha256:{_HASH[1:]}"])
def test_a_hash_that_is_none_is_refused_without_being_shown(tmp_path: Path, key: str) -> None:
    text = f"tenants:\n  - name: a\n    keys: ['{key}']\n"
    assert_refused(tmp_path, text, 3, "tenants[0].keys[0]: must have 64 hexadecimal digits after sha256:")


def test_neither_keys_nor_credentials_are_in_the_representation(tmp_path: Path) -> None:
    text = f"{PLAIN}{TENANT.replace('k1', 'hunter2')}    upstream: default\n    api_key: hunter3\n"
    shown = repr(load_text(tmp_path, text))
    assert "hunter" not in shown


def test_what_is_not_limited_is_unlimited(tmp_path: Path) -> None:
    assert load_text(tmp_path, PLAIN + TENANT).tenants[0].quota == Quota()


def test_every_limit_is_read(tmp_path: Path) -> None:
    text = (
        f"{PLAIN}{TENANT}    requests_per_minute: 60\n    concurrent_requests: 4\n"
        "    summary_budget: {calls_per_hour: 0, tokens_per_hour: 900000}\n"
    )
    assert load_text(tmp_path, text).tenants[0].quota == Quota(
        requests_per_minute=60,
        concurrent_requests=4,
        summary_calls_per_hour=0,
        summary_tokens_per_hour=900_000,
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("requests_per_minute: 0", "tenants[0].requests_per_minute: must be greater than 0"),
        ("requests_per_minute: 1.5", "tenants[0].requests_per_minute: must be a whole number"),
        ("concurrent_requests: -1", "tenants[0].concurrent_requests: must be greater than 0"),
        ("summary_budget: {calls_per_hour: -1}", "calls_per_hour: must be greater than or equal to 0"),
        ("summary_budget: {calls: 1}", "the nearest valid key is 'calls_per_hour'"),
        ("request_per_minute: 1", "the nearest valid key is 'requests_per_minute'"),
        ("models: [{match: 'gpt['}]", "tenants[0].models[0].match: has a '[' without its ']'"),
    ],
)
def test_a_wrong_limit_names_its_line_and_key(tmp_path: Path, line: str, expected: str) -> None:
    assert_refused(tmp_path, f"{PLAIN}{TENANT}    {line}\n", 6, expected)
