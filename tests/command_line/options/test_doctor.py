"""The options of `refold doctor`."""

from gateway.command_line.options import parse_arguments


def test_models_may_be_repeated_and_none_is_asked_unless_named() -> None:
    options = parse_arguments(["doctor", "--model", "a", "--model", "b", "--port", "1"])
    assert (options.models, options.ask, options.port, options.json) == (["a", "b"], None, 1, False)
    assert parse_arguments(["doctor"]).models == []
