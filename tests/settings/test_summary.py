"""The summary of the settings that `gateway check` prints."""

from pathlib import Path

from gateway.settings import load_settings, render_summary


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
