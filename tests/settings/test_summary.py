"""What `gateway check` prints, and what a gateway prints once it listens."""

from pathlib import Path

import pytest

from gateway.settings import Places, load_settings, render_start_screen, render_summary
from tests.builders.settings import PLAIN, load_text


def test_the_summary_lists_what_would_run_without_secrets(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(
        "store: 'redis://:pw@h:1/0'\npolicies: {p: {preset: opencode, commands: true}}\n"
        "upstreams: {u: {base_url: 'http://x/v1/', api_key: k, formats: [chat]}}\n"
        "tenants: [{name: a, keys: [b]}]\n"
    )
    assert render_summary(load_settings(path, {"GATEWAY_DISABLE_PRUNE": "1"})).splitlines() == [
        "listen    127.0.0.1:8080",
        "store     redis://***@h:1/0, kept for 7 days",
        "upstream  u: http://x/v1 (chat; uses its own key)",
        "policy    default: preset adaptive, prune off",
        "policy    p: preset opencode, prune off, commands on",
        "models    rules: 0",
        "tenants   1",
    ]


def test_the_start_screen_says_where_to_point_a_client_and_where_things_are(tmp_path: Path) -> None:
    settings = load_settings(None, {})
    places = Places(port=1234, admin_port=1235, windows=2_421, directory=tmp_path)
    screen = render_start_screen(settings, places)
    for expected in (
        "base_url http://127.0.0.1:1234/v1",
        "ANTHROPIC_BASE_URL http://127.0.0.1:1234)",
        "http://127.0.0.1:1235/",
        "windows of 2,421 models are known, 0 rules of yours",
        f"state     {tmp_path}, kept for 7 days",
    ):
        assert expected in screen
    assert len(screen.splitlines()) < 24


@pytest.mark.parametrize(
    ("host", "shown"), [("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("::1", "[::1]"), ("gw.lan", "gw.lan")]
)
def test_the_start_screen_shows_addresses_that_a_client_can_use(
    tmp_path: Path, host: str, shown: str
) -> None:
    text = f"listen: {{host: '{host}'}}\nadmin: {{host: '{host}', token: sk-secret}}\nstore: 'memory:'\n"
    screen = render_start_screen(load_text(tmp_path, text), Places(1, 0, 3, None))
    assert f"base_url http://{shown}:1/v1" in screen
    assert "admin     not open" in screen and "in memory" in screen and "sk-secret" not in screen
    assert "upstreams are asked for theirs" in screen
    quiet = render_start_screen(
        load_text(tmp_path, PLAIN.replace("}", ", discover: false}")), Places(1, 0, 3, None)
    )
    assert "are asked" not in quiet
