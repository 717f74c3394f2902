"""The files under `config`: the reference is that of the code, presets and examples load."""

import json
import re
import textwrap
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from tests.shared_data import SHARED, requires_shared
from tests.surface.written import ROOT, read_facts, read_file_facts, read_model
from tests.toy.agent import Session, make_session
from tests.toy.certificates import make_certificates
from tests.toy.house import ADMIN, House, make_settings
from tests.toy.product import command, serve
from tests.toy.upstream import ToyUpstream

_CONFIG = ROOT / "config"
_PRESETS = sorted(path.stem for path in (_CONFIG / "presets").glob("*.yaml"))
_REFERENCE = {"$ref": "#/definitions/Reference"}
# Sections of which the reference shows no value that is set.
_EXAMPLES = ("models", "tenants", "pre_compact", "session_start")


@cache
def read_schema() -> Any:
    result = command("schema")
    assert result.status == 0
    return json.loads(result.out)


@cache
def read_reference() -> Any:
    """With its examples in place of the empty lists."""
    text = (_CONFIG / "reference.yaml").read_text("utf-8")
    for name in _EXAMPLES:
        indent = "  " if name in ("pre_compact", "session_start") else ""
        text = re.sub(rf"^{indent}{name}: \[\]\n((?:#  .*\n)+)", _uncomment, text, flags=re.MULTILINE)
    return yaml.safe_load(text)


def _uncomment(found: re.Match[str]) -> str:
    head = found[0].partition(":")[0]
    return f"{head}:\n" + "".join(f"   {line[3:]}" for line in found[1].splitlines(keepends=True))


def list_keys(node: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Every key of the schema by its place, with what the schema says of it; `*` stands for a name."""
    for name, value in node.get("properties", {}).items():
        yield f"{place}{name}", value
        yield from list_inner_keys(value, f"{place}{name}.")


def list_inner_keys(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    for choice in value.get("anyOf", [value]):
        name = choice.get("$ref", "").rpartition("/")[2]
        if name and name != "Reference":
            yield from list_keys(read_schema()["definitions"][name], place)
        for many in ("items", "additionalProperties"):
            if isinstance(choice.get(many), dict):
                yield from list_inner_keys(choice[many], f"{place}*.")


def find_values(value: Any, parts: list[str]) -> Iterator[Any]:
    """Of the reference at a place."""
    if not parts:
        yield value
        return
    first, *rest = parts
    if first != "*":
        yield from find_values(value[first], rest) if first in value else ()
        return
    for each in value.values() if isinstance(value, dict) else value:
        yield from find_values(each, rest)


def test_the_reference_has_every_key_with_its_default_and_its_description() -> None:
    text = (_CONFIG / "reference.yaml").read_text("utf-8")
    found = {
        place: [*find_values(read_reference(), place.split("."))] for place, _ in list_keys(read_schema())
    }
    # Rules of a tenant are those of all tenants, which the reference shows.
    missing = [place for place, values in found.items() if not values]
    assert [place for place in missing if not place.startswith("tenants.*.models.*")] == []
    for place, node in list_keys(read_schema()):
        assert f"# {node['description']}\n" in text, place
        # Values of examples and of the built-in upstreams are none of all upstreams.
        if "default" in node and not place.startswith(("models", "tenants", "hooks", "upstreams")):
            assert found[place] == [node["default"]], place


def list_places(value: Any, place: str = "") -> Iterator[str]:
    """Every key of the reference."""
    for name, inner in value.items() if isinstance(value, dict) else ():
        yield f"{place}{name}"
        yield from list_places(inner, f"{place}{name}.")
    for inner in value if isinstance(value, list) else ():
        yield from list_places(inner, f"{place}*.")


def test_the_reference_has_no_other_keys() -> None:
    known = {place for place, _ in list_keys(read_schema())}
    named = re.compile(r"^(upstreams|policies)\.\w+")
    found = {named.sub(r"\1.*", place) for place in list_places(read_reference())}
    assert found - known == {"upstreams.*", "policies.*"}


def test_the_reference_means_what_no_file_means(tmp_path: Path) -> None:
    assert read_file_facts(_CONFIG / "reference.yaml") == read_facts(tmp_path, "")
    shown = read_facts(tmp_path, yaml.safe_dump(read_reference()), {"TEAM_A_KEY": "k", "HOOK_SECRET": "s"})
    assert (shown["rules"][0]["match"], shown["tenants"][0]["name"]) == ("gpt-4o*", "team-a")
    assert shown["rules"][0]["price"]["cached"] == 1.25


def test_a_reference_may_stand_for_every_number_boolean_and_word_of_a_choice() -> None:
    """In an editor, as for `refold check`; a text that may be one needs no mention."""
    checked = 0
    for place, value in list_keys(read_schema()):
        choices = value.get("anyOf", [value])
        types = {choice.get("type") for choice in choices}
        if types & {"integer", "number", "boolean"} or any("enum" in choice for choice in choices):
            assert _REFERENCE in choices, place
            checked += 1
        elif "string" in types:
            assert _REFERENCE not in choices, place
    assert checked > 50


def test_the_schema_is_closed_complete_and_open_for_sections_of_comments() -> None:
    schema = read_schema()
    nodes = [schema, *schema["definitions"].values()]
    assert all(node["additionalProperties"] is False for node in nodes if "properties" in node)
    names = {part.partition('"')[0] for part in json.dumps(schema).split('"#/definitions/')[1:]}
    assert names <= schema["definitions"].keys()
    for name in ("listen", "upstreams", "models", "policies", "tenants"):
        assert {"type": "null"} in schema["properties"][name]["anyOf"]


@pytest.mark.parametrize("name", _PRESETS)
def test_a_preset_names_only_what_differs_from_the_reference(name: str) -> None:
    written = yaml.safe_load((_CONFIG / "presets" / f"{name}.yaml").read_text("utf-8")) or {}
    reference = read_reference()["policies"]["default"]
    for section, value in written.items():
        inner = value.items() if isinstance(value, dict) else [(None, value)]
        for key, changed in inner:
            assert (reference[section] if key is None else reference[section][key]) != changed, (section, key)


@pytest.mark.parametrize("name", _PRESETS)
def test_a_preset_loads_and_is_named(tmp_path: Path, name: str) -> None:
    facts = read_facts(tmp_path, f"policies: {{p: {{preset: {name}}}}}\n")
    (policy,) = [each for each in facts["policies"] if each["name"] == "p"]
    assert policy["preset"] == name and facts["warnings"] == []


@pytest.mark.system(9)
def test_only_the_keys_that_were_written_differ_from_the_preset(tmp_path: Path) -> None:
    def find_lines(policy: str) -> dict[str, int]:
        text = (
            f"models: [{{match: m, context: 100000, output: 8000, policy: p}}]\npolicies: {{p: {policy}}}\n"
        )
        (found,) = read_model(tmp_path, text, "m")["policies"]
        return {name: found[name] for name in ("soft", "hard", "target")}

    assert find_lines("{preset: opencode}") == {"soft": 92_000, "hard": 92_000, "target": 46_000}
    assert find_lines("{preset: opencode, trigger: {output_cap: 4000}}")["hard"] == 96_000
    assert find_lines("{}") == find_lines("{preset: adaptive}") != find_lines("{preset: opencode}")


_KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "AZURE_KEY", "TEAM_A_KEY", "CI_KEY", "REDIS_PASSWORD", "TEAM")


@pytest.mark.parametrize("path", sorted((_CONFIG / "examples").glob("*.yaml")), ids=lambda path: path.stem)
def test_an_example_is_valid_and_shows_no_secret(path: Path) -> None:
    result = command("check", str(path), env={key: f"sk-{key}" for key in _KEYS})
    assert (result.status, result.err) == (0, "") and "sk-" not in result.out


@pytest.mark.parametrize("name", ["README.md", "docs/configuration.md"])
def test_settings_that_the_documents_show_are_valid_and_sensible(name: str, tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    authority, client = str(certificates.ca), str(certificates.join_client())
    shown = re.findall(r"^ *```yaml\n(.*?)^ *```", (ROOT / name).read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert shown
    for text in shown:
        there = re.sub(r"/etc/ssl/[\w-]*ca\.pem", authority, textwrap.dedent(text))
        there = there.replace("/etc/ssl/client.pem", client)
        assert read_facts(tmp_path, there, dict.fromkeys(_KEYS, "k"))["warnings"] == []


# What a preset asks for. One gateway; a model has each of the presets, and any other name has `utilization`.

_RULES = "".join(f"  - {{match: 'toy-{name}', context: 16000, policy: {name}}}\n" for name in _PRESETS)
_POLICIES = "".join(f"  {name}: {{preset: {name}}}\n" for name in _PRESETS)
_OWN = "  own: {preset: rfc007, prompts: {instruction: 'Sum it up.', question: 'So?'}}\n"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house() -> AsyncIterator[House]:
    async with ToyUpstream(window=16_000) as toy:
        models = f"  - {{match: 'toy-own', context: 16000, policy: own}}\n{_RULES}"
        models += "  - {match: '*', policy: utilization}\n"
        settings = make_settings(toy, more=f"{ADMIN}policies:\n{_POLICIES}{_OWN}")
        head, _, tail = settings.partition("models:\n")
        async with serve(f"{head}models:\n{models}{tail}") as product:
            yield House(toy, product, "sk-presets")


async def ask_for_summary(house: House, model: str) -> Any:
    """The call that is made for a summary of a short conversation with this model."""
    house.toy.reset()
    session: Session = replace(make_session(6, 5, "many_users", 400), model=model)
    # As another tenant: the same conversation with another model would have its summary already.
    run = await replace(house, key=f"sk-{model}").play(session)
    status, _ = await house.admin(f"/v1/conversations/{run.conversation}/compact", "POST")
    assert status == 202
    await house.at_rest()
    return house.toy.requests[len(session)].request


def read_prompt(name: str, text: str) -> str:
    return (_CONFIG / "prompts" / name / f"{text}.txt").read_text("utf-8").strip()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("preset", "folder"), [("opencode", "opencode"), ("rfc007", "rfc007")])
async def test_a_preset_asks_in_the_words_of_its_document(house: House, preset: str, folder: str) -> None:
    call = await ask_for_summary(house, f"toy-{preset}")
    words = json.dumps(call["messages"])
    for path in (_CONFIG / "prompts" / folder).glob("*.txt"):
        if path.stem in ("system", "instruction"):
            assert json.dumps(read_prompt(folder, path.stem))[1:-1] in words


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.system(3)
async def test_a_prompt_that_is_written_takes_the_place_of_the_presets(house: House) -> None:
    call = await ask_for_summary(house, "toy-own")
    words = json.dumps(call["messages"])
    assert "Sum it up." in words
    assert json.dumps(read_prompt("rfc007", "system"))[1:-1] in words


@pytest.mark.asyncio(loop_scope="module")
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
async def test_utilization_summarizes_with_the_small_model_of_the_family(
    house: House, model: str, chosen: str
) -> None:
    assert (await ask_for_summary(house, model))["model"] == chosen


def test_the_default_prompts_have_headings_that_tell_a_summary_from_an_answer() -> None:
    headings = [
        line for line in read_prompt("adaptive", "instruction").splitlines() if line.startswith("## ")
    ]
    assert headings == [
        *("## Goal", "## Constraints and preferences", "## Decisions", "## Done", "## In progress"),
        *("## Open", "## Files", "## Commands", "## Next step"),
    ]
    ride = read_prompt("adaptive", "ride")
    assert ride.count("{kept}") == 1 and "Call no tools" in ride
    # Each of the blocks that a summary call may have is explained.
    for tag in ("earlier-summary", "conversation", "kept-messages"):
        assert f"- {tag}" in read_prompt("adaptive", "system")


# Compared without line ends and indents, because two documents wrap the prompts or show them as code.
_SOURCES = {
    "opencode": ("000_00524752e35cb23e.txt", ("system", "instruction", "question", "resume")),
    "opencode-spec": ("001_352f269b4dc4d795.txt", ("system",)),
    "recent": ("002_c17074b6339f0092.txt", ("system",)),
    "utilization": ("003_dca840532993a6fc.txt", ("instruction",)),
}


@pytest.mark.system(3)
@requires_shared
@pytest.mark.parametrize("name", _SOURCES)
def test_the_prompts_are_in_the_documents_word_for_word(name: str) -> None:
    source, texts = _SOURCES[name]
    document = " ".join((SHARED / "sources" / source).read_text("utf-8").split())
    folder = _CONFIG / "prompts" / name
    assert {path.stem for path in folder.glob("*.txt")} == set(texts)
    for text in texts:
        assert " ".join((folder / f"{text}.txt").read_text("utf-8").split()) in document


@requires_shared
def test_the_prompts_of_the_fifth_document_ask_for_what_it_lists() -> None:
    document = (SHARED / "sources" / "004_7e9a5fe4ad2ef376.txt").read_text("utf-8")
    points = [line for line in read_prompt("rfc007", "system").splitlines() if line.startswith("- ")]
    assert len(points) == 4
    assert all(point in document for point in points)
