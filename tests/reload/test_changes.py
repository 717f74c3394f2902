"""Which keys of a new file hold at once, and which wait for the next start."""

import logging
from dataclasses import fields
from pathlib import Path

import pytest

from gateway.reload.changes import FIXED, Change, check_change, find_change, log_change
from gateway.settings import Settings, SettingsError
from tests.builders.settings import PLAIN, load_text

_MANY = """
listen: {port: 9000, max_body_bytes: 1000, origins: ["https://a.example"]}
admin: {port: 9001, token: "t"}
store: "memory:"
retention: {days: 1}
cache: {bodies: 3}
bounds: {summaries: 1}
response_headers: false
"""


def change_to(folder: Path, text: str) -> Change:
    return find_change(load_text(folder, PLAIN), load_text(folder, PLAIN + text))


def test_what_is_opened_or_sized_at_the_start_stays_and_is_named(tmp_path: Path) -> None:
    change, before = change_to(tmp_path, _MANY), load_text(tmp_path, PLAIN)
    assert change.postponed == (
        *("listen.port", "listen.max_body_bytes", "admin.port", "store", "retention.days"),
        *("cache.bodies", "bounds.summaries"),
    )
    after = change.settings
    assert (after.listen.port, after.listen.max_body_bytes) == (8080, before.listen.max_body_bytes)
    assert (after.admin.port, after.store, after.cache) == (8081, before.store, before.cache)
    assert (after.bounds, after.retention) == (before.bounds, before.retention)


def test_the_rest_of_the_same_sections_holds_at_once(tmp_path: Path) -> None:
    change = change_to(tmp_path, _MANY)
    assert change.sections == ("listen", "admin", "response_headers")
    assert change.settings.listen.origins == ["https://a.example"]
    assert change.settings.admin.token is not None
    assert not change.settings.response_headers


def test_equal_settings_are_no_change(tmp_path: Path) -> None:
    change = change_to(tmp_path, "# a comment\n")
    assert (change.sections, change.postponed) == ((), ())


def test_every_section_says_whether_a_reload_may_change_it() -> None:
    """A new one has to be added here, or to FIXED."""
    live = {
        "hooks",
        "response_headers",
        "mcp",
        "drain_seconds",
        "keepalive",
        "upstreams",
        "models",
        "policies",
    }
    live |= {"tenants", "log", "warnings", "model_origins"}
    assert {each.name for each in fields(Settings)} == live | FIXED.keys()


def test_the_log_names_sections_and_keys_and_no_value(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gateway.reload")
    log_change(change_to(tmp_path, "cache: {bodies: 3}\nadmin: {token: very-secret}\n"))
    log_change(change_to(tmp_path, ""))
    assert caplog.messages == [
        "settings reloaded: admin",
        "these settings hold from the next start on: cache.bodies",
        "settings reloaded: nothing has changed",
    ]


async def test_an_upstream_that_is_the_gateway_itself_cannot_be_used(tmp_path: Path) -> None:
    before = load_text(tmp_path, PLAIN)
    after = load_text(tmp_path, 'upstreams: {default: {base_url: "http://127.0.0.1:8099/v1"}}\n')
    await check_change(find_change(before, after), after, 8098)
    with pytest.raises(SettingsError, match="points at the gateway itself"):
        await check_change(find_change(before, after), after, 8099)


def test_a_token_is_taken_away_by_the_next_start_alone(tmp_path: Path) -> None:
    """A worker that has not reloaded yet shows texts to whom the supervisor lets pass."""
    closed = load_text(tmp_path, PLAIN + "admin: {token: t}\n")
    for more in ("", "admin: {port: 9001}\n"):
        change = find_change(closed, load_text(tmp_path, PLAIN + more))
        assert change.settings.admin == closed.admin and "admin.token" in change.postponed
    renewed = find_change(closed, load_text(tmp_path, PLAIN + "admin: {token: u}\n"))
    assert renewed.settings.admin.token != closed.admin.token and renewed.postponed == ()
