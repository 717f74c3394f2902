from dataclasses import replace

import pytest

from gateway.core.history.head import Head, count_dropped, fingerprint_scope, is_comparable, smooth_growth
from tests.builders.chat import converse
from tests.builders.trimmed import continue_trimmed, say

_HEAD = Head(
    owner="t",
    key="00",
    length=1,
    scope="s",
    tools="",
    prompt_tokens=1_000,
    output_tokens=100,
    growth_tokens=0.0,
    pivot=None,
    batches=(),
    conversation="c",
    parent=None,
)


@pytest.mark.parametrize(
    ("growth", "total", "expected"),
    [(0.0, 1_500, 400.0), (200.0, 1_500, 300.0), (200.0, 1_100, 200.0), (200.0, 500, 200.0), (0.0, 500, 0.0)],
)
def test_growth_is_the_mean_of_two_steps_and_ignores_a_decrease(
    growth: float, total: int, expected: float
) -> None:
    assert smooth_growth(replace(_HEAD, growth_tokens=growth), total) == expected


def test_there_is_no_growth_without_an_earlier_size() -> None:
    assert smooth_growth(None, 5_000) == 0.0
    assert smooth_growth(replace(_HEAD, prompt_tokens=0, output_tokens=0), 5_000) == 0.0


def test_the_total_is_prompt_and_reply() -> None:
    assert _HEAD.total_tokens == 1_100


def test_every_part_of_a_scope_changes_it() -> None:
    scopes = {
        fingerprint_scope("up", "model", [b"a", b"b"], b"tools"),
        fingerprint_scope("other", "model", [b"a", b"b"], b"tools"),
        fingerprint_scope("up", "other", [b"a", b"b"], b"tools"),
        fingerprint_scope("up", "model", [b"a"], b"tools"),
        fingerprint_scope("up", "model", [], b"tools"),
        fingerprint_scope("up", "model", [b"a", b"b"], b""),
        fingerprint_scope("upm", "odel", [b"a", b"b"], b"tools"),
    }
    assert len(scopes) == 7
    assert fingerprint_scope("up", "model", [b"a"], b"x") == fingerprint_scope("up", "model", [b"a"], b"x")


def test_usage_is_comparable_if_as_much_of_the_history_was_missing() -> None:
    whole, trimmed = converse(say(6)), continue_trimmed(say(5), say(6)[10:]).conversation
    assert (count_dropped(whole, 0), count_dropped(trimmed, 0), count_dropped(trimmed, 10)) == (0, 10, 0)
    assert is_comparable(_HEAD, whole)
    assert not is_comparable(_HEAD, trimmed)
    assert is_comparable(replace(_HEAD, dropped=10), trimmed)
    assert is_comparable(replace(_HEAD, pivot="ab", covers=12), trimmed)
    assert not is_comparable(replace(_HEAD, dropped=10), whole)
