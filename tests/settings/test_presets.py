"""Policies made from presets and the keys that an operator wrote."""

import dataclasses
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.core.compaction.summary_model import choose_summary_model
from gateway.core.history.purpose import find_purpose
from gateway.core.policy import Keep, Policy, Pruning, Summary, Trigger
from gateway.settings import SettingsError, load_settings
from gateway.settings.document import load_document
from gateway.settings.presets import find_config_folder
from tests.builders.settings import assert_refused, load_text, without_prompts


def test_the_adaptive_preset_spells_out_every_default() -> None:
    written = load_document(find_config_folder() / "presets" / "adaptive.yaml", {}).values
    expected = dataclasses.asdict(Policy())
    switches = {"auto": expected.pop("auto"), "prune": expected.pop("prune")}
    for name in ("protected_tools", "protected_prefixes"):
        expected["pruning"][name] = list(expected["pruning"][name])
    expected["summary"]["model_map"] = dict(expected["summary"]["model_map"])
    expected["summary"]["extra_context"] = list(expected["summary"]["extra_context"])
    prompts = written.pop("prompts")
    assert isinstance(prompts, dict) and prompts.keys() == expected.pop("prompts").keys()
    del expected["name"]
    assert written == {"compaction": switches, **expected}


def test_the_opencode_preset_has_the_numbers_of_the_source_documents(tmp_path: Path) -> None:
    text = "policies: {default: {preset: opencode, keep: {tail_tokens: 20000, opening: true}}}"
    settings = load_text(tmp_path, text)
    assert without_prompts(settings.policies["default"]) == Policy(
        name="opencode",
        estimator="chars",
        trigger=Trigger(formula="source"),
        keep=Keep(tail_tokens=20_000, tail_ratio=0.0, opening=True),
        pruning=Pruning(protect_ratio=1.0, minimum_ratio=1.0, calibrated=False, keep_turns=2, eager=True),
        summary=Summary(framing=False, ride="never", kept_chars=0),
        economy=0.0,
    )


def test_only_the_adaptive_preset_frames_its_summaries(tmp_path: Path) -> None:
    names = sorted(path.stem for path in (find_config_folder() / "presets").glob("*.yaml"))
    lines = "".join(f"  {name}: {{preset: {name}}}\n" for name in names)
    policies = load_text(tmp_path, f"policies:\n{lines}").policies
    assert [name for name in names if policies[name].summary.framing] == ["adaptive"]


def test_a_bare_off_switches_recalls_off(tmp_path: Path) -> None:
    """YAML reads it as false."""
    text = "policies: {a: {recall: off}, b: {recall: 'off'}, c: {recall: tool}, d: {recall: auto}}\n"
    policies = load_text(tmp_path, text).policies
    assert [policies[name].recall for name in "abcd"] == ["off", "off", "tool", "auto"]


@pytest.mark.parametrize("written", ["on", "true", "yes", "1", "always"])
def test_recalls_have_three_modes_and_on_is_none_of_them(tmp_path: Path, written: str) -> None:
    text = f"policies:\n  p:\n    recall: {written}\n"
    assert_refused(tmp_path, text, 3, "policies.p.recall: must be 'off', 'tool' or 'auto'")


@pytest.mark.system(9)
def test_only_the_keys_that_were_written_differ_from_the_preset(tmp_path: Path) -> None:
    text = "policies: {p: {preset: opencode, summary: {max_tokens: 100}}, q: }\n"
    policies = load_text(tmp_path, text).policies
    assert policies["p"].keep == Keep(tail_tokens=0, tail_ratio=0.0, opening=False)
    assert policies["p"].summary == Summary(max_tokens=100, framing=False, ride="never", kept_chars=0)
    assert without_prompts(policies["q"]) == without_prompts(policies["default"]) == Policy()


@pytest.mark.system(9)
def test_the_estimator_comes_from_the_preset_unless_it_is_written(tmp_path: Path) -> None:
    text = "policies: {a: {preset: opencode, estimator: tiktoken}, b: {estimator: chars}, c: {}}\n"
    policies = load_text(tmp_path, text).policies
    assert [policies[name].estimator for name in "abc"] == ["tiktoken", "chars", "tiktoken"]


def test_the_default_prompts_have_headings_that_tell_a_summary_from_an_answer() -> None:
    prompts = load_settings(None, {}).policies["default"].prompts
    headings = [line for line in prompts.instruction.splitlines() if line.startswith("## ")]
    assert headings == [
        "## Goal",
        "## Constraints and preferences",
        "## Decisions",
        "## Done",
        "## In progress",
        "## Open",
        "## Files",
        "## Commands",
        "## Next step",
    ]
    assert prompts.ride.count("{kept}") == 1 and "Call no tools" in prompts.ride
    # Each of the blocks that a summary call may have is explained.
    for tag in ("earlier-summary", "conversation", "kept-messages"):
        assert f"- {tag}" in prompts.system
    # A gateway in front of this one is recognized by its prompts.
    assert find_purpose(prompts.system.encode(), b"", is_agent=False) == "summary"
    assert find_purpose(b"", prompts.ride.encode(), is_agent=False) == "summary"


def test_the_prompts_of_a_source_preset_are_those_of_its_document(tmp_path: Path) -> None:
    prompts = load_text(tmp_path, "policies: {p: {preset: opencode}}\n").policies["p"].prompts
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


@pytest.mark.system(3)
def test_a_prompt_may_be_text_or_a_file_and_the_others_stay_the_presets(tmp_path: Path) -> None:
    (tmp_path / "ask.txt").write_text("Sum it up.\n")
    written = "prompts: {instruction: '${file:ask.txt}', question: 'So?'}"
    text = f"policies: {{p: {{preset: rfc007, {written}}}, q: {{preset: rfc007}}}}\n"
    policies = load_text(tmp_path, text).policies
    prompts, preset = policies["p"].prompts, policies["q"].prompts
    assert prompts == replace(preset, instruction="Sum it up.", question="So?")
    assert "datasources" in preset.system


@pytest.mark.parametrize("name", ["instruction", "question", "resume", "dropped"])
def test_a_prompt_that_would_make_an_empty_message_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingsError, match=f"prompts.{name}: must not be blank"):
        load_text(tmp_path, f"policies: {{p: {{prompts: {{{name}: ' '}}}}}}\n")
    assert (
        load_text(tmp_path, "policies: {p: {prompts: {system: ' '}}}\n").policies["p"].prompts.system == " "
    )


def test_a_written_model_map_comes_before_the_presets(tmp_path: Path) -> None:
    written = "summary: {model_map: {'llama*': l8, 'claude-*': mine}}"
    text = f"policies: {{p: {{preset: utilization, {written}}}, q: {{preset: utilization}}}}\n"
    policies = load_text(tmp_path, text).policies
    pairs, preset = policies["p"].summary.model_map, policies["q"].summary.model_map
    assert pairs[:2] == (("llama*", "l8"), ("claude-*", "mine"))
    assert pairs[2:] == tuple(pair for pair in preset if pair[0] != "claude-*")
    assert hash(policies["p"]) != hash(policies["q"])


@pytest.mark.system(13)
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
def test_utilization_summarizes_with_the_small_model_of_the_family(
    tmp_path: Path, model: str, chosen: str
) -> None:
    policy = load_text(tmp_path, "policies: {p: {preset: utilization}}\n").policies["p"]
    assert choose_summary_model(policy.summary, model) == chosen


def test_an_unknown_preset_is_reported_with_the_known_ones(tmp_path: Path) -> None:
    text = "policies:\n  p:\n    preset: rollin\n"
    assert_refused(
        tmp_path, text, 3, "unknown preset; the nearest is 'rolling', and the presets are adaptive, "
    )
    assert_refused(tmp_path, text, 3, ", rolling")
    assert_refused(tmp_path, text.replace("rollin", "adaptiv"), 3, "the nearest is 'adaptive'")
    assert_refused(tmp_path, text.replace("rollin", "zzz"), 3, "unknown preset; the presets are adaptive, ")
