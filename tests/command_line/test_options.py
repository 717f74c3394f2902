"""The options of each command."""

from pathlib import Path

import pytest

from gateway.command_line.options import load_chosen_settings, parse_arguments


def test_options_of_serve_choose_the_settings(tmp_path: Path) -> None:
    config = tmp_path / "f.yaml"
    config.write_text("listen: {port: 1}\n")
    words = ["serve", "--config", str(config), "--host", "127.0.0.2", "--port", "2", "--admin-port", "3"]
    options = parse_arguments([*words, "--upstream", "http://up.example/v1"])
    settings = load_chosen_settings(options, {})
    assert (settings.listen.host, settings.listen.port, settings.admin.port) == ("127.0.0.2", 2, 3)
    assert settings.upstreams["default"].base_url == "http://up.example/v1"
    assert (options.workers, options.log_level) == (1, "info")


def test_the_log_level_is_one_of_four() -> None:
    assert parse_arguments(["serve", "--log-level", "debug"]).log_level == "debug"
    with pytest.raises(SystemExit):
        parse_arguments(["serve", "--log-level", "loud"])
