"""The examples and prompts under `config`, and the recipe of the container."""

import json
from pathlib import Path

import pytest

from gateway.command_line.options import load_chosen_settings, parse_arguments
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


def _read_dockerfile() -> dict[str, list[str]]:
    """What stands behind each instruction, in the order of the file."""
    text = (Path(__file__).resolve().parents[2] / "Dockerfile").read_text("utf-8")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    found: dict[str, list[str]] = {}
    for instruction in "\n".join(lines).replace("\\\n", " ").splitlines():
        name, _, rest = instruction.partition(" ")
        found.setdefault(name, []).append(" ".join(rest.split()))
    return found


def test_the_container_gets_its_signals_and_does_not_run_as_root() -> None:
    dockerfile = _read_dockerfile()
    # In exec form, because a shell as process 1 would keep the signal for itself.
    (entrypoint,) = dockerfile["ENTRYPOINT"]
    program, *words = json.loads(entrypoint)
    settings = load_chosen_settings(parse_arguments(words), {})
    assert (program, settings.listen.host) == ("refold", "0.0.0.0")
    assert dockerfile["STOPSIGNAL"] == ["SIGTERM"]
    (user,) = dockerfile["USER"]
    assert all(part.isdigit() and int(part) > 0 for part in user.split(":"))
    # The volume belongs to that user, and the default store lies in it.
    owner, group = user.split(":")
    assert any(f"--owner={owner} --group={group}" in run for run in dockerfile["RUN"])
    assert dockerfile["VOLUME"] == [dockerfile["WORKDIR"][-1]]
    assert dockerfile["EXPOSE"] == [f"{settings.listen.port} {settings.admin.port}"]


def test_the_health_check_of_the_container_follows_the_options_of_process_1() -> None:
    (check,) = _read_dockerfile()["HEALTHCHECK"]
    program, *words = json.loads(check.partition("CMD ")[2])
    options = parse_arguments(words)
    assert (program, options.command, options.of_process) == ("refold", "health", 1)


def test_the_admin_port_of_a_container_is_reachable_when_asked_for() -> None:
    env = {"GATEWAY_ADMIN_HOST": "0.0.0.0", "GATEWAY_ADMIN_TOKEN": "secret"}
    assert load_settings(None, env).admin.host == "0.0.0.0"
