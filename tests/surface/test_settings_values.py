"""Each kind of mistake in a settings file is told with its line, and in words that say how to mend it."""

import hashlib
import subprocess
from pathlib import Path

import pytest

from tests.surface.written import PLAIN, SECRET, TENANT, assert_refused, check, read_facts

_HASH = hashlib.sha256(SECRET.encode()).hexdigest()

_UNKNOWN_KEYS = [
    ("lisen: {port: 1}\n", 1, "unknown key 'lisen'; the nearest valid key is 'listen'"),
    ("listen:\n  prt: 1\n", 2, "unknown key 'listen.prt'; the nearest valid key is 'port'"),
    ("policies:\n  p:\n    keep:\n      tail_token: 1\n", 4, "nearest valid key is 'tail_tokens'"),
    ("policies:\n  p:\n    tail_tokens: 1\n", 3, "nearest valid key is 'policies.*.keep.tail_tokens'"),
    (PLAIN + "models:\n  - match: x\n    contxt: 1\n", 5, "unknown key 'models[0].contxt'; the nearest"),
    ("port: 1\n", 1, "nearest valid key is 'listen.port'"),
    ("max_body_byte: 1\n", 1, "nearest valid key is 'listen.max_body_bytes'"),
    ("upstream: {}\n", 1, "nearest valid key is 'upstreams'"),
    ("thresholds: {}\n", 1, "unknown key 'thresholds'; the nearest valid key is 'policies.*.trigger'"),
    ("policies: {p: {window: 1}}\n", 1, "nearest valid key is 'models.*.context'"),
    ("recal: tool\n", 1, "nearest valid key is 'policies.*.recall'"),
    ("tenant: []\n", 1, "nearest valid key is 'tenants'"),
    ("preset: adaptiv\n", 1, "nearest valid key is 'policies.*.preset'"),
    ("log_level: debug\n", 1, "nearest valid key is 'log'"),
    ("zzzz: 1\n", 1, "unknown key 'zzzz'; valid keys here: listen, admin, "),
]

_TYPES_AND_RANGES = [
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
    ("log: {format: xml}\n", 1, "log.format: must be 'text' or 'json'"),
    ("log: {level: loud}\n", 1, "log.level: must be 'debug', 'info', 'warning' or 'error'"),
    ("traces: {endpoint: 'otel:4318'}\n", 1, "traces.endpoint: must be http://HOST"),
    ("traces: {endpoint: 'http://u:hunter2@otel'}\n", 1, "must not contain a user or password"),
    ("traces: {sample: 2}\n", 1, "traces.sample"),
    ("traces: {headers: {x-key: 'a b'}}\n", 1, "must not contain spaces"),
    *(
        (f"policies: {{p: {{prompts: {{{name}: ' '}}}}}}\n", 1, f"prompts.{name}: must not be blank")
        for name in ("instruction", "question", "resume", "dropped")
    ),
    *(
        (f"policies:\n  p:\n    recall: {mode}\n", 3, "policies.p.recall: must be 'off', 'tool' or 'auto'")
        for mode in ("on", "true", "yes", "1", "always")
    ),
]

_STORES = [
    ("store: 'disk:'\n", 1, "disk:PATH"),
    ("store: /var/lib\n", 1, "disk:PATH"),
    ("store: 'redis://'\n", 1, "must be redis://[USER:PASSWORD@]HOST"),
    ("store: 'redis://:hunter2@h?prefx=a'\n", 1, "the nearest valid one is 'prefix'"),
    ("store: 'redis:h'\n", 1, "must be redis://"),
]

_UPSTREAMS = [
    ("upstreams:\n  a:\n", 2, "base_url: is required"),
    *(
        (f"upstreams:\n  a: {{base_url: '{url}'}}\n", 2, expected)
        for url, expected in (
            ("ftp://x", "must be http://"),
            ("x.example/v1", "must be http://"),
            ("localhost:8000/v1", "must be http://"),
            ("https://x/v1?a=b", "query or fragment"),
            ("https://x/v1#", "query or fragment"),
            ("https://hunter2@x/v1", "user or password"),
            ("https://hunter2:hunter2@x:99999/", "not a valid URL"),
            ("https://x/ y", "spaces"),
            *(
                (f"http://x/v1/{path}", "write http://x/v1")
                for path in ("chat/completions", "responses/", "messages", "completions", "models")
            ),
        )
    ),
    *(
        (f"upstreams:\n  a: {{base_url: 'https://x', {key}}}\n", 2, expected)
        for key, expected in (
            ("formats: [chatt]", "'chat', 'responses' or 'messages'"),
            ("formats: []", "must not be empty"),
            ("api_key: 'hunter2 x'", "api_key: must not contain spaces"),
            ('api_key: "hunter2\\n"', "api_key: must not contain spaces"),
            ("api_key: 'hunter2\u00e9'", "cannot carry"),
            ("max_body_bytes: 0", "upstreams.a.max_body_bytes: must be greater than 0"),
            ("max_images: 0", "upstreams.a.max_images: must be greater than 0"),
            ("max_images: many", "upstreams.a.max_images: must be a whole number"),
            ("discover: 7", "upstreams.a.discover: must be true or false"),
        )
    ),
]

_RULE = PLAIN + "models:\n  - {match: '%s', %s}\n"
_RULES = [
    *(
        (_RULE % (pattern, "context: 8000"), 4, expected)
        for pattern, expected in (
            ("qwen[", "without its ']'"),
            ("qwen[]", "without its ']'"),
            ("[!]x", "without its ']'"),
            ("qwen[z-a]", "ends before it begins"),
            *(
                (pattern, "regular expression")
                for pattern in ("^gpt", "gpt$", ".*", "gpt.+", "(gpt|qwen)*", "qwen{2,3}")
            ),
        )
    ),
    *(
        (_RULE % ("m", limits), 4, expected)
        for limits, expected in (
            ("context: 100", "models[0].context: is a number of tokens, so 128K is written 128000"),
            ("input: 128", "models[0].input: is a number of tokens"),
            ("context: 128k", "models[0].context: must be a whole number of tokens: 128K is written 128000"),
            ("context: 8000, output: 9000", "models[0].output: is larger than context"),
            ("context: 8000, input: 9000", "models[0].input: is larger than context"),
            ("price: {input: -1, output: 1}", "models[0].price.input"),
            ("price: {input: 1}", "models[0].price.output"),
            ("price: {input: 1, output: 1, outptu: 2}", "output"),
            ("price: {input: .inf, output: 1}", "models[0].price.input"),
            ("price: {input: 1, cached_input: 0.1, output: 1}", "models[0].price.cached_input"),
        )
    ),
    (
        PLAIN + "prices: [{match: m, input: 1, output: 1}]\n",
        3,
        "'prices' has moved into the rules of 'models'",
    ),
    *(
        (f"{PLAIN}embeddings: {section}\n", 3, "'embeddings' is gone: originals are searched by words alone")
        for section in ("{upstream: default, model: m}", "{upstream: null}", "")
    ),
]

_TENANTS = [
    (f"{TENANT}  - name: a\n    keys: [k2]\n", 4, "same name as tenants[0]"),
    (
        f"{TENANT.replace('k1', SECRET)}  - name: b\n    keys: [k2, {SECRET}]\n",
        5,
        "same key as tenants[0].keys[0]",
    ),
    (f"tenants: [{{name: a, keys: [{SECRET}, {SECRET}]}}]\n", 1, "same key as tenants[0].keys[0]"),
    *(
        (
            f"{TENANT.replace('k1', SECRET)}  - name: b\n    keys: ['sha256:{digest}']\n",
            5,
            "same key as tenants[0].keys[0]",
        )
        for digest in (_HASH, _HASH.upper())
    ),
    ("tenants:\n  - name: a\n    keys: []\n", 3, "keys: must not be empty"),
    ("tenants:\n  - name: a\n    keys: ['']\n", 3, "keys[0]: must not be empty"),
    ("tenants:\n  - name: a\n    keys:\n", 3, "keys: must be a list"),
    ("tenants:\n  - name: a\n    keys: ['${K:-}']\n", 3, "must not be empty"),
    ("tenants:\n  - name: a\n    keys: [123]\n", 3, "must be text"),
    ("tenants:\n  - keys: [k]\n", 2, "tenants[0].name: is required"),
    ("tenants:\n  - {name: a, keys: ['${HUNTER}']}\n", 2, "variable HUNTER is not set"),
    *(
        (
            f"tenants:\n  - name: a\n    keys: ['{key}']\n",
            3,
            "tenants[0].keys[0]: must have 64 hexadecimal digits after sha256:",
        )
        for key in ("sha256:", "sha256:hunter2", f"sha256:{_HASH}0", f"sha256:{_HASH[1:]}")
    ),
    *(
        (f"{PLAIN}{TENANT}    {line}\n", 6, expected)
        for line, expected in (
            ("requests_per_minute: 0", "tenants[0].requests_per_minute: must be greater than 0"),
            ("requests_per_minute: 1.5", "tenants[0].requests_per_minute: must be a whole number"),
            ("concurrent_requests: -1", "tenants[0].concurrent_requests: must be greater than 0"),
            ("summary_budget: {calls_per_hour: -1}", "calls_per_hour: must be greater than or equal to 0"),
            ("summary_budget: {calls: 1}", "the nearest valid key is 'calls_per_hour'"),
            ("request_per_minute: 1", "the nearest valid key is 'requests_per_minute'"),
            ("models: [{match: 'gpt['}]", "tenants[0].models[0].match: has a '[' without its ']'"),
        )
    ),
]


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [*_UNKNOWN_KEYS, *_TYPES_AND_RANGES, *_STORES, *_UPSTREAMS, *_RULES, *_TENANTS],
)
def test_a_mistake_is_told_with_its_line_and_without_a_secret(
    tmp_path: Path, text: str, line: int, expected: str
) -> None:
    assert_refused(tmp_path, text, line, expected)


@pytest.mark.parametrize("pattern", ["*", "gpt-4.*", "qwen[23]*", "a[]b]", "[[]x", "org/m-?:free", "@cf/x"])
def test_patterns_of_model_names_are_accepted(tmp_path: Path, pattern: str) -> None:
    (rule,) = read_facts(tmp_path, _RULE % (pattern, "context: 8000"))["rules"]
    assert (rule["match"], rule["context"]) == (pattern, 8_000)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("store: 'memory:'\n", "a store"),
        ("store: 'redis://:pw@cache:6379/0'\n", "a store"),
        ("models: [{match: '*', context: 0, output: null}]\n", "0 and null are unset"),
        (PLAIN + "models: [{match: m, context: 8000, price: null}]\n", "a price may be left empty"),
        (PLAIN + "models: [{match: m, price: {input: 0, output: 0}}]\n", "a model may cost nothing"),
        ("policies: {p: {prompts: {system: ' '}}}\n", "without a system prompt"),
        (PLAIN.replace("}", ", discover: false, max_body_bytes: 20000000, max_images: 8}"), "limits"),
        (PLAIN + "traces: {endpoint: 'http://otel:4318/v1/traces/'}\n", "a collector"),
        (PLAIN.replace("}", ", api_key: 'sk-$%&!~'}"), "a key"),
    ],
)
def test_what_looks_like_a_mistake_and_is_none_is_accepted(tmp_path: Path, text: str, why: str) -> None:
    assert check(tmp_path, text).status == 0, why


def test_a_bare_off_switches_recalls_off(tmp_path: Path) -> None:
    """YAML reads it as false."""
    text = "policies: {a: {recall: off}, b: {recall: 'off'}, c: {recall: tool}, d: {recall: auto}}\n"
    policies = {each["name"]: each["recall"] for each in read_facts(tmp_path, text)["policies"]}
    assert [policies[name] for name in "abcd"] == ["off", "off", "auto", "auto"]


def test_an_unknown_preset_is_told_with_the_nearest_and_with_all(tmp_path: Path) -> None:
    text = "policies:\n  p:\n    preset: %s\n"
    nearest = "unknown preset; the nearest is 'rolling', and the presets are adaptive, "
    assert_refused(tmp_path, text % "rollin", 3, nearest)
    assert_refused(tmp_path, text % "rollin", 3, ", rolling")
    assert_refused(tmp_path, text % "adaptiv", 3, "the nearest is 'adaptive'")
    assert_refused(tmp_path, text % "zzz", 3, "unknown preset; the presets are adaptive, ")


def test_a_rule_is_read_with_its_price(tmp_path: Path) -> None:
    rule = "{match: 'gpt-4o*', price: {input: 2.5, cached: 1.25, output: 10}}"
    (found,) = read_facts(tmp_path, f"{PLAIN}models: [{rule}]\n")["rules"]
    assert (found["price"]["input"], found["price"]["cached"], found["price"]["output"]) == (2.5, 1.25, 10)
    assert found["context"] is None and found["origin"].endswith("f.yaml:3")


def test_a_hash_of_a_key_is_what_the_documented_command_writes() -> None:
    """Its digits stand in a settings file in place of the key."""
    done = subprocess.run(
        ["sh", "-c", f"printf %s {SECRET} | sha256sum"], capture_output=True, check=True, text=True
    )
    assert done.stdout.split()[0] == _HASH
