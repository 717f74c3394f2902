"""What ships under `config` and what the code says must be the same."""

import dataclasses
from pathlib import Path

import pytest

from gateway.core.policy import Keep, Originals, Policy, Prompts, Pruning, Summary, Trigger
from gateway.settings import SettingsError, check_file, load_settings
from gateway.settings.document import load_document
from gateway.settings.folder import find_config_folder
from gateway.settings.policy_schema import (
    KeepSection,
    OriginalsSection,
    PromptsSection,
    PruningSection,
    SummarySection,
    TriggerSection,
)
from gateway.settings.reference import render_reference
from gateway.settings.section import Section
from tests.shared_data import SHARED, requires_shared

_CONFIG = find_config_folder()
_SECTIONS = {
    Trigger: TriggerSection,
    Keep: KeepSection,
    Pruning: PruningSection,
    Summary: SummarySection,
    Prompts: PromptsSection,
    Originals: OriginalsSection,
}


def test_the_reference_is_up_to_date() -> None:
    """If not: python -m gateway.settings.reference."""
    assert (_CONFIG / "reference.yaml").read_text(encoding="utf-8") == render_reference()


def test_the_reference_holds_the_defaults() -> None:
    assert load_settings(_CONFIG / "reference.yaml", {}) == load_settings(None, {})


def test_the_examples_in_the_references_comments_load(tmp_path: Path) -> None:
    text = render_reference()
    for name in ("models", "tenants"):
        before, _, after = text.partition(f"{name}: []\n")
        text = f"{before}{name}:\n" + after.replace("\n#  ", "\n   ").replace("#  ", "   ", 1)
    path = tmp_path / "reference.yaml"
    path.write_text(text, encoding="utf-8")
    settings = load_settings(path, {"TEAM_A_KEY": "k"})
    assert (settings.models[0].match, settings.tenants[0].name) == ("gpt-4o*", "team-a")


@pytest.mark.parametrize(("values", "section"), _SECTIONS.items())
def test_every_number_of_a_policy_is_a_key(values: type, section: type[Section]) -> None:
    assert {each.name for each in dataclasses.fields(values)} == set(section.model_fields)


def test_the_adaptive_preset_spells_out_every_default() -> None:
    written = load_document(_CONFIG / "presets" / "adaptive.yaml", {}).values
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


@pytest.mark.parametrize("name", sorted(path.name for path in (_CONFIG / "examples").glob("*.yaml")))
def test_an_example_passes_its_check_and_shows_no_secret(name: str) -> None:
    env = {key: f"sk-{key}" for key in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "TEAM_A_KEY", "CI_KEY")}
    assert "sk-" not in check_file(_CONFIG / "examples" / name, env)


def test_a_check_says_what_would_run(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(
        "store: 'redis://:pw@h:1/0'\npolicies: {p: {preset: opencode, commands: true}}\n"
        "upstreams: {u: {base_url: 'http://x/v1/', api_key: k, formats: [chat]}}\n"
        "tenants: [{name: a, keys: [b]}]\n"
    )
    assert check_file(path, {"GATEWAY_DISABLE_PRUNE": "1"}).splitlines() == [
        "listen    127.0.0.1:8080",
        "store     redis://***@h:1/0, kept for 7 days",
        "upstream  u: http://x/v1 (chat; its own key)",
        "policy    default: preset adaptive, prune off",
        "policy    p: preset opencode, prune off, commands on",
        "models    0 rules",
        "tenants   1",
    ]


def test_a_check_of_a_bad_file_raises(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("stor: x\n")
    with pytest.raises(
        SettingsError, match=r"f\.yaml:1: unknown key 'stor'; the nearest valid key is 'store'"
    ):
        check_file(path, {})


# Line ends and indents of the documents aside: two of them are wrapped, or stand inside code.
_SOURCES = {
    "opencode": ("000_00524752e35cb23e.txt", ("system", "instruction", "question", "resume")),
    "opencode-spec": ("001_352f269b4dc4d795.txt", ("system",)),
    "recent": ("002_c17074b6339f0092.txt", ("system",)),
    "utilization": ("003_dca840532993a6fc.txt", ("instruction",)),
}


@requires_shared
@pytest.mark.parametrize("name", _SOURCES)
def test_the_prompts_stand_in_the_documents_word_for_word(name: str) -> None:
    source, texts = _SOURCES[name]
    document = " ".join((SHARED / "sources" / source).read_text("utf-8").split())
    folder = _CONFIG / "prompts" / name
    assert {path.stem for path in folder.glob("*.txt")} == set(texts)
    for text in texts:
        assert " ".join((folder / f"{text}.txt").read_text("utf-8").split()) in document


@requires_shared
def test_the_prompts_of_004_ask_for_what_it_lists() -> None:
    document = (SHARED / "sources" / "004_7e9a5fe4ad2ef376.txt").read_text("utf-8")
    system = (_CONFIG / "prompts" / "rfc007" / "system.txt").read_text("utf-8")
    points = [line for line in system.splitlines() if line.startswith("- ")]
    assert len(points) == 4
    assert all(point in document for point in points)
