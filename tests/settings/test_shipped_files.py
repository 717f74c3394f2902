"""The examples and prompts under `config`."""

import pytest

from gateway.settings import load_settings, render_summary
from gateway.settings.presets import find_config_folder
from tests.shared_data import SHARED, requires_shared

_CONFIG = find_config_folder()


@pytest.mark.parametrize("name", sorted(path.name for path in (_CONFIG / "examples").glob("*.yaml")))
def test_an_example_passes_its_check_and_shows_no_secret(name: str) -> None:
    env = {key: f"sk-{key}" for key in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "TEAM_A_KEY", "CI_KEY")}
    assert "sk-" not in render_summary(load_settings(_CONFIG / "examples" / name, env))


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
def test_the_prompts_of_004_ask_for_what_it_lists() -> None:
    document = (SHARED / "sources" / "004_7e9a5fe4ad2ef376.txt").read_text("utf-8")
    system = (_CONFIG / "prompts" / "rfc007" / "system.txt").read_text("utf-8")
    points = [line for line in system.splitlines() if line.startswith("- ")]
    assert len(points) == 4
    assert all(point in document for point in points)
