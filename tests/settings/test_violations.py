"""Violations of the schema are reported with their place and in plain words."""

from pathlib import Path

import pytest

from tests.builders.settings import PLAIN, assert_refused


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("lisen: {port: 1}\n", 1, "unknown key 'lisen'; the nearest valid key is 'listen'"),
        ("listen:\n  prt: 1\n", 2, "unknown key 'listen.prt'; the nearest valid key is 'port'"),
        ("policies:\n  p:\n    keep:\n      tail_token: 1\n", 4, "nearest valid key is 'tail_tokens'"),
        ("policies:\n  p:\n    tail_tokens: 1\n", 3, "nearest valid key is 'policies.*.keep.tail_tokens'"),
        (PLAIN + "models:\n  - match: x\n    contxt: 1\n", 5, "unknown key 'models[0].contxt'; the nearest"),
        ("port: 1\n", 1, "nearest valid key is 'listen.port'"),
        ("max_body_byte: 1\n", 1, "nearest valid key is 'listen.max_body_bytes'"),
        ("upstream: {}\n", 1, "nearest valid key is 'upstreams'"),
        ("thresholds: {}\n", 1, "unknown key 'thresholds'; the nearest valid key is 'policies.*.trigger'"),
        ("policies: {p: {window: 1}}\n", 1, "nearest valid key is 'models.*.context'"),
        ("recal: tool\n", 1, "nearest valid key is 'policies.*.recall'"),
        ("tenant: []\n", 1, "nearest valid key is 'tenants'"),
        ("preset: adaptiv\n", 1, "nearest valid key is 'policies.*.preset'"),
        ("log_level: debug\n", 1, "nearest valid key is 'log'"),
        ("zzzz: 1\n", 1, "unknown key 'zzzz'; valid keys here: listen, admin, "),
    ],
)
def test_an_unknown_key_is_reported_with_the_nearest_valid_one(
    tmp_path: Path, text: str, line: int, expected: str
) -> None:
    assert_refused(tmp_path, text, line, expected)


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("listen: {port: '80'}\n", 1, "listen.port: must be a whole number"),
        ("listen:\n  port: 65536\n", 2, "less than or equal to 65535"),
        ("listen:\n  port: -1\n", 2, "greater than or equal to 0"),
        ("listen: {port: true}\n", 1, "whole number"),
        ("listen: {host: ''}\n", 1, "must be an address"),
        ("listen: [1]\n", 1, "must be a section of keys"),
        ("listen: {max_body_bytes: 0}\n", 1, "greater than 0"),
        ("response_headers: 1\n", 1, "must be true or false"),
        ("retention: {days: 0}\n", 1, "greater than 0"),
        ("retention: {days: .nan}\n", 1, "finite"),
        ("drain_seconds: -1\n", 1, "greater than or equal to 0"),
        ("policies:\n  p:\n    trigger: {hard_ratio: 1.5}\n", 3, "less than or equal to 1"),
        ("policies:\n  p:\n    trigger: {output_cap: 0}\n", 3, "greater than 0"),
        ("policies:\n  p:\n    trigger: {formula: magic}\n", 3, "'adaptive', 'source' or 'ratio'"),
        ("policies:\n  p:\n    pruning: {placeholder: ''}\n", 3, "must not be empty"),
        ("upstreams: []\n", 1, "named entries"),
        ("tenants: {}\n", 1, "must be a list"),
    ],
)
def test_a_wrong_type_or_range_is_reported_in_plain_words(
    tmp_path: Path, text: str, line: int, expected: str
) -> None:
    assert_refused(tmp_path, text, line, expected)
