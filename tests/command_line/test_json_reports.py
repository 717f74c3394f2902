"""Settings as values for programs."""

from pathlib import Path

from gateway.command_line.console import render_json
from gateway.command_line.json_reports import list_facts
from tests.builders.settings import load_text

TEXT = """\
admin: {token: sk-token-of-admins}
store: redis://:store-password@127.0.0.1:6379/0
upstreams: {up: {base_url: 'http://127.0.0.1:1/v1', api_key: sk-key-of-upstream, formats: [chat]}}
models: [{match: 'm*', context: 9000}]
tenants: [{name: team, keys: [sk-key-of-caller-0123456789]}]
"""


def test_facts_name_what_the_file_says_and_no_secret(tmp_path: Path) -> None:
    facts = list_facts(load_text(tmp_path, TEXT))
    assert facts["upstreams"][0]["has_api_key"] and facts["upstreams"][0]["formats"] == ["chat"]
    assert facts["rules"][0]["match"] == "m*" and facts["rules"][0]["context"] == 9000
    assert facts["tenants"] == [
        {"name": "team", "keys": 1, "upstream": None, "has_api_key": False, "policy": "default"}
    ]
    assert facts["admin"]["has_token"] and facts["store"] == "redis://127.0.0.1:6379/0"
    assert "sk-" not in render_json(facts) and "password" not in render_json(facts)
