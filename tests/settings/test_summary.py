"""What `refold check` prints about valid settings."""

from pathlib import Path

import pytest

from gateway.settings import fingerprint, load_settings, render_summary
from tests.builders.settings import PLAIN, load_text


def test_the_summary_lists_what_would_run_without_secrets(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(
        "store: 'redis://:pw@h:1/0'\n"
        "policies: {p: {preset: opencode, commands: true, economy: 0, recall: tool}}\n"
        "upstreams: {u: {base_url: 'http://x/v1/', api_key: k, formats: [chat]}}\n"
        "tenants: [{name: a, keys: [b]}]\n"
    )
    assert render_summary(load_settings(path, {"GATEWAY_DISABLE_PRUNE": "1"})).splitlines() == [
        "listen    127.0.0.1:8080",
        "store     redis://h:1/0, kept for 7 days",
        "upstream  u: http://x/v1 (chat; uses its own key)",
        "formats   chat go to u; responses, messages (Claude Code) go to u (not in its formats); "
        "none to the built-in upstreams",
        "policy    default: preset adaptive, prune off, economy 1",
        "policy    p: preset opencode, prune off, commands on, recall tool",
        "texts     not shown (page, commands): this needs an admin.token, or show_texts: true in a policy",
        "models    rules: 0",
        "tenants   1",
        "tenant    a: keys: 1, policy default",
    ]


def test_the_summary_says_what_each_tenant_may_use_and_shows_no_key(tmp_path: Path) -> None:
    text = (
        f"{PLAIN}tenants:\n  - name: a\n    keys: [hunter2, 'sha256:{fingerprint('hunter3')}']\n"
        "    upstream: default\n    api_key: hunter4\n    models: [{match: m, context: 8000}]\n"
        "    requests_per_minute: 6000\n    concurrent_requests: 8\n"
        "    summary_budget: {calls_per_hour: 100, tokens_per_hour: 2000000}\n"
    )
    shown = render_summary(load_text(tmp_path, text))
    assert shown.splitlines()[-1] == (
        "tenant    a: keys: 2, upstream default with its own key, policy default, rules: 1, "
        "requests a minute: 6,000, requests at once: 8, summary calls an hour: 100, "
        "summary tokens an hour: 2,000,000"
    )
    assert "hunter" not in shown and fingerprint("hunter3") not in shown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        (
            PLAIN,
            "chat, responses, messages (Claude Code) go to default; none to the built-in upstreams",
        ),
        (
            "upstreams:\n  a: {base_url: 'https://api.openai.com/v1', formats: [chat, responses]}\n"
            "  b: {base_url: 'http://x.example/v1'}\n",
            "chat, responses go to a; messages (Claude Code) go to b; none to api.anthropic.com",
        ),
    ],
)
def test_upstreams_that_replace_the_built_in_ones_say_where_requests_go(
    tmp_path: Path, text: str, expected: str | None
) -> None:
    lines = render_summary(load_text(tmp_path, text)).splitlines()
    found = next((line for line in lines if line.startswith("formats ")), None)
    assert found == (expected and f"formats   {expected}")
