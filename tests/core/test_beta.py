import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.beta import has_long_window

FLAG = b"context-1m-2025-08-07"


@pytest.mark.parametrize(
    "model",
    [
        "claude-sonnet-4-20250514",
        "claude-sonnet-4-5-20250929",
        "anthropic/claude-sonnet-4.5",
        "us.anthropic.claude-sonnet-4-20250514-v1:0",
        "claude-4-sonnet",
    ],
)
def test_a_sonnet_with_the_flag_has_the_long_window(model: str) -> None:
    assert has_long_window(model, [(b"Anthropic-Beta", FLAG)])
    assert not has_long_window(model, [(b"Anthropic-Version", FLAG)])
    assert not has_long_window(model, [])


@pytest.mark.parametrize(
    "model",
    ["claude-opus-4-5", "gpt-4o", "", "claude-3-5-sonnet-20241022", "claude-3.7-sonnet", "sonnet-3.5"],
)
def test_no_other_model_has_it(model: str) -> None:
    assert not has_long_window(model, [(b"anthropic-beta", FLAG)])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([b"oauth-2025-04-20, " + FLAG + b",x"], True),
        ([b"oauth-2025-04-20", FLAG], True),
        ([FLAG + b"x"], False),
        ([b"no-" + FLAG], False),
        ([FLAG[:-1]], False),
        ([b""], False),
    ],
)
def test_the_flag_is_one_of_a_list(values: list[bytes], expected: bool) -> None:
    headers = [(b"anthropic-beta", value) for value in values]
    assert has_long_window("claude-sonnet-4-5", headers) is expected


@given(st.text(), st.lists(st.tuples(st.binary(), st.binary())))
def test_nothing_that_a_caller_sends_breaks_it(model: str, headers: list[tuple[bytes, bytes]]) -> None:
    assert not has_long_window(model, headers)
    assert not has_long_window(f"sonnet{model}", [(b"anthropic-beta", value + b"-") for _, value in headers])
