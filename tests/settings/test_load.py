"""From files, environment and command line to settings: what is good, and what is refused where."""

from dataclasses import replace
from pathlib import Path

import pytest

from gateway.compaction.summary_client import choose_summary_model
from gateway.core.policy import Keep, Policy, Prompts, Pruning, Summary, Trigger
from gateway.settings import Settings, SettingsError, load_settings

_CONTRACT = """\
listen: {host: 127.0.0.1, port: 8080, max_body_bytes: 67108864}
admin:  {host: 127.0.0.1, port: 8081, token: "${GATEWAY_ADMIN_TOKEN:-}"}
store: "disk:.gateway"                       # disk:PATH | redis://HOST:PORT/DB | memory:
upstreams:
  default: {base_url: "https://api.openai.com/v1", api_key: null, formats: [chat, responses, messages]}
models:                                      # first match wins; merged over the bundled table
  - {match: "gpt-4o*", context: 128000, output: 16384}
policies:
  default:
    preset: adaptive
    compaction: {auto: true, prune: true}
    trigger:  {output_cap: 32000}            # plus the preset's own ratios and reserves
    keep:     {tail_tokens: 20000, tail_messages: 0, opening: true}
    pruning:  {protect_tokens: 40000, minimum_tokens: 20000, protected_tools: [skill], keep_turns: 2, \
placeholder: "[Old tool result content cleared]"}
    summary:  {model: null, upstream: null, max_tokens: 4096, instructions: "", timeout_seconds: 120}
tenants:
  - {name: team-a, keys: ["${TEAM_A_KEY}"], upstream: default, policy: default}
"""
_KEYED = "upstreams:\n  default:\n    base_url: https://x.example/v1\n    api_key: sk-up\n"
_PLAIN = "upstreams:\n  default: {base_url: 'https://x.example/v1'}\n"


def _load(folder: Path, text: str, env: dict[str, str] | None = None, **options: str) -> Settings:
    path = folder / "f.yaml"
    path.write_text(text, encoding="utf-8")
    return load_settings(path, env or {}, **options)  # type: ignore[arg-type]  # port is not used here


def bare(policy: Policy) -> Policy:
    """Its numbers alone; the words have tests of their own."""
    return replace(policy, prompts=Prompts())


def test_without_a_file_everything_has_a_default() -> None:
    settings = load_settings(None, {"OPENAI_BASE_URL": "http://127.0.0.1:8080/v1"})
    assert (settings.listen.host, settings.listen.port) == ("127.0.0.1", 8080)
    assert {name: (each.base_url, set(each.formats)) for name, each in settings.upstreams.items()} == {
        "default": ("https://api.openai.com/v1", {"chat", "responses"}),
        "anthropic": ("https://api.anthropic.com/v1", {"messages"}),
    }
    assert settings.store == "disk:.gateway"
    assert {name: bare(policy) for name, policy in settings.policies.items()} == {"default": Policy()}
    assert (settings.tenants, settings.models) == ((), ())
    assert settings.retention.seconds == 7 * 86_400
    assert settings.response_headers


def test_an_empty_file_is_like_no_file(tmp_path: Path) -> None:
    assert _load(tmp_path, "upstreams:\ntenants:\nlisten:\npolicies:\n") == load_settings(None, {})


def test_the_contracts_example_loads(tmp_path: Path) -> None:
    settings = _load(tmp_path, _CONTRACT, {"TEAM_A_KEY": "key-a"})
    assert settings.admin.token is None
    assert bare(settings.policies["default"]) == Policy(pruning=Pruning(keep_turns=2))
    assert [key.get_secret_value() for key in settings.tenants[0].keys] == ["key-a"]
    assert settings.models[0].limits.context == 128_000
    assert settings.models[0].applies_to("gpt-4o-mini", "default")
    assert not settings.models[0].applies_to("gpt-4", "default")


def test_the_opencode_preset_is_the_source_documents(tmp_path: Path) -> None:
    settings = _load(tmp_path, _CONTRACT.replace("preset: adaptive", "preset: opencode"), {"TEAM_A_KEY": "k"})
    assert bare(settings.policies["default"]) == Policy(
        name="opencode",
        estimator="chars",
        trigger=Trigger(formula="source"),
        keep=Keep(tail_tokens=20_000, tail_ratio=0.0, opening=True),
        pruning=Pruning(protect_ratio=1.0, minimum_ratio=1.0, calibrated=False, keep_turns=2, eager=True),
    )


def test_only_the_keys_that_were_written_differ_from_the_preset(tmp_path: Path) -> None:
    text = "policies: {p: {preset: opencode, summary: {max_tokens: 100}}, q: }\n"
    policies = _load(tmp_path, text).policies
    assert policies["p"].keep == Keep(tail_tokens=0, tail_ratio=0.0, opening=False)
    assert policies["p"].summary == Summary(max_tokens=100)
    assert bare(policies["q"]) == bare(policies["default"]) == Policy()


def test_the_estimator_is_the_presets_unless_it_is_written(tmp_path: Path) -> None:
    text = "policies: {a: {preset: opencode, estimator: tiktoken}, b: {estimator: chars}, c: {}}\n"
    policies = _load(tmp_path, text).policies
    assert [policies[name].estimator for name in "abc"] == ["tiktoken", "chars", "tiktoken"]


@pytest.mark.parametrize(
    ("value", "is_disabled"), [("1", True), ("yes", True), ("", False), ("0", False), ("Off", False)]
)
def test_the_environment_switches_compaction_off_everywhere(value: str, is_disabled: bool) -> None:
    settings = load_settings(None, {"GATEWAY_DISABLE_AUTOCOMPACT": value, "GATEWAY_DISABLE_PRUNE": value})
    policy = settings.policies["default"]
    assert (policy.auto, policy.prune) == (not is_disabled, not is_disabled)


def test_a_bare_upstream_serves_everything_and_the_nearer_word_wins(tmp_path: Path) -> None:
    env = {"GATEWAY_UPSTREAM": "http://env.example/v1/"}
    from_env = load_settings(None, env).upstreams
    assert {name: each.base_url for name, each in from_env.items()} == {"default": "http://env.example/v1"}
    assert from_env["default"].formats == {"chat", "responses", "messages"}
    assert _load(tmp_path, "store: 'memory:'\n", env).upstreams == from_env
    assert _load(tmp_path, _PLAIN, env).upstreams["default"].base_url == "https://x.example/v1"
    over = _load(tmp_path, _KEYED, env, upstream="http://cli.example").upstreams
    assert {name: (each.base_url, each.api_key) for name, each in over.items()} == {
        "default": ("http://cli.example", None)
    }


def test_the_command_line_comes_before_the_file(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("listen: {host: 10.0.0.1, port: 1, max_body_bytes: 9}\n")
    listen = load_settings(path, {}, host="127.0.0.2", port=0).listen
    assert (listen.host, listen.port, listen.max_body_bytes) == ("127.0.0.2", 0, 9)


@pytest.mark.parametrize("quoted", ["${PORT:-9}", '"${PORT:-9}"'])
def test_a_reference_takes_the_type_of_its_field(tmp_path: Path, quoted: str) -> None:
    text = f"{_KEYED}listen:\n  port: {quoted}\nresponse_headers: ${{OFF}}\n".replace("sk-up", "${KEY}")
    settings = _load(tmp_path, text, {"KEY": "0123", "OFF": "false"})
    key = settings.upstreams["default"].api_key
    assert (settings.listen.port, settings.response_headers) == (9, False)
    assert key is not None
    assert key.get_secret_value() == "0123"


def test_an_empty_reference_is_no_key(tmp_path: Path) -> None:
    settings = _load(tmp_path, _KEYED.replace("sk-up", "${KEY:-}"))
    assert settings.upstreams["default"].api_key is None


_TENANT = "tenants:\n  - name: a\n    keys: [k1]\n"
_BAD = [
    # unknown keys, with the nearest valid one
    ("lisen: {port: 1}\n", 1, "unknown key 'lisen'; the nearest valid key is 'listen'"),
    ("listen:\n  prt: 1\n", 2, "unknown key 'listen.prt'; the nearest valid key is 'port'"),
    ("policies:\n  p:\n    keep:\n      tail_token: 1\n", 4, "nearest valid key is 'tail_tokens'"),
    ("policies:\n  p:\n    tail_tokens: 1\n", 3, "nearest valid key is 'policies.*.keep.tail_tokens'"),
    (_PLAIN + "models:\n  - match: x\n    contxt: 1\n", 5, "unknown key 'models[0].contxt'; the nearest"),
    ("port: 1\n", 1, "nearest valid key is 'listen.port'"),
    ("max_body_byte: 1\n", 1, "nearest valid key is 'listen.max_body_bytes'"),
    ("zzzz: 1\n", 1, "unknown key 'zzzz'; the nearest valid key is"),
    # types and ranges
    ("listen: {port: '80'}\n", 1, "listen.port: must be a whole number"),
    ("listen:\n  port: 65536\n", 2, "less than or equal to 65535"),
    ("listen:\n  port: -1\n", 2, "greater than or equal to 0"),
    ("listen: {port: true}\n", 1, "whole number"),
    ("listen: {host: ''}\n", 1, "must be an address"),
    ("listen: [1]\n", 1, "must be a section of keys"),
    ("listen: {max_body_bytes: 0}\n", 1, "greater than 0"),
    ("response_headers: 1\n", 1, "must be true or false"),
    ("retention: {days: 0}\n", 1, "greater than 0"),
    ("retention: {days: .nan}\n", 1, "finite"),
    ("drain_seconds: -1\n", 1, "greater than or equal to 0"),
    ("policies:\n  p:\n    trigger: {hard_ratio: 1.5}\n", 3, "less than or equal to 1"),
    ("policies:\n  p:\n    trigger: {output_cap: 0}\n", 3, "greater than 0"),
    ("policies:\n  p:\n    trigger: {formula: magic}\n", 3, "'adaptive', 'source' or 'ratio'"),
    ("policies:\n  p:\n    pruning: {placeholder: ''}\n", 3, "must not be empty"),
    ("upstreams: []\n", 1, "named entries"),
    ("tenants: {}\n", 1, "must be a list"),
    # stores
    ("store: 'disk:'\n", 1, "disk:PATH"),
    ("store: /var/lib\n", 1, "disk:PATH"),
    ("store: 'redis://'\n", 1, "disk:PATH"),
    # presets
    ("policies:\n  p:\n    preset: rollin\n", 3, "unknown preset; the nearest is 'rolling'"),
    ("policies:\n  p:\n    preset: opencoed\n", 3, "unknown preset; the nearest is 'opencode'"),
    # upstreams
    ("upstreams:\n  a:\n", 2, "base_url: is required"),
    ("upstreams:\n  a: {base_url: 'ftp://x'}\n", 2, "must be http://"),
    ("upstreams:\n  a: {base_url: 'x.example/v1'}\n", 2, "must be http://"),
    ("upstreams:\n  a: {base_url: 'https://x/v1?a=b'}\n", 2, "query or fragment"),
    ("upstreams:\n  a: {base_url: 'https://x/v1#'}\n", 2, "query or fragment"),
    ("upstreams:\n  a: {base_url: 'https://hunter2@x/v1'}\n", 2, "user or password"),
    ("upstreams:\n  a: {base_url: 'https://hunter2:hunter2@x:99999/'}\n", 2, "not a valid URL"),
    ("upstreams:\n  a: {base_url: 'https://x/ y'}\n", 2, "spaces"),
    ("upstreams:\n  a: {base_url: 'https://x', formats: [chatt]}\n", 2, "'chat', 'responses' or 'messages'"),
    ("upstreams:\n  a: {base_url: 'https://x', formats: []}\n", 2, "must not be empty"),
    ("upstreams:\n  a: {base_url: 'https://x', api_key: 'hunter2 x'}\n", 2, "api_key: must hold no spaces"),
    # the gateway itself
    ("upstreams:\n  a: {base_url: 'http://127.0.0.1:8080/v1'}\n", 2, "points at the gateway itself"),
    ("upstreams:\n  a: {base_url: 'http://LOCALHOST:8080'}\n", 2, "points at the gateway itself"),
    ("upstreams:\n  a: {base_url: 'http://[::1]:8080'}\n", 2, "points at the gateway itself"),
    (
        "listen: {host: 0.0.0.0, port: 80}\nupstreams:\n  a: {base_url: 'http://localhost'}\n",
        3,
        "gateway itself",
    ),
    ("listen: {host: gw.lan}\nupstreams:\n  a: {base_url: 'http://gw.lan:8080'}\n", 3, "gateway itself"),
    # an open relay
    (f"listen: {{host: 0.0.0.0}}\n{_KEYED}", 5, "an open relay"),
    (f"listen: {{host: gw.lan}}\n{_KEYED}", 5, "an open relay"),
    # names that lead nowhere
    (f"{_PLAIN}models: [{{match: x, upstream: defalt}}]\n", 3, "no such upstream; the nearest is 'default'"),
    (f"{_PLAIN}{_TENANT}    upstream: defalt\n", 6, "no such upstream; the nearest is 'default'"),
    (f"{_TENANT}    policy: defaul\n", 4, "no such policy; the nearest is 'default'"),
    (
        f"{_PLAIN}policies:\n  p: {{summary: {{upstream: x}}}}\n",
        4,
        "policies.p.summary.upstream: there is no such",
    ),
    # tenants
    (f"{_TENANT}  - name: a\n    keys: [k2]\n", 4, "same name as tenants[0]"),
    (
        f"{_TENANT.replace('k1', 'hunter2')}  - name: b\n    keys: [k2, hunter2]\n",
        5,
        "same key as tenants[0].keys[0]",
    ),
    ("tenants: [{name: a, keys: [hunter2, hunter2]}]\n", 1, "same key as tenants[0].keys[0]"),
    ("tenants:\n  - name: a\n    keys: []\n", 3, "keys: must not be empty"),
    ("tenants:\n  - name: a\n    keys: ['']\n", 3, "keys[0]: must not be empty"),
    ("tenants:\n  - name: a\n    keys:\n", 3, "keys: must be a list"),
    ("tenants:\n  - name: a\n    keys: ['${K:-}']\n", 3, "must not be empty"),
    ("tenants:\n  - name: a\n    keys: [123]\n", 3, "must be text"),
    ("tenants:\n  - keys: [k]\n", 2, "tenants[0].name: is required"),
    ("tenants:\n  - {name: a, keys: ['${HUNTER}']}\n", 2, "variable HUNTER is not set"),
]


@pytest.mark.parametrize(("text", "line", "expected"), _BAD)
def test_what_is_wrong_is_named_with_its_place_and_without_its_value(
    tmp_path: Path, text: str, line: int, expected: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        _load(tmp_path, text)
    assert f"f.yaml:{line}: " in str(caught.value)
    assert expected in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("upstreams:\n  a: {base_url: 'http://127.0.0.1:8000/v1/'}\n", "another port"),
        ("listen: {port: 0}\nupstreams:\n  a: {base_url: 'http://127.0.0.1:8080'}\n", "a free port"),
        (
            "listen: {host: 10.0.0.5}\nupstreams:\n  a: {base_url: 'http://127.0.0.1:8080'}\n",
            "another address",
        ),
        (_KEYED, "a key on loopback"),
        (f"listen: {{host: 0.0.0.0}}\n{_KEYED}{_TENANT}", "a key behind tenants"),
        (f"listen: {{host: '::1'}}\n{_KEYED}", "a key on loopback"),
        ("listen: {host: 0.0.0.0}\n", "no key to spend"),
        ("store: 'memory:'\n", "a store"),
        ("store: 'redis://:pw@cache:6379/0'\n", "a store"),
        ("models: [{match: '*', context: 0, output: null}]\n", "0 and null are unset"),
    ],
)
def test_what_only_looks_wrong_is_accepted(tmp_path: Path, text: str, why: str) -> None:
    assert _load(tmp_path, text), why


def test_a_problem_of_the_command_line_is_blamed_on_it(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"^--port: .*65535"):
        load_settings(None, {}, port=70_000)
    with pytest.raises(SettingsError, match=r"^--upstream: .*http://"):
        load_settings(None, {}, upstream="x")
    with pytest.raises(SettingsError, match=r"^\$GATEWAY_UPSTREAM: .*points at the gateway itself"):
        load_settings(None, {"GATEWAY_UPSTREAM": "http://localhost:9"}, port=9)
    with pytest.raises(SettingsError, match="an open relay"):
        _load(tmp_path, _KEYED, host="0.0.0.0")


def test_secrets_never_show(tmp_path: Path) -> None:
    text = _KEYED + _TENANT + "admin: {token: sk-admin}\nstore: 'redis://:sk-redis@h/0'\n"
    shown = repr(_load(tmp_path, text.replace("k1", "sk-tenant")))
    assert "sk-" not in shown


def test_the_prompts_are_the_source_documents() -> None:
    prompts = load_settings(None, {}).policies["default"].prompts
    assert prompts.question == "What did we do so far?"
    assert prompts.resume == "Continue if you have next steps"
    assert prompts.instruction.startswith(
        "Provide a detailed prompt for continuing our conversation above. Focus"
    )
    assert prompts.instruction.endswith("new session will not have access to our conversation.")
    assert prompts.system.startswith(
        "You are a helpful AI assistant tasked with summarizing conversations.\n\nWhen"
    )
    assert prompts.system.endswith("concise enough to be quickly understood.")


def test_prompts_may_be_written_or_read_from_files_and_the_others_stay_the_presets(tmp_path: Path) -> None:
    (tmp_path / "ask.txt").write_text("Sum it up.\n")
    written = "prompts: {instruction: '${file:ask.txt}', question: 'So?'}"
    text = f"policies: {{p: {{preset: rfc007, {written}}}, q: {{preset: rfc007}}}}\n"
    policies = _load(tmp_path, text).policies
    prompts, preset = policies["p"].prompts, policies["q"].prompts
    assert prompts == replace(preset, instruction="Sum it up.", question="So?")
    assert "datasources" in preset.system


@pytest.mark.parametrize("name", ["instruction", "question", "resume", "dropped"])
def test_a_prompt_that_would_make_an_empty_message_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingsError, match=f"prompts.{name}: must not be blank"):
        _load(tmp_path, f"policies: {{p: {{prompts: {{{name}: ' '}}}}}}\n")
    assert _load(tmp_path, "policies: {p: {prompts: {system: ' '}}}\n").policies["p"].prompts.system == " "


def test_a_written_model_map_comes_before_the_presets(tmp_path: Path) -> None:
    written = "summary: {model_map: {'llama*': l8, 'claude-*': mine}}"
    text = f"policies: {{p: {{preset: utilization, {written}}}, q: {{preset: utilization}}}}\n"
    policies = _load(tmp_path, text).policies
    pairs, preset = policies["p"].summary.model_map, policies["q"].summary.model_map
    assert pairs[:2] == (("llama*", "l8"), ("claude-*", "mine"))
    assert pairs[2:] == tuple(pair for pair in preset if pair[0] != "claude-*")
    assert hash(policies["p"]) != hash(policies["q"])


@pytest.mark.parametrize(
    ("model", "chosen"),
    [
        ("claude-opus-4-5-20251101", "claude-haiku-4-5-20251001"),
        ("claude-3-5-haiku-20241022", "claude-3-5-haiku-20241022"),
        ("anthropic/claude-sonnet-4.5", "anthropic/claude-haiku-4.5"),
        ("gpt-4o-2024-08-06", "gpt-4o-mini"),
        ("gpt-4.1", "gpt-4.1-mini"),
        ("gpt-5.1-codex", "gpt-5-mini"),
        ("gpt-5-nano", "gpt-5-nano"),
        ("openai/gpt-5", "openai/gpt-5-mini"),
        ("gpt-oss-120b", "gpt-oss-120b"),
        ("qwen3-coder", "qwen3-coder"),
    ],
)
def test_utilization_asks_the_small_model_of_the_family(tmp_path: Path, model: str, chosen: str) -> None:
    policy = _load(tmp_path, "policies: {p: {preset: utilization}}\n").policies["p"]
    assert choose_summary_model(policy.summary, model) == chosen


def test_what_an_upstream_takes_is_unknown_unless_said(tmp_path: Path) -> None:
    plain = _load(tmp_path, _PLAIN).upstreams["default"]
    assert (plain.discover, plain.max_body_bytes, plain.max_images) == (True, None, None)
    said = _PLAIN.replace("}", ", discover: false, max_body_bytes: 20000000, max_images: 8}")
    upstream = _load(tmp_path, said).upstreams["default"]
    assert (upstream.discover, upstream.max_body_bytes, upstream.max_images) == (False, 20_000_000, 8)


@pytest.mark.parametrize("key", ["max_body_bytes: 0", "max_images: 0", "max_images: many", "discover: 7"])
def test_what_an_upstream_takes_is_checked(tmp_path: Path, key: str) -> None:
    with pytest.raises(SettingsError, match=f"upstreams.default.{key.partition(':')[0]}"):
        _load(tmp_path, _PLAIN.replace("}", f", {key}}}"))
