"""What the options of several commands share."""

import argparse

import pytest

from gateway.command_line.options.command import CommandOptions, add_commands, add_json, parse_count


def test_a_count_is_a_number_above_zero() -> None:
    assert parse_count("20") == 20
    for text in ("0", "-1", "", "x", "1.5", "²"):
        with pytest.raises(argparse.ArgumentTypeError):
            parse_count(text)
    assert parse_count("20", most=20) == 20
    with pytest.raises(argparse.ArgumentTypeError):
        parse_count("21", most=20)


def test_commands_get_their_options() -> None:
    parser = argparse.ArgumentParser()
    parsers = add_commands(parser, {"a": CommandOptions("does a", "Does a.", add_json)}, name="action")
    options = parser.parse_args(["a", "--json"])
    assert (options.action, options.json, [*parsers]) == ("a", True, ["a"])
