"""Each settings key changes something that a client, an upstream or an operator sees.

`tests/tables/settings.yaml` says for each what, and in which scene.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.toy.product import command
from tests.toy.scenes import Shown, show

TABLE: dict[str, dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parents[1] / "tables" / "settings.yaml").read_text("utf-8")
)
# They save work or memory. Nobody sees more of them than their effect on the size of the process.
UNSEEN = {"cache.facts_bytes", "cache.sessions_bytes"}
# Plays with the same settings are played once.
_usual: dict[str, Shown] = {}


# What the admin port tells. A session whose row wants nothing of it is not asked.
_OPERATOR = {"rows", "originals", "summaries page", "summary page", "soft", "spent", "store", "files"}


def _read(row: Mapping[str, Any]) -> tuple[str, dict[str, Any], dict[str, Any]]:
    play = dict(row.get("play", {}))
    if "scene" not in row:
        play["operator"] = row["shows"] in _OPERATOR
    return row.get("scene", "session"), row.get("given", {}), play


async def show_usual(row: Mapping[str, Any]) -> Shown:
    name = json.dumps(_read(row))
    if name not in _usual:
        _usual[name] = await show(*_read(row))
    return _usual[name]


@pytest.mark.parametrize("key", TABLE)
async def test_a_key_changes_something_that_can_be_seen(key: str) -> None:
    row = TABLE[key]
    scene, given, play = _read(row)
    changed = await show(scene, given | {key: row["value"]}, play)
    assert changed[row["shows"]] != (await show_usual(row))[row["shows"]]


_PLAIN = {json.dumps(_read(row)): row for row in TABLE.values() if "given" not in row}


@pytest.mark.exhaustive
@pytest.mark.parametrize("row", _PLAIN.values(), ids=_PLAIN)
async def test_a_scene_shows_the_same_twice(row: dict[str, Any]) -> None:
    """Else a difference would prove nothing."""
    shows = {other["shows"] for other in TABLE.values() if _read(other) == _read(row)}
    before, again = await show_usual(row), await show(*_read(row))
    assert {name: again[name] for name in shows} == {name: before[name] for name in shows}


async def test_state_stays_for_as_many_days_as_the_settings_say() -> None:
    """Here for 17 seconds."""
    kept = await show("again", {"retention.days": 0.0002}, {"pause": 1.2})
    assert kept["count"] == (await show_usual(TABLE["retention.days"]))["count"]


def test_the_table_has_every_key() -> None:
    schema = json.loads(command("schema").out)
    assert TABLE.keys() | UNSEEN == set(_list_keys(schema, schema))


def _list_keys(schema: Mapping[str, Any], node: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Of a JSON schema: paths of what has no keys of its own."""
    node = _resolve(schema, node)
    for name, inner in node.get("properties", {}).items():
        yield from _list_keys(schema, inner, f"{path}.{name}" if path else name)
    if node.get("properties"):
        return
    for choice in (node, *node.get("anyOf", ())):
        choice = _resolve(schema, choice)
        found = _list_contained(schema, choice, path)
        if len(found) > 1 or choice.get("properties"):
            yield from found
            return
    yield path


def _list_contained(schema: Mapping[str, Any], choice: Mapping[str, Any], path: str) -> list[str]:
    if choice.get("properties"):
        return [*_list_keys(schema, choice, path)]
    if isinstance(choice.get("items"), dict):
        return [*_list_keys(schema, choice["items"], f"{path}.0")]
    if isinstance(choice.get("additionalProperties"), dict):
        return [*_list_keys(schema, choice["additionalProperties"], f"{path}.default")]
    return []


def _resolve(schema: Mapping[str, Any], node: Mapping[str, Any]) -> Mapping[str, Any]:
    while "$ref" in node:
        node = schema["definitions"][node["$ref"].rpartition("/")[2]]
    return node
