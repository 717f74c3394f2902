"""`refold models` and `refold check --model`: windows with their sources, thresholds, and prices."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.surface.written import PLAIN, check, read_model, write
from tests.toy.agent import make_session
from tests.toy.delivery import RawAnswer
from tests.toy.house import make_settings
from tests.toy.product import Result, command, serve
from tests.toy.running import Pace, run_session
from tests.toy.upstream import ToyUpstream

_MEMORY = "store: 'memory:'\n"


def describe(folder: Path, text: str, *words: str) -> Result:
    return command("models", *words, "--config", write(folder, _MEMORY + text))


def read(shown: str) -> dict[str, str]:
    """The lines of a report by their first word."""
    lines = [line.split(maxsplit=1) for line in shown.splitlines()]
    return {words[0]: words[-1] for words in lines}


def test_a_model_of_the_bundled_table(tmp_path: Path) -> None:
    result = describe(tmp_path, "", "openai/gpt-5-mini")
    shown = read(result.out)
    assert result.status == 0
    assert shown["context"] == "400,000 tokens of prompt and reply"
    assert shown["input"] == "272,000 tokens of the prompt"
    assert shown["output"] == "128,000 tokens"
    assert shown["source"] == "the bundled table, as gpt-5-mini"


@pytest.mark.parametrize(
    ("limits", "policy", "soft", "hard", "target"),
    [
        ("context: 128000, output: 16384", "{}", 85_600, 92_000, 46_000),
        ("context: 16000", "{}", 11_200, 12_000, 6_000),
        ("context: 16000", "{trigger: {hard_ratio: 0.5}}", 7_200, 8_000, 4_000),
        # The reserve is 20,000, and the window the input limit with it: 292,000.
        ("context: 400000, input: 272000, output: 128000", "{}", 204_400, 219_000, 109_500),
        ("context: 100000, output: 8000", "{preset: opencode}", 92_000, 92_000, 46_000),
        # A reply of 32,000 leaves nothing of it, and then a quarter counts.
        ("context: 16000", "{preset: opencode}", 4_000, 4_000, 2_000),
        # Nothing has to be prepared.
        ("context: 16000", "{preset: rolling}", 12_000, 12_000, 6_000),
    ],
)
def test_the_lines_of_a_policy(
    tmp_path: Path, limits: str, policy: str, soft: int, hard: int, target: int
) -> None:
    text = f"models: [{{match: m, {limits}, policy: p}}]\npolicies: {{p: {policy}}}\n"
    (found,) = read_model(tmp_path, _MEMORY + text, "m")["policies"]
    assert (found["soft"], found["hard"], found["target"]) == (soft, hard, target)
    shown = read(describe(tmp_path, text, "m").out)
    for name, line in (("soft", soft), ("hard", hard), ("target", target)):
        assert shown[name].startswith(f"{line:,}: ")


@pytest.mark.parametrize(
    ("policy", "price", "said"),
    [
        ("{}", "{input: 2, output: 8}", ["as much as a compaction"]),
        ("{economy: 2.5}", "null", ["2.5 times a compaction"]),
        ("{economy: 0}", "{input: 2, output: 8}", []),
        ("{}", "{input: 0, output: 0}", []),
    ],
)
def test_when_compactions_pay_is_said(tmp_path: Path, policy: str, price: str, said: list[str]) -> None:
    text = f"models: [{{match: m, context: 9000, price: {price}}}]\npolicies: {{default: {policy}}}\n"
    lines = describe(tmp_path, text, "m").out.splitlines()
    assert [line.partition("have cost ")[2] for line in lines if "have cost " in line] == said


def test_a_price_is_shown_with_its_source(tmp_path: Path) -> None:
    rules = "  - {match: 'gpt*', context: 9000}\n  - {match: 'gpt*', price: {input: 2, output: 8}}\n"
    shown = describe(tmp_path, f"{PLAIN}models:\n{rules}", "gpt-4o").out
    assert "  price    $2 in, $8 out\n" in shown
    assert "f.yaml:6, the rule with match 'gpt*'" in shown.partition("  price ")[2]
    bundled = describe(tmp_path, PLAIN, "gpt-4o").out
    assert "  price    $2.5 in, $1.25 cached, $10 out\n" in bundled
    assert "for a million tokens, from the bundled table, as gpt-4o" in bundled
    assert "unknown" in read(describe(tmp_path, PLAIN, "made-up").out)["price"]
    assert read_model(tmp_path, _MEMORY + PLAIN, "gpt-4o")["price"] == {
        "input": 2.5,
        "cached": 1.25,
        "write": None,
        "output": 10.0,
        "name": "gpt-4o",
    }


def test_a_rule_is_named_with_its_line_and_chooses_the_policy(tmp_path: Path) -> None:
    text = "models:\n  - {match: 'q*', policy: p}\n  - {match: 'qwen*', context: 9000}\npolicies: {p: {}}\n"
    shown = describe(tmp_path, text, "qwen3").out
    assert read(shown)["source"].endswith("f.yaml:4, the rule with match 'qwen*'")
    assert "policy   p, preset adaptive" in shown and "policy   default" not in shown


def test_the_first_rule_that_fits_counts(tmp_path: Path) -> None:
    text = "models:\n  - {match: 'qwen3', context: 8000}\n  - {match: 'qwen*', context: 9000}\n"
    found = [read_model(tmp_path, text, name)["context"] for name in ("qwen3", "qwen", "Qwen3", "xqwen")]
    assert found == [8_000, 9_000, None, None]


def test_policies_of_all_tenants_are_shown(tmp_path: Path) -> None:
    text = (
        "policies: {p: {preset: opencode}, off: {compaction: {auto: false}}, unused: {}}\n"
        "tenants: [{name: a, keys: [k], policy: p, upstream: default}, "
        "{name: b, keys: [l], policy: 'off', upstream: default}]\n"
    )
    shown = describe(tmp_path, text, "gpt-4o").out
    assert "policy   p, preset opencode\n    soft" in shown
    assert "policy   off, preset adaptive: no automatic compaction\n" in shown
    # At each of the two built-in upstreams.
    assert shown.count("policy   ") in (2, 4) and "unused" not in shown


def test_a_tenants_own_rule_is_shown_for_it(tmp_path: Path) -> None:
    rules = "[{match: 'gpt-4o*', context: 32000, policy: p}]"
    text = f"policies: {{p: {{}}}}\ntenants: [{{name: a, keys: [k], upstream: default, models: {rules}}}]\n"
    shown = describe(tmp_path, text, "gpt-4o").out
    assert "  tenant   a: 32,000 tokens, from its own rule with match 'gpt-4o*'" in shown
    assert "policy   p, preset adaptive" in shown and "policy   default" not in shown


def test_upstreams_that_differ_are_shown_apart(tmp_path: Path) -> None:
    text = (
        f"{PLAIN}  b: {{base_url: 'https://y.example/v1'}}\n  c: {{base_url: 'https://z.example/v1'}}\n"
        "models: [{match: '*', upstream: b, context: 9000}]\n"
    )
    result = describe(tmp_path, text, "m")
    assert "m at default, c\n  context  unknown" in result.out
    assert "m at b\n  context  9,000 tokens" in result.out
    assert result.status == 1


def test_an_unknown_model_gets_the_nearest_names_and_lines_to_paste(tmp_path: Path) -> None:
    report = describe(tmp_path, "models: [{match: 'gpt-4.*', context: 9000}]\n", "GPT-4oo")
    assert report.status == 1 and "f.yaml:2: match 'gpt-4.*' nearly fits" in report.out
    assert "`refold models` with --ask" in report.out
    assert "    gpt-4o-mini: 128,000 tokens\n" in describe(tmp_path, "", "gpt-4oo-mini").out
    pasted = report.out[report.out.index("models:") :]
    known = describe(tmp_path, pasted, "GPT-4oo")
    assert known.status == 0 and "32,768 tokens" in known.out


def test_several_models_are_told_one_after_the_other(tmp_path: Path) -> None:
    result = describe(tmp_path, "", "gpt-4o", "made-up", "--json")
    assert [each["is_known"] for each in json.loads(result.out)["models"]] == [True, False]
    assert result.status == 1
    assert describe(tmp_path, "", "gpt-4o", "gpt-5-mini").status == 0


@pytest.mark.parametrize(("model", "status"), [("gpt-4o", 0), ("made-up", 1)])
def test_check_says_whether_the_window_of_a_model_is_known(tmp_path: Path, model: str, status: int) -> None:
    result = check(tmp_path, "", "--model", model)
    assert result.status == status and f"{model}\n  context " in result.out
    told = json.loads(check(tmp_path, "", "--model", model, "--json").out)["model"]
    assert told["is_known"] == (status == 0)


async def test_what_errors_have_taught_is_shown_for_its_tenant(tmp_path: Path) -> None:
    """Each tenant has its own window, and one without a name is shown by the beginning of its key's hash."""
    more = "tenants: [{name: a, keys: [sk-a]}, {name: b, keys: [sk-b]}]\n"
    async with ToyUpstream(window=16_000) as toy:
        settings = make_settings(toy, store=f"disk:{tmp_path}/state", more=more)
        head, _, tail = settings.partition("models:\n")
        settings = head + tail.partition("\n")[2]
        async with serve(settings) as product:
            session = make_session(40, 3)
            run = await run_session(session, product.base_url, toy, pace=Pace(key="sk-a"))
            await product.at_rest()
        assert run.failed == []
    result = await asyncio.to_thread(command, "models", "toy-model", "--config", write(tmp_path, settings))
    assert "tenant   a: 16,000 tokens, from a number in an error of the upstream" in result.out
    assert "tenant   b" not in result.out and result.status == 1
    sources = await asyncio.to_thread(command, "models", "--config", write(tmp_path, settings))
    assert f"in disk:{tmp_path}/state: 1\n" in sources.out


async def test_an_upstream_is_asked_only_if_that_is_wanted(tmp_path: Path) -> None:
    async with ToyUpstream() as toy:
        body = b'{"data": [{"id": "m", "max_model_len": 24000}]}'
        toy.raw_answers["GET", "/v1/models"] = RawAnswer(pieces=(body,))
        text = f"upstreams: {{a: {{base_url: '{toy.base_url}'}}}}\n"
        unasked = await asyncio.to_thread(describe, tmp_path, text, "m")
        assert unasked.status == 1 and toy.requests == []
        asked = await asyncio.to_thread(describe, tmp_path, text, "m", "--ask")
    shown = read(asked.out)
    assert shown["context"].startswith("24,000 tokens") and "own list" in shown["source"]


def test_all_sources_are_listed_with_what_they_hold(tmp_path: Path) -> None:
    text = (
        "models:\n  - {match: 'qwen*', upstream: default, context: 32768, output: 4096}\n"
        "  - {match: '*', policy: p}\npolicies: {p: {}}\n"
    )
    lines = describe(tmp_path, text).out.splitlines()
    assert lines[0] == "settings   rules: 2; the first that fits a name counts"
    assert lines[1].endswith("f.yaml:3  'qwen*' at default: context 32,768, output 4,096")
    assert lines[2].endswith("f.yaml:4  '*': policy p")
    assert lines[3].endswith("at the first request: default, anthropic")
    assert lines[5] == "table      names of models: 2,421, by their first word:"
    assert sum(int(line.split()[1].replace(",", "")) for line in lines[6:]) == 2_421


@pytest.mark.parametrize("name", ["a" * 10_000, "'\"{}", "Qwen é:7b"])
def test_no_printable_name_is_too_odd(name: str) -> None:
    assert command("models", name).status == 1


@pytest.mark.parametrize("name", ["", "gpt\n4", "\x1b[31m", "\udcff"])
def test_a_name_that_cannot_be_shown_is_wrong_usage(name: str) -> None:
    for words in (["models"], ["check", "f.yaml", "--model"]):
        result = command(*words, name)
        assert result.status == 2 and "printable" in result.err
