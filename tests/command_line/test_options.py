"""The options of each command."""

from pathlib import Path

import pytest

from gateway.command_line.options import (
    SettingsSource,
    load_chosen_settings,
    name_worker,
    parse_arguments,
    parse_first_log,
    render_worker_arguments,
)
from gateway.settings import Log, SettingsError


def test_options_of_serve_choose_the_settings(tmp_path: Path) -> None:
    config = tmp_path / "f.yaml"
    config.write_text("listen: {port: 1}\n")
    words = ["serve", "--config", str(config), "--host", "127.0.0.2", "--port", "2", "--admin-port", "3"]
    options = parse_arguments([*words, "--upstream", "http://up.example/v1"])
    settings = load_chosen_settings(options, {})
    assert (settings.listen.host, settings.listen.port, settings.admin.port) == ("127.0.0.2", 2, 3)
    assert settings.upstreams["default"].base_url == "http://up.example/v1"
    assert (options.workers, settings.log.level) == (1, "info")


def test_the_option_takes_precedence_over_the_level_of_the_file(tmp_path: Path) -> None:
    config = tmp_path / "f.yaml"
    config.write_text("log: {format: json, level: warning}\n")
    words = ["serve", "--config", str(config)]
    levels = [
        load_chosen_settings(parse_arguments([*words, *more]), {}).log
        for more in ([], ["--log-level", "debug"])
    ]
    assert levels == [Log(format="json", level="warning"), Log(format="json", level="debug")]


@pytest.mark.parametrize("workers", ["0", "-1", "1001", "two", "1.5", "auto", ""])
def test_a_number_of_workers_is_from_one_to_a_thousand(
    workers: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_arguments(["serve", f"--workers={workers}"])
    assert caught.value.code == 2
    assert "a number of processes, from 1 to 1000" in capsys.readouterr().err
    assert parse_arguments(["serve", "--workers", "300"]).workers == 300


def test_workers_get_the_options_that_choose_the_settings() -> None:
    words = ["serve", "--config", "f.yaml", "--port", "0", "--log-level", "debug", "--host", "0.0.0.0"]
    options = parse_arguments([*words, "--workers", "4"])
    again = parse_arguments(
        [*render_worker_arguments(options, Log(format="json")), "--as-worker", "2", "--link", "7"]
    )
    for name in ("command", "config", "upstream", "host", "port", "admin_port", "log_level"):
        assert getattr(again, name) == getattr(options, name)
    assert (again.as_worker, again.link, again.workers) == (2, 7, 1)
    assert (parse_first_log(again.first_log), name_worker(again)) == (Log(format="json"), "worker-2")


def test_a_source_keeps_the_text_of_its_last_good_load(tmp_path: Path) -> None:
    config = tmp_path / "f.yaml"
    config.write_text("listen: {port: 1}\n")
    source = SettingsSource(parse_arguments(["serve", "--config", str(config)]), {})
    assert source.load().listen.port == 1
    config.write_text("listen: {prot: 2}\n")
    with pytest.raises(SettingsError):
        source.load()
    assert source.file is not None and source.file.text == "listen: {port: 1}\n"
    assert SettingsSource(parse_arguments(["serve"]), {}).load().listen.port == 8080


def test_the_log_level_is_one_of_four() -> None:
    assert parse_arguments(["serve", "--log-level", "debug"]).log_level == "debug"
    with pytest.raises(SystemExit):
        parse_arguments(["serve", "--log-level", "loud"])


@pytest.mark.parametrize(("word", "nearest"), [("chek", "'check'"), ("model", "'models'"), ("xyz", None)])
def test_an_unknown_command_is_answered_with_the_nearest(
    word: str, nearest: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_arguments([word])
    shown = capsys.readouterr().err
    assert caught.value.code == 2 and f"there is no command '{word}'" in shown
    assert (f"the nearest is {nearest}" in shown) if nearest else ("the nearest" not in shown)


def test_upstreams_are_asked_about_a_model_only() -> None:
    assert parse_arguments(["models", "m", "--ask"]).ask
    with pytest.raises(SystemExit) as caught:
        parse_arguments(["models", "--ask"])
    assert caught.value.code == 2


@pytest.mark.parametrize("name", ["", "gpt\n4", "\x1b[31m", "\udcff"])
@pytest.mark.parametrize("words", [["models"], ["check", "f.yaml", "--model"]])
def test_a_name_that_cannot_be_shown_is_wrong_usage(
    words: list[str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_arguments([*words, name])
    assert caught.value.code == 2 and "printable" in capsys.readouterr().err
    assert parse_arguments([*words, "Qwen é:7b"]).command == words[0]


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_arguments([])
    assert caught.value.code == 2
    assert "refold demo" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", ["serve", "run", "demo", "doctor", "models", "check", "top", "conversations", "health"]
)
def test_the_help_of_each_command_fits_a_terminal_and_names_the_exit_status(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as caught:
        parse_arguments([command, "--help"])
    shown = capsys.readouterr().out
    assert caught.value.code == 0 and "exit status: 0" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_the_health_check_takes_every_option_of_serve() -> None:
    given = ["--port", "1", "--workers", "2", "--watch", "--config", "f", "--log-level", "debug"]
    serve, health = parse_arguments(["serve", *given]), parse_arguments(["health", *given])
    assert (serve.port, serve.config) == (health.port, health.config) == (1, "f")
