"""`refold models`: windows, their sources, and the thresholds."""

import time
from pathlib import Path

import pytest

from gateway.command_line.model_report import ModelReport, describe_model, describe_sources
from gateway.core.limits.learned import Learned
from gateway.core.limits.model_limits import Limits
from gateway.core.limits.thresholds import RequestSize, choose_thresholds
from gateway.core.policy import Policy
from gateway.settings import Settings, load_settings
from gateway.store.disk import DiskStore
from tests.builders.settings import PLAIN, load_text
from tests.builders.state import make_state
from tests.toy.delivery import RawAnswer
from tests.toy.upstream import ToyUpstream

MEMORY = "store: 'memory:'\n"


def load(folder: Path, text: str = "") -> Settings:
    return load_text(folder, MEMORY + text)


def read(report: ModelReport) -> dict[str, str]:
    """The lines of a report by their first word."""
    lines = [line.split(maxsplit=1) for line in report.text.splitlines()]
    return {words[0]: words[-1] for words in lines}


async def test_a_model_of_the_bundled_table(tmp_path: Path) -> None:
    report = await describe_model(load(tmp_path), "openai/gpt-5-mini")
    shown = read(report)
    assert report.is_known
    assert shown["context"] == "400,000 tokens of prompt and reply"
    assert shown["input"] == "272,000 tokens of the prompt"
    assert shown["output"] == "128,000 tokens"
    assert shown["source"] == "the bundled table, as gpt-5-mini"


async def test_the_thresholds_are_those_of_the_policy(tmp_path: Path) -> None:
    thresholds = choose_thresholds(Policy(), Limits(context=128_000, output=16_384), RequestSize())
    assert thresholds is not None
    shown = read(await describe_model(load(tmp_path), "gpt-4o"))
    for name in ("soft", "hard", "target"):
        assert shown[name].startswith(f"{getattr(thresholds, name):,}: ")


async def test_money_is_shown_beside_the_limits(tmp_path: Path) -> None:
    report = await describe_model(load(tmp_path), "gpt-4o")
    shown = read(report)
    assert shown["price"] == "$2.5 in, $1.25 cached, $10 out"
    assert shown["early"] == "below soft, as soon as old messages have cost as much as a compaction"
    assert report.facts["upstreams"][0]["price"]["cached"] == 1.25
    assert report.facts["upstreams"][0]["policies"][0]["economy"] == 1.0


async def test_a_rule_is_named_with_its_line(tmp_path: Path) -> None:
    text = "models:\n  - {match: 'q*', policy: p}\n  - {match: 'qwen*', context: 9000}\npolicies: {p: {}}\n"
    report = await describe_model(load(tmp_path, text), "qwen3")
    assert read(report)["source"].endswith("f.yaml:4, the rule with match 'qwen*'")
    assert "policy   p, preset adaptive" in report.text and "policy   default" not in report.text


async def test_policies_of_all_tenants_are_shown(tmp_path: Path) -> None:
    text = (
        "policies: {p: {preset: opencode}, off: {compaction: {auto: false}}, unused: {}}\n"
        "tenants: [{name: a, keys: [k], policy: p, upstream: default}, "
        "{name: b, keys: [l], policy: 'off', upstream: default}]\n"
    )
    report = await describe_model(load(tmp_path, text), "gpt-4o")
    assert "policy   p, preset opencode\n    soft" in report.text
    assert "policy   off, preset adaptive: no automatic compaction\n" in report.text
    assert report.text.count("policy   ") == 2


async def test_a_tenants_own_rule_is_shown_for_it(tmp_path: Path) -> None:
    rules = "[{match: 'gpt-4o*', context: 32000, policy: p}]"
    text = f"tenants: [{{name: a, keys: [k], upstream: default, models: {rules}}}]\n"
    report = await describe_model(load(tmp_path, f"policies: {{p: {{}}}}\n{text}"), "gpt-4o")
    assert "  tenant   a: 32,000 tokens, from its own rule with match 'gpt-4o*'" in report.text
    assert "policy   p, preset adaptive" in report.text and "policy   default" not in report.text


async def test_upstreams_that_differ_are_shown_apart(tmp_path: Path) -> None:
    text = (
        f"{PLAIN}  b: {{base_url: 'https://y.example/v1'}}\n  c: {{base_url: 'https://z.example/v1'}}\n"
        "models: [{match: '*', upstream: b, context: 9000}]\n"
    )
    report = await describe_model(load(tmp_path, text), "m")
    assert "m at default, c\n  context  unknown" in report.text
    assert "m at b\n  context  9,000 tokens" in report.text
    assert not report.is_known


async def test_an_unknown_model_gets_the_nearest_names_and_lines_to_paste(tmp_path: Path) -> None:
    settings = load(tmp_path, "models: [{match: 'gpt-4.*', context: 9000}]\n")
    report = await describe_model(settings, "GPT-4oo")
    assert (
        not report.is_known
        and "f.yaml:2: match 'gpt-4.*' nearly fits" in (await describe_model(settings, "GPT-4oo")).text
    )
    assert "`refold models` with --ask" in report.text
    nearest = (await describe_model(load(tmp_path), "gpt-4oo-mini")).text
    assert "    gpt-4o-mini: 128,000 tokens\n" in nearest
    pasted = report.text[report.text.index("models:") :]
    known = await describe_model(load(tmp_path, pasted), "GPT-4oo")
    assert known.is_known and "32,768 tokens" in known.text


async def test_what_errors_have_taught_is_shown_for_its_tenant(tmp_path: Path) -> None:
    settings = load_text(tmp_path, f"store: 'disk:{tmp_path / 'state'}'\n{PLAIN}")
    store = DiskStore(tmp_path / "state")
    await store.open()
    calibrations = make_state(store).calibrations
    for owner, model, window in (("tenant:a", "m", 32_768), ("key:0123456789abcdef", "other", 16_000)):
        learned = Learned(owner=owner).with_proof(Limits(context=window), time.time())
        calibrations.save_learned("default", model, learned)
    await store.close()
    report = await describe_model(settings, "m")
    assert "tenant   a: 32,768 tokens, from a number in an error of the upstream" in report.text
    assert "16,000" not in report.text and not report.is_known
    assert "tenant   key:0123456789ab: 16,000" in (await describe_model(settings, "other")).text
    assert f"in disk:{tmp_path / 'state'}: 2\n" in describe_sources(settings)


async def test_an_upstream_is_asked_only_if_that_is_wanted(tmp_path: Path) -> None:
    async with ToyUpstream() as toy:
        body = b'{"data": [{"id": "m", "max_model_len": 24000}]}'
        toy.raw_answers["GET", "/v1/models"] = RawAnswer(pieces=(body,))
        settings = load(tmp_path, f"upstreams: {{a: {{base_url: '{toy.base_url}'}}}}\n")
        assert not (await describe_model(settings, "m")).is_known and toy.requests == []
        shown = read(await describe_model(settings, "m", asks=True))
        assert shown["context"].startswith("24,000 tokens") and "own list" in shown["source"]


def test_all_sources_are_listed_with_what_they_hold(tmp_path: Path) -> None:
    text = (
        "models:\n  - {match: 'qwen*', upstream: default, context: 32768, output: 4096}\n"
        "  - {match: '*', policy: p}\npolicies: {p: {}}\n"
    )
    lines = describe_sources(load(tmp_path, text)).splitlines()
    assert lines[0] == "settings   rules: 2; the first that fits a name counts"
    assert lines[1].endswith("f.yaml:3  'qwen*' at default: context 32,768, output 4,096")
    assert lines[2].endswith("f.yaml:4  '*': policy p")
    assert lines[3].endswith("at the first request: default, anthropic")
    assert lines[5] == "table      names of models: 2,421, by their first word:"
    counts = [int(line.split()[1].replace(",", "")) for line in lines[6:]]
    assert sum(counts) == 2_421


@pytest.mark.parametrize("name", ["", "a" * 10_000, "\x00'\"{}"])
async def test_no_name_is_too_odd(name: str) -> None:
    assert not (await describe_model(load_settings(None, {}), name)).is_known
