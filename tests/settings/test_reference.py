"""The generated reference of all settings."""

from pathlib import Path

from gateway.settings import load_settings
from gateway.settings.presets import find_config_folder
from gateway.settings.reference import render_reference

_CONFIG = find_config_folder()


def test_the_reference_is_up_to_date() -> None:
    """`python -m gateway.settings.reference` updates it."""
    assert (_CONFIG / "reference.yaml").read_text(encoding="utf-8") == render_reference()


def test_the_reference_contains_the_defaults() -> None:
    assert load_settings(_CONFIG / "reference.yaml", {}) == load_settings(None, {})


def test_the_commented_examples_of_the_reference_load(tmp_path: Path) -> None:
    text = render_reference()
    for name in ("models", "tenants"):
        before, _, after = text.partition(f"{name}: []\n")
        text = f"{before}{name}:\n" + after.replace("\n#  ", "\n   ").replace("#  ", "   ", 1)
    path = tmp_path / "reference.yaml"
    path.write_text(text, encoding="utf-8")
    settings = load_settings(path, {"TEAM_A_KEY": "k"})
    assert (settings.models[0].match, settings.tenants[0].name) == ("gpt-4o*", "team-a")
    price = settings.models[0].price
    assert price is not None and price.cached == 1.25
