"""The options of `refold run`, and where those of its command begin."""

import pytest

from gateway.command_line.options import parse_arguments


@pytest.mark.parametrize("dashes", [["--"], []])
def test_everything_behind_the_command_is_the_commands(dashes: list[str]) -> None:
    words = ["run", "--upstream", "http://up.example/v1", *dashes, "claude", "-p", "--config", "x", "--", "y"]
    options = parse_arguments(words)
    assert (options.upstream, options.config) == ("http://up.example/v1", None)
    assert (options.program, options.arguments) == ("claude", ["-p", "--config", "x", "--", "y"])
    assert (options.host, options.port, options.admin_port) == ("127.0.0.1", 0, 0)


def test_a_command_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_arguments(["run", "--"])
    assert caught.value.code == 2 and "COMMAND" in capsys.readouterr().err
