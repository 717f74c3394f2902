"""The options of `refold replay`."""

import pytest

from gateway.command_line.options import parse_arguments


def test_policies_may_be_repeated_and_the_rest_is_optional() -> None:
    options = parse_arguments(["replay", "a", "b", "--policy", "x", "--policy", "y", "--window", "64000"])
    assert (options.files, options.policies, options.window) == (["a", "b"], ["x", "y"], 64_000)
    assert (options.price, options.svg, options.json, options.config) == (None, None, False, None)


@pytest.mark.parametrize("arguments", [["replay"], ["replay", "a", "--window", "0"]])
def test_wrong_usage_is_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_arguments(arguments)
    assert ended.value.code == 2


def test_an_export_names_one_conversation_and_perhaps_a_file() -> None:
    options = parse_arguments(["export", "3f2a", "--output", "a.ndjson"])
    assert (options.id, options.output) == ("3f2a", "a.ndjson")
    with pytest.raises(SystemExit):
        parse_arguments(["export", "../x"])
