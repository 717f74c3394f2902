"""Rules about models: which patterns and windows are accepted, and what they apply to."""

from pathlib import Path

import pytest

from gateway.settings import ModelRule
from tests.builders.settings import PLAIN, assert_refused, load_text


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("qwen[", "without its ']'"),
        ("qwen[]", "without its ']'"),
        ("[!]x", "without its ']'"),
        ("qwen[z-a]", "ends before it begins"),
        ("^gpt", "regular expression"),
        ("gpt$", "regular expression"),
        (".*", "regular expression"),
        ("gpt.+", "regular expression"),
        ("(gpt|qwen)*", "regular expression"),
        ("qwen{2,3}", "regular expression"),
    ],
)
def test_a_pattern_that_fits_no_model_is_refused(tmp_path: Path, pattern: str, expected: str) -> None:
    assert_refused(tmp_path, f"{PLAIN}models:\n  - {{match: '{pattern}', context: 8000}}\n", 4, expected)


@pytest.mark.parametrize("pattern", ["*", "gpt-4.*", "qwen[23]*", "a[]b]", "[[]x", "org/m-?:free", "@cf/x"])
def test_other_patterns_are_accepted(tmp_path: Path, pattern: str) -> None:
    assert load_text(tmp_path, f"{PLAIN}models: [{{match: '{pattern}', context: 8000}}]\n").models


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ("context: 100", "models[0].context: is a number of tokens, so 128K is written 128000"),
        ("input: 128", "models[0].input: is a number of tokens"),
        ("context: 128k", "models[0].context: must be a whole number of tokens: 128K is written 128000"),
        ("context: 8000, output: 9000", "models[0].output: is larger than context"),
        ("context: 8000, input: 9000", "models[0].input: is larger than context"),
    ],
)
def test_limits_that_no_model_has_are_refused(tmp_path: Path, limits: str, expected: str) -> None:
    assert_refused(tmp_path, f"{PLAIN}models:\n  - {{match: 'm', {limits}}}\n", 4, expected)


def test_a_rule_nearly_applies_if_only_case_or_a_dot_is_in_the_way() -> None:
    rule = ModelRule(match="qwen.*", upstream="up")
    assert rule.nearly_applies_to("Qwen3", "up") and not rule.applies_to("Qwen3", "up")
    assert not rule.nearly_applies_to("gpt", "up") and not rule.nearly_applies_to("qwen3", "other")
