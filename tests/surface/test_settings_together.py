"""Settings that are valid one by one: which of them do not fit together, and which are hardly meant."""

import hashlib
from pathlib import Path

import pytest

from tests.surface.written import KEYED, PLAIN, SECRET, TENANT, assert_refused, check, read_facts

_TWO = (
    "upstreams:\n  a: {base_url: 'http://127.0.0.1:8001/v1', formats: [chat]}\n"
    "  b: {base_url: 'http://127.0.0.1:8002/v1', formats: [messages]}\n"
)
_HERE = "upstreams:\n  a: {base_url: '%s'}\n"

_REFUSED = [
    # An upstream must not be the gateway itself.
    (_HERE % "http://127.0.0.1:8080/v1", 2, "points at the gateway itself"),
    (_HERE % "http://LOCALHOST:8080", 2, "points at the gateway itself"),
    (_HERE % "http://[::1]:8080", 2, "points at the gateway itself"),
    (f"listen: {{host: 0.0.0.0, port: 80}}\n{_HERE % 'http://localhost'}", 3, "gateway itself"),
    (f"listen: {{host: gw.lan}}\n{_HERE % 'http://gw.lan:8080'}", 3, "gateway itself"),
    # A key must not be usable by everybody.
    *(
        (f"listen: {{host: {host}}}\n{KEYED}", 5, "an open relay")
        for host in ("0.0.0.0", "gw.lan", "10.0.0.1")
    ),
    (f"listen: {{host: localhost.example}}\n{KEYED}", 5, "an open relay"),
    # A name must exist.
    (f"{PLAIN}models: [{{match: x, upstream: defalt}}]\n", 3, "no such upstream; the nearest is 'default'"),
    (f"{PLAIN}{TENANT}    upstream: defalt\n", 6, "no such upstream; the nearest is 'default'"),
    (f"{TENANT}    policy: defaul\n", 4, "no such policy; the nearest is 'default'"),
    (
        f"{PLAIN}policies:\n  p: {{summary: {{upstream: x}}}}\n",
        4,
        "policies.p.summary.upstream: there is no such",
    ),
    # What a tenant has of its own must fit.
    *(
        (f"{PLAIN}{TENANT}    {line}\n", 6, expected)
        for line, expected in (
            (
                "models: [{match: m, upstream: defalt}]",
                "tenants[0].models[0].upstream: there is no such upstream",
            ),
            ("models: [{match: m, policy: defalt}]", "tenants[0].models[0].policy: there is no such policy"),
            ("models: [{match: m, context: 2000, output: 3000}]", "models[0].output: is larger than context"),
            (f"api_key: {SECRET}", "tenants[0].api_key: needs the tenant's `upstream`"),
        )
    ),
    # A tenant's key must not go to two providers.
    (TENANT.replace("k1", SECRET), 3, "api.anthropic.com:443 and to api.openai.com:443, because"),
    (_TWO + TENANT, 6, "tenants[0].keys: would be sent as credentials to 127.0.0.1:8001 and to 127.0.0.1"),
    # The admin port of others needs a token.
    (f"{PLAIN}admin: {{host: 0.0.0.0}}\n", 3, "admin.token: is required"),
]


@pytest.mark.parametrize(("text", "line", "expected"), _REFUSED)
def test_what_does_not_fit_is_refused_with_its_line(
    tmp_path: Path, text: str, line: int, expected: str
) -> None:
    assert_refused(tmp_path, text, line, expected)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (_TWO.replace("8002", "8001") + TENANT, "one provider with two names"),
        (_TWO + TENANT + "    upstream: b\n", "the tenant's own upstream"),
        (_TWO.replace("formats: [chat]", "api_key: k") + TENANT, "the first gets all, and has a key"),
        (_TWO.replace("[chat]", "[chat], api_key: k") + TENANT, "one gets keys of callers"),
        (_TWO.replace("[chat]", "[chat, responses, messages]") + TENANT, "the second gets no request"),
        (_HERE % "http://127.0.0.1:8000/v1/", "another port"),
        ("listen: {port: 0}\n" + _HERE % "http://127.0.0.1:8080", "a free port"),
        ("listen: {host: 10.0.0.5}\n" + _HERE % "http://127.0.0.1:8080", "another address"),
        (KEYED, "a key on loopback"),
        (f"listen: {{host: 0.0.0.0}}\n{KEYED}{TENANT}", "a key behind tenants"),
        *(
            (f"listen: {{host: '{host}'}}\n{KEYED}", "a key on loopback")
            for host in ("::1", "LOCALHOST.", "a.localhost", "127.8.0.1")
        ),
        ("listen: {host: 0.0.0.0}\n", "no key to spend"),
    ],
)
def test_what_is_similar_and_fits_is_accepted(tmp_path: Path, text: str, why: str) -> None:
    assert check(tmp_path, text).status == 0, why


# What is allowed, and hardly meant: a warning with its line, and the exit status is 0.


def warn(folder: Path, text: str) -> list[str]:
    return list(read_facts(folder, text)["warnings"])


def warn_of_rules(folder: Path, rules: str) -> list[str]:
    return warn(folder, f"{PLAIN}policies: {{p: {{}}}}\nmodels:\n{rules}")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("'*', context: 8000", "'qwen*', context: 9000"),
        ("'qwen*', context: 8000", "'qwen3*', context: 9000"),
        ("'q*n?', context: 8000", "'q*n?', context: 9000"),
        ("'q*', context: 8000", "'qwen[23]', upstream: default, context: 9000"),
        ("'q*', context: 8000, policy: p", "'qwen', context: 9000, policy: p"),
    ],
)
def test_a_rule_behind_one_that_fits_the_same_models_is_named(
    tmp_path: Path, first: str, second: str
) -> None:
    (warning,) = warn_of_rules(tmp_path, f"  - {{match: {first}}}\n  - {{match: {second}}}\n")
    assert warning.endswith(
        "f.yaml:6: models[1] is never used: models[0] fits the same models and comes first"
    )


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("'qwen3*', context: 8000", "'qwen*', context: 9000"),
        ("'qwen?', context: 8000", "'qwen*', context: 9000"),
        ("'qwen[*]', context: 8000", "'qwen*', context: 9000"),
        ("'*', upstream: default, context: 8000", "'qwen*', context: 9000"),
        ("'*', policy: p", "'qwen*', context: 9000"),
        ("'*', context: 8000", "'qwen*', policy: p"),
    ],
)
def test_a_rule_that_may_count_is_not_named(tmp_path: Path, first: str, second: str) -> None:
    assert warn_of_rules(tmp_path, f"  - {{match: {first}}}\n  - {{match: {second}}}\n") == []


def test_a_rule_of_a_tenant_that_is_never_used_is_named(tmp_path: Path) -> None:
    rules = "[{match: '*', context: 8000}, {match: 'qwen*', context: 9000}]"
    text = f"{KEYED}models: [{{match: '*', context: 9000}}]\n{TENANT}    models: {rules}\n"
    (warning,) = warn(tmp_path, text)
    assert warning.endswith(
        "f.yaml:9: tenants[0].models[1] is never used: "
        "tenants[0].models[0] fits the same models and comes first"
    )


@pytest.mark.parametrize(
    ("policy", "named"),
    [
        ("recall: auto, originals: {keep: false}", "recall: auto finds nothing"),
        ("recall: auto", ""),
        ("recall: tool", "recall: tool means auto"),
        ("originals: {keep: false}", ""),
    ],
)
def test_a_recall_without_originals_is_named(tmp_path: Path, policy: str, named: str) -> None:
    warnings = warn(tmp_path, f"{PLAIN}policies: {{p: {{{policy}}}}}\n")
    assert [named in warning and "policies.p" in warning for warning in warnings] == [True] * bool(named)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("policies: {p: {trigger: {output_cap: 5000}}}\n", "policies.p.trigger.output_cap has no effect"),
        ("policies: {p: {trigger: {soft_ratio: 0.2}}}\n", "policies.p.trigger.soft_ratio has no effect"),
        ("policies: {p: {keep: {tail_window: 0.2, tail_tokens: 9}}}\n", "p.keep.tail_tokens has no effect"),
        ("policies: {p: {preset: recent, pruning: {keep_turns: 3}}}\n", "because of compaction.prune"),
        ("policies: {p: {summary: {method: digest, model: m}}}\n", "because of summary.method"),
        ("policies: {p: {summary: {model: m, model_map: {a: b}}}}\n", "because of summary.model"),
        ("policies: {p: {prompts: {dropped: Gone.}}}\n", "p.prompts.dropped has no effect"),
        ("policies: {p: {originals: {keep: false, days: 2}}}\n", "because of originals.keep"),
        ("policies: {p: {compaction: {auto: false}, economy: 2}}\n", "policies.p.economy has no effect"),
        ("policies: {p: {trigger: {reserve_minimum: 30000}}}\n", "is larger than reserve_maximum"),
        ("bounds: {summaries_per_tenant: 20}\n", "bounds.summaries_per_tenant is larger than summaries"),
        ("listen: {hosts: [chat.example]}\n", "listen.hosts is for an api_key on a loopback address"),
        ("traces: {sample: 0.5}\n", "traces.sample has no effect without traces.endpoint"),
        (PLAIN.replace("}", ", auth: bearer}"), "upstreams.default.auth has no effect without an api_key"),
        # Numbers that were settings once.
        ("policies: {p: {trigger: {client_margin_from: 9}}}\n", "client_margin_from has no effect any more"),
        ("policies: {p: {recall_tokens: 800}}\n", "policies.p.recall_tokens has no effect any more"),
        ("keepalive: {every_seconds: 1}\n", "keepalive.every_seconds has no effect any more"),
        ("bounds: {depth: 9}\n", "bounds.depth has no effect any more"),
    ],
)
def test_a_key_that_does_nothing_is_named(tmp_path: Path, text: str, named: str) -> None:
    (warning,) = warn(tmp_path, text)
    assert f"f.yaml:{text.count(chr(10))}: " in warning and named in warning


@pytest.mark.parametrize(
    "policy",
    [
        "trigger: {formula: source, output_cap: 5000}",
        "preset: recent, trigger: {soft_ratio: 0.8}",
        "preset: rolling, prompts: {dropped: Gone.}",
        "trigger: {output_cap: 32000}",
        "summary: {method: digest, model: null}",
    ],
)
def test_a_key_that_does_something_or_is_the_default_is_not_named(tmp_path: Path, policy: str) -> None:
    assert warn(tmp_path, f"policies: {{p: {{{policy}}}}}\n") == []


_OPENAI = "upstreams:\n  default:\n    base_url: https://api.openai.com/v1\n"
_ANTHROPIC = "upstreams:\n  default:\n    base_url: https://api.anthropic.com/v1\n"


@pytest.mark.parametrize(
    ("text", "lost", "formats"),
    [
        (_OPENAI, "messages, as Claude Code", "[chat, responses]"),
        (_ANTHROPIC, "responses, as Codex", "[chat, messages]"),
        # The first upstream that takes a format gets it.
        (
            _OPENAI + "  b: {base_url: 'https://api.anthropic.com/v1', formats: [messages]}\n",
            "messages, as Claude Code",
            "[chat, responses]",
        ),
    ],
)
def test_a_format_that_an_api_does_not_have_is_named(
    tmp_path: Path, text: str, lost: str, formats: str
) -> None:
    (warning,) = warn(tmp_path, text)
    assert "f.yaml:3: upstreams.default: " in warning and lost in warning
    assert f"Write formats: {formats} here" in warning


@pytest.mark.parametrize("text", [_OPENAI, _ANTHROPIC])
def test_what_a_warning_says_to_write_is_valid(tmp_path: Path, text: str) -> None:
    (warning,) = warn(tmp_path, text)
    formats = warning.split("Write ")[1].split(" here")[0]
    other = warning.rsplit("for the rest: ", 1)[1]
    assert warn(tmp_path, f"{text}    {formats}\n  {other}\n") == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        PLAIN,
        _OPENAI + "    formats: [chat, responses]\n",
        _OPENAI.replace("api.openai.com", "proxy.example"),
        "upstreams:\n  b: {base_url: 'https://api.anthropic.com/v1', formats: [messages]}\n"
        "  default: {base_url: 'https://api.openai.com/v1'}\n",
        KEYED + TENANT,
        PLAIN + TENANT + "    upstream: default\n    api_key: own\n",
        # No request of a tenant goes to the second one.
        KEYED + "  other: {base_url: 'https://y.example'}\n" + TENANT,
    ],
)
def test_what_is_meant_has_no_warning(tmp_path: Path, text: str) -> None:
    assert warn(tmp_path, text) == []


_FIVE = "".join(["tenants:\n", *(f"  - {{name: t{at}, keys: [k{at}]}}\n" for at in range(5))])


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (PLAIN + TENANT, "x.example:443 as the credential: a."),
        (PLAIN + TENANT + "    upstream: default\n", "x.example:443 as the credential: a."),
        (PLAIN + _FIVE, "as the credential: t0, t1, t2 and 2 more."),
    ],
)
def test_an_upstream_that_gets_the_keys_of_tenants_is_named(tmp_path: Path, text: str, named: str) -> None:
    (warning,) = warn(tmp_path, text)
    assert "f.yaml:2: upstreams.default has no `api_key`" in warning and named in warning


def test_a_port_that_is_open_to_everybody_is_named_by_check_and_in_json(tmp_path: Path) -> None:
    text = f"{PLAIN}listen: {{host: 0.0.0.0, port: 99}}\n"
    (warning,) = warn(tmp_path, text)
    assert warning.startswith("port 99 on 0.0.0.0 is open to everybody who can reach it")
    assert check(tmp_path, text).err == f"warning: {warning}\n"


# What a valid file means, in words.


def test_the_summary_says_what_would_run_and_shows_no_secret(tmp_path: Path) -> None:
    text = (
        "store: 'redis://:pw@h:1/0'\n"
        "policies: {p: {preset: opencode, commands: true, economy: 0, recall: tool}}\n"
        "upstreams: {u: {base_url: 'http://x/v1/', api_key: k, formats: [chat]}}\n"
        "tenants: [{name: a, keys: [b]}]\n"
    )
    assert check(tmp_path, text, env={"GATEWAY_DISABLE_PRUNE": "1"}).out.splitlines() == [
        "listen    127.0.0.1:8080",
        "store     redis://h:1/0, kept for 7 days",
        "upstream  u: http://x/v1 (chat; uses its own key)",
        "formats   chat go to u; responses, messages (Claude Code) go to u (not in its formats); "
        "none to the built-in upstreams",
        "policy    default: preset adaptive, prune off, economy 1",
        "policy    p: preset opencode, prune off, commands on, recall auto",
        "texts     not shown (page, commands): this needs an admin.token, or show_texts: true in a policy",
        "models    rules: 0",
        "tenants   1",
        "tenant    a: keys: 1, policy default",
    ]


def test_the_summary_says_what_each_tenant_may_use_and_shows_no_key(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"hunter3").hexdigest()
    text = (
        f"{PLAIN}tenants:\n  - name: a\n    keys: [hunter2, 'sha256:{digest}']\n"
        "    upstream: default\n    api_key: hunter4\n    models: [{match: m, context: 8000}]\n"
        "    requests_per_minute: 6000\n    concurrent_requests: 8\n"
        "    summary_budget: {calls_per_hour: 100, tokens_per_hour: 2000000}\n"
    )
    shown = check(tmp_path, text).out
    assert shown.splitlines()[-1] == (
        "tenant    a: keys: 2, upstream default with its own key, policy default, rules: 1, "
        "requests a minute: 6,000, requests at once: 8, summary calls an hour: 100, "
        "summary tokens an hour: 2,000,000"
    )
    assert "hunter" not in shown and digest not in shown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        (PLAIN, "chat, responses, messages (Claude Code) go to default; none to the built-in upstreams"),
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
    lines = check(tmp_path, text).out.splitlines()
    found = next((line for line in lines if line.startswith("formats ")), None)
    assert found == (expected and f"formats   {expected}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PLAIN, "shown on this machine (page, commands); off: policies: {default: {show_texts: false}}"),
        (PLAIN + "policies: {default: {show_texts: false}}\n", "not shown (page, commands): "),
        (PLAIN + TENANT, "not shown (page, commands): "),
        (PLAIN + "listen: {host: 0.0.0.0}\n", "not shown (page, commands): "),
        (
            PLAIN + TENANT + "policies: {open: {show_texts: true}}\n",
            "without a token (page, commands); off: policies: {open: {",
        ),
        (PLAIN + "admin: {token: sk-secret}\n", "shown to those who have the admin.token (page, commands)"),
    ],
)
def test_the_summary_says_who_sees_texts(tmp_path: Path, text: str, expected: str) -> None:
    (line,) = [line for line in check(tmp_path, text).out.splitlines() if line.startswith("texts ")]
    assert expected in line
