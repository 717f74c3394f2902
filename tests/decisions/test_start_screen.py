"""What a gateway prints once it listens."""

import json
import logging
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.command_line.start_screen import Places, render_start_screen
from gateway.reporting.reporter import COMPACTED
from gateway.settings import load_settings
from tests.builders.settings import KEYED, PLAIN, TENANT, load_text

PLACES = Places(port=1234, admin_port=1235, windows=2_421, directory=Path("/srv/state"))


def read_request(screen: str) -> list[str]:
    """The words of the request that the screen shows, as a shell reads them."""
    found = re.search(r"curl (?:.*\\\n)*.*\n", screen)
    assert found is not None
    return shlex.split(found[0])


def test_the_screen_says_how_many_workers_there_are() -> None:
    settings = load_settings(None, {})
    assert "processes" not in render_start_screen(settings, PLACES)
    screen = render_start_screen(settings, replace(PLACES, workers=4))
    assert "  workers   4 processes on one port\n" in screen


def test_the_screen_says_where_to_point_a_client_and_where_things_are() -> None:
    screen = render_start_screen(load_settings(None, {}), PLACES)
    for expected in (
        "To see it work without a model: refold demo\n",
        "  clients   base_url http://127.0.0.1:1234/v1\n",
        "Claude Code and Anthropic SDKs: http://127.0.0.1:1234, without /v1\n",
        "  admin     http://127.0.0.1:1235/ in a browser, /api/v1 and /metrics for programs",
        "  models    2,421 windows are known, upstreams are asked; see refold models NAME\n",
        "  state     /srv/state, kept for 7 days\n",
    ):
        assert expected in screen
    assert len(screen.splitlines()) <= 16
    assert max(map(len, screen.splitlines())) <= 100


@pytest.mark.parametrize(
    ("formats", "shown"),
    [
        ("[chat]", ["  clients   base_url http://127.0.0.1:1234/v1"]),
        ("[messages]", ["  clients   Claude Code and Anthropic SDKs: http://127.0.0.1:1234, without /v1"]),
    ],
)
def test_only_clients_whose_formats_are_supported_are_told_where_to_go(
    tmp_path: Path, formats: str, shown: list[str]
) -> None:
    settings = load_text(tmp_path, PLAIN.replace("}", f", formats: {formats}}}"))
    lines = render_start_screen(settings, PLACES).splitlines()
    assert [line for line in lines if "base_url" in line or "Claude Code and" in line] == shown


def test_the_request_can_be_pasted() -> None:
    words = read_request(render_start_screen(load_settings(None, {}), PLACES))
    assert words[0] == "curl" and "http://127.0.0.1:1234/v1/chat/completions" in words
    assert "Authorization: Bearer $OPENAI_API_KEY" in words
    assert json.loads(words[-1])["model"] == "gpt-4o-mini"


@pytest.mark.parametrize(
    ("text", "expected", "absent"),
    [
        (KEYED, "/v1/chat/completions", "Authorization"),
        (KEYED + TENANT, "Bearer KEY-OF-A-TENANT", "OPENAI_API_KEY"),
        (PLAIN + "models: [{match: 'qwen*', context: 9000}, {match: q3, context: 9000}]\n", '"q3"', "qwen"),
        (PLAIN, '"model":"MODEL"', "gpt"),
        (
            "upstreams: {a: {base_url: 'https://api.anthropic.com/v1', formats: [messages]}}\n",
            "x-api-key: $ANTHROPIC_API_KEY",
            "Bearer",
        ),
        (KEYED + "    formats: [messages]\n", "anthropic-version: 2023-06-01", "ANTHROPIC_API_KEY"),
        (PLAIN + 'models: [{match: "it\'s", context: 9000}]\n', "it", "gpt"),
        (PLAIN.replace("}", ", formats: [responses]}"), '"input":"Hello"', "messages"),
    ],
)
def test_the_request_fits_the_settings(tmp_path: Path, text: str, expected: str, absent: str) -> None:
    screen = render_start_screen(load_text(tmp_path, text), PLACES)
    request = " ".join(shlex.quote(word) for word in read_request(screen))
    assert expected in request and absent not in request


def test_the_line_of_the_log_is_the_one_that_the_gateway_logs() -> None:
    screen = render_start_screen(load_settings(None, {}), PLACES)
    record = logging.LogRecord("gateway.compactor", logging.INFO, "", 0, COMPACTED, (3, 4), None)
    shown = re.escape(f"{record.levelname} {record.name} {record.getMessage()}").replace("3", "…")
    assert re.search(shown.replace("4", "…"), screen)


def test_a_line_that_the_log_leaves_out_is_not_announced() -> None:
    quiet = replace(PLACES, logs_compactions=False)
    assert "gateway.compactor" not in render_start_screen(load_settings(None, {}), quiet)


def test_hidden_headers_are_not_announced(tmp_path: Path) -> None:
    assert "x-gateway-plan" in render_start_screen(load_settings(None, {}), PLACES)
    hidden = load_text(tmp_path, "response_headers: false\n")
    assert "x-gateway-plan" not in render_start_screen(hidden, PLACES)


@pytest.mark.parametrize(
    ("host", "shown"), [("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("::1", "[::1]"), ("gw.lan", "gw.lan")]
)
def test_addresses_are_those_that_a_client_can_use(tmp_path: Path, host: str, shown: str) -> None:
    text = f"listen: {{host: '{host}'}}\nadmin: {{host: '{host}', token: sk-secret}}\nstore: 'memory:'\n"
    screen = render_start_screen(load_text(tmp_path, text), Places(1, 0, 3, None))
    assert f"base_url http://{shown}:1/v1\n" in screen
    assert "admin     not open" in screen and "in memory" in screen and "sk-secret" not in screen


def test_rules_and_upstreams_that_are_not_asked_are_named(tmp_path: Path) -> None:
    quiet = PLAIN.replace("}", ", discover: false}") + "models: [{match: q, context: 9000}]\n"
    screen = render_start_screen(load_text(tmp_path, quiet), PLACES)
    assert "windows are known, rules of yours: 1; see" in screen
