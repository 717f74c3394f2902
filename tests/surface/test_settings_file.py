"""A settings file as text: YAML with line numbers, references to variables and files, what comes first."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.surface.written import KEYED, PLAIN, assert_refused, check, read_facts, write
from tests.toy.agent import make_session
from tests.toy.product import Result, command, serve
from tests.toy.running import run_session
from tests.toy.upstream import ToyUpstream

_NOT_YAML = [
    ("store: x\nlog: {}\nstore: y\n", 3, "duplicate key 'store', first at"),
    ("listen:\n  port: 1\n  port: 2\n", 3, "duplicate key 'port'"),
    ("store: !!python/object:os.system x\n", 1, "tags"),
    ("listen: !mine {port: 1}\n", 1, "tags"),
    ("store: &x 'memory:'\nlisten: *x\n", 2, "aliases are not supported"),
    ("listen:\n  <<: {port: 1}\n", 2, "plain name"),
    ("? [listen]\n: 1\n", 1, "plain name"),
    ("${A}: 1\n", 1, "not for keys"),
    ("listen: [1\n", 2, "not valid YAML"),
    ("log: {}\n--- \nlog: {}\n", 2, "not valid YAML"),
    ("drain_seconds: 0x_\n", 1, "not a valid number"),
    ("- a\n", 1, "must be a mapping"),
    ("text\n", 1, "must be a mapping"),
]


@pytest.mark.parametrize(("text", "line", "expected"), _NOT_YAML)
def test_what_is_no_settings_file_is_told_with_its_line(
    tmp_path: Path, text: str, line: int, expected: str
) -> None:
    assert_refused(tmp_path, text, line, expected)


@pytest.mark.parametrize("content", [b"store: \xff\n", b"store: \x01\n", b"[" * 5000])
def test_a_file_that_is_not_text_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(content)
    result = command("check", str(path))
    assert result.status == 2 and "f.yaml" in result.err and "Traceback" not in result.err


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    result = command("check", str(tmp_path / "none.yaml"))
    assert result.status == 2 and "none.yaml: cannot be read" in result.err


@pytest.mark.parametrize(
    "text", ["", "# only a comment\n", "---\n", "null\n", "upstreams:\ntenants:\nlisten:\n"]
)
def test_an_empty_file_means_the_defaults(tmp_path: Path, text: str) -> None:
    facts = read_facts(tmp_path, text)
    assert facts["listen"] == {"host": "127.0.0.1", "port": 8080}
    assert facts["admin"] == {"host": "127.0.0.1", "port": 8081, "has_token": False}
    assert {each["name"]: (each["base_url"], each["formats"]) for each in facts["upstreams"]} == {
        "default": ("https://api.openai.com/v1", ["chat", "responses"]),
        "anthropic": ("https://api.anthropic.com/v1", ["messages"]),
    }
    assert (facts["store"], facts["retention_days"]) == ("disk:.gateway", 7)
    assert [(each["name"], each["preset"]) for each in facts["policies"]] == [("default", "adaptive")]
    assert (facts["tenants"], facts["rules"], facts["warnings"]) == ([], [], [])


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    result = check(tmp_path, "listen: {port: -1}\nzzz: 1\ndrain_seconds: -1\n")
    assert sorted(line.partition("f.yaml:")[2][:2] for line in result.err.splitlines()) == ["1:", "2:", "3:"]
    both = check(tmp_path, "store: ${A}\nlog: {level: '${B}'}\n")
    assert [line.partition("variable ")[2][:12] for line in both.err.splitlines()] == [
        "A is not set",
        "B is not set",
    ]


def test_a_missing_key_has_the_line_of_its_section(tmp_path: Path) -> None:
    assert_refused(
        tmp_path, "store: 'memory:'\nmodels:\n  - context: 9000\n", 3, "models[0].match: is required"
    )


_ENV = {"A": "one", "EMPTY": "", "ODD": "${A}$$x"}
_REFERENCES = [
    ("${A}", "one"),
    ("http/${A}:80/${A}", "http/one:80/one"),
    ("${A:-two}", "one"),
    ("${B:-two}", "two"),
    ("${B:-}", ""),
    ("${EMPTY}", ""),
    ("${EMPTY:-two}", "two"),
    ("${B:-a:-b}", "a:-b"),
    ("${ODD}", "${A}$$x"),
    ("$${A}", "${A}"),
    ("pa$$word$A$", "pa$$word$A$"),
]


@pytest.mark.parametrize(("text", "expected"), _REFERENCES)
def test_references_are_replaced_once(tmp_path: Path, text: str, expected: str) -> None:
    assert read_facts(tmp_path, f'store: "disk:/x{text}"\n', _ENV)["store"] == f"disk:/x{expected}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${B}", "environment variable B is not set"),
        ("${A", "without its '}'"),
        ("${}", "expected ${VAR}"),
        ("${1A}", "expected ${VAR}"),
        ("${A-b}", "expected ${VAR}"),
        ("${B:-${A}}", "not nested"),
        ("${file:}", "has no path"),
        ("${file:missing}", "cannot read file 'missing'"),
    ],
)
def test_a_reference_that_leads_nowhere_is_named(tmp_path: Path, text: str, expected: str) -> None:
    assert_refused(tmp_path, f'log: {{}}\nstore: "{text}"\n', 2, expected)


def test_a_reference_in_braces_needs_quotes(tmp_path: Path) -> None:
    assert_refused(tmp_path, "listen: {host: ${A}}\n", 1, "needs quotes")


@pytest.mark.parametrize(
    ("content", "expected"), [(b"k\n", "k"), (b"k\r\n", "k"), (b"\xef\xbb\xbfk", "k"), (b"", "")]
)
def test_a_file_stands_for_its_content_without_the_last_line_end(
    tmp_path: Path, content: bytes, expected: str
) -> None:
    (tmp_path / "key").write_bytes(content)
    for place in ("key", tmp_path / "key"):
        assert read_facts(tmp_path, f"store: 'disk:/x${{file:{place}}}'\n")["store"] == f"disk:/x{expected}"


@pytest.mark.parametrize("content", [b"hunter2\xff", b"x" * ((1 << 20) + 1)])
def test_a_file_that_cannot_be_used_is_named_and_not_shown(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key").write_bytes(content)
    assert_refused(tmp_path, 'store: "${file:key}"\n', 1, "'key'")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None)
@given(st.text(alphabet=st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp"))))
def test_what_a_variable_holds_is_not_searched_for_references(tmp_path: Path, value: str) -> None:
    facts = read_facts(tmp_path, 'store: "disk:/x${V}/${V}"\n', {"V": value})
    assert facts["store"] == f"disk:/x{value}/{value}"


@pytest.mark.parametrize("quoted", ["${PORT:-9}", '"${PORT:-9}"'])
def test_a_reference_takes_the_type_of_its_key(tmp_path: Path, quoted: str) -> None:
    text = KEYED.replace("sk-up", "${KEY}") + f"    discover: ${{OFF}}\nlisten:\n  port: {quoted}\n"
    facts = read_facts(tmp_path, text, {"KEY": "0123", "OFF": "false"})
    (upstream,) = facts["upstreams"]
    assert (facts["listen"]["port"], upstream["has_api_key"], upstream["discover"]) == (9, True, False)


def test_an_empty_reference_means_that_there_is_no_key(tmp_path: Path) -> None:
    text = KEYED.replace("sk-up", "${KEY:-}") + "admin: {token: '${TOKEN:-}'}\n"
    facts = read_facts(tmp_path, text)
    assert not facts["upstreams"][0]["has_api_key"] and not facts["admin"]["has_token"]


# What stands outside of the file: variables and options.


def test_an_upstream_of_the_environment_takes_everything_unless_the_file_names_others(tmp_path: Path) -> None:
    env = {"GATEWAY_UPSTREAM": "http://env.example/v1/"}
    (found,) = read_facts(tmp_path, "store: 'memory:'\n", env)["upstreams"]
    assert (found["name"], found["base_url"]) == ("default", "http://env.example/v1")
    assert found["formats"] == ["chat", "messages", "responses"]
    (written,) = read_facts(tmp_path, PLAIN, env)["upstreams"]
    assert written["base_url"] == "https://x.example/v1"


async def test_an_upstream_of_the_command_line_goes_before_that_of_the_file() -> None:
    """And the key of the file does not go to it."""
    async with ToyUpstream() as toy, serve(KEYED, upstream=toy.base_url) as product:
        run = await run_session(make_session(1, 1, "one_user", 100), product.base_url, toy)
    (seen,) = run.outgoing
    assert run.failed == [] and "sk-up" not in str(seen.headers)


def test_the_admin_port_is_chosen_by_the_environment_unless_the_file_says_otherwise(tmp_path: Path) -> None:
    env = {"GATEWAY_ADMIN_HOST": "0.0.0.0", "GATEWAY_ADMIN_TOKEN": "from-env"}
    assert read_facts(tmp_path, "", env)["admin"] == {"host": "0.0.0.0", "port": 8081, "has_token": True}
    assert read_facts(tmp_path, "admin: {host: 127.0.0.9, port: 7}\n", env)["admin"]["host"] == "127.0.0.9"
    refused = command("models", env={"GATEWAY_ADMIN_HOST": "0.0.0.0"})
    assert refused.status == 2 and "admin.token: is required" in refused.err


@pytest.mark.system(9)
@pytest.mark.parametrize(
    ("value", "is_disabled"), [("1", True), ("yes", True), ("", False), ("0", False), ("Off", False)]
)
def test_the_environment_can_disable_compaction_for_all_policies(
    tmp_path: Path, value: str, is_disabled: bool
) -> None:
    env = {"GATEWAY_DISABLE_AUTOCOMPACT": value, "GATEWAY_DISABLE_PRUNE": value}
    for policy in read_facts(tmp_path, "policies: {p: {}}\n", env)["policies"]:
        assert (policy["auto"], policy["prune"]) == (not is_disabled, not is_disabled)


@pytest.mark.parametrize(
    ("words", "env", "expected"),
    [
        (("--port", "70000"), {}, r"--port: listen.port: must be less than or equal to 65535"),
        (("--admin-port", "-1"), {}, "--admin-port: admin.port: must be greater than or equal to 0"),
        (("--upstream", "x"), {}, "--upstream: "),
        (
            ("--port", "9"),
            {"GATEWAY_UPSTREAM": "http://localhost:9"},
            "$GATEWAY_UPSTREAM: upstreams.default.base_url: points at the gateway itself",
        ),
    ],
)
def test_a_mistake_of_the_command_line_is_told_as_such(
    words: tuple[str, ...], env: dict[str, str], expected: str
) -> None:
    result = command("serve", *words, env=env)
    assert result.status == 2 and result.err.startswith(expected)


def test_the_command_line_goes_before_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, f"listen: {{host: 10.0.0.1, port: 1}}\n{KEYED}")

    def ask(*words: str) -> Result:
        return command("health", "--config", path, *words)

    # Of the file alone it is an open relay, and of the options it is not.
    assert "an open relay" in ask().err
    assert "no response from 127.0.0.1 port 2" in ask("--host", "127.0.0.1", "--port", "2").err


def test_variables_that_are_not_read_are_named_without_their_values(tmp_path: Path) -> None:
    env = {
        "GATEWAY_UPSTREAMS": "http://hunter2",
        "GATEWAY_SERVICE_HOST": "10.0.0.1",
        "GATEWAY_PORT": "tcp://x",
    }
    (warning,) = read_facts(tmp_path, "", env)["warnings"]
    assert warning.startswith("$GATEWAY_UPSTREAMS: ") and warning.endswith("is GATEWAY_UPSTREAM")


def test_a_clients_variable_that_names_another_server_is_named(tmp_path: Path) -> None:
    env = {"OPENAI_BASE_URL": "http://hunter2:8000/v1"}
    (warning,) = read_facts(tmp_path, "", env)["warnings"]
    assert "--upstream" in warning and "hunter2" not in warning
    assert read_facts(tmp_path, "", {"OPENAI_BASE_URL": "http://localhost:8080/v1"})["warnings"] == []
    assert read_facts(tmp_path, PLAIN, env)["warnings"] == []


def test_no_command_shows_a_secret_of_the_file(tmp_path: Path) -> None:
    text = (
        "admin: {token: hunter2-admin}\nstore: redis://:hunter2-store@127.0.0.1:6379/0\n"
        "upstreams: {up: {base_url: 'http://127.0.0.1:1/v1', api_key: hunter2-up, formats: [chat]}}\n"
        "models: [{match: 'm*', context: 9000}]\ntenants: [{name: team, keys: [hunter2-caller]}]\n"
        "traces: {endpoint: 'http://otel:4318', headers: {x-key: hunter2-trace}}\n"
    )
    path = write(tmp_path, text)
    for line in ("check FILE", "check FILE --json", "models m --config FILE", "models --config FILE"):
        result = command(*line.replace("FILE", path).split())
        assert result.status == 0 and "hunter2" not in result.out + result.err
    facts = json.loads(command("check", path, "--json").out)
    assert facts["store"] == "redis://127.0.0.1:6379/0" and facts["admin"]["has_token"]
    assert facts["tenants"] == [
        {"name": "team", "keys": 1, "upstream": None, "has_api_key": False, "policy": "default"}
    ]
