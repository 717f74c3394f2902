"""Settings as a person writes them, and what the commands say of them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.toy.product import Result, command

# Three beginnings of a settings file; each is a whole number of lines.
KEYED = "upstreams:\n  default:\n    base_url: https://x.example/v1\n    api_key: sk-up\n"
PLAIN = "upstreams:\n  default: {base_url: 'https://x.example/v1'}\n"
TENANT = "tenants:\n  - name: a\n    keys: [k1]\n"
ROOT = Path(__file__).resolve().parents[2]
# What no message may repeat of a file.
SECRET = "hunter2"


def write(folder: Path, text: str) -> str:
    """The path of the settings file."""
    path = folder / "f.yaml"
    path.write_text(text, "utf-8")
    return str(path)


def check(folder: Path, text: str, *words: str, env: Mapping[str, str] | None = None) -> Result:
    return command("check", write(folder, text), *words, env=env)


def read_facts(folder: Path, text: str, env: Mapping[str, str] | None = None) -> Any:
    """What a valid file means, for programs."""
    return read_file_facts(write(folder, text), env)


def read_file_facts(path: Path | str, env: Mapping[str, str] | None = None) -> Any:
    result = command("check", str(path), "--json", env=env)
    assert result.status == 0, result.err
    return json.loads(result.out)


def read_model(folder: Path, text: str, name: str) -> Any:
    """What is known about a model at the first upstream."""
    result = command("models", name, "--config", write(folder, text), "--json")
    assert result.status in (0, 1), result.err
    return json.loads(result.out)["upstreams"][0]


def assert_refused(folder: Path, text: str, line: int, expected: str) -> None:
    """The mistake is told with its line and in these words, and no value is shown."""
    result = check(folder, text)
    assert (result.status, result.out) == (2, "")
    assert any(f"f.yaml:{line}: " in each and expected in each for each in result.err.splitlines()), (
        result.err
    )
    assert SECRET not in result.err


def load_secrets(settings: Path, mounted: str, folder: Path) -> tuple[str, set[str]]:
    """A copy of a settings file whose secrets lie in `folder`, and the names of these.

    Each is `secret-` and its name.
    """
    text = settings.read_text("utf-8")
    names = {part.partition("}")[0] for part in text.split(f"${{file:{mounted}/")[1:]}
    assert names and text.count("${file:") == text.count(f"${{file:{mounted}/")
    for name in names:
        (folder / name).write_text(f"secret-{name}\n")
    copy = folder / "gateway.yaml"
    copy.write_text(text.replace(mounted, str(folder)), "utf-8")
    return str(copy), names
