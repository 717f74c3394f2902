"""Where an extra is not installed, what needs it names the command to type; the rest works."""

import subprocess
import sys
from pathlib import Path

import pytest

_WITHOUT_EXTRAS = """
import sys
EXTRAS = {"redis", "opentelemetry", "mcp", "sqlite_vec"}
class Without:
    def __init__(self, finder): self.finder = finder
    def __getattr__(self, name): return getattr(self.finder, name)
    def find_spec(self, name, *rest):
        return None if name.partition(".")[0] in EXTRAS else self.finder.find_spec(name, *rest)
sys.meta_path[:] = map(Without, sys.meta_path)
from gateway.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
_UPSTREAM = "admin: {port: 0}\nupstreams: {toy: {base_url: 'http://127.0.0.1:9/v1'}}\n"
_REDIS = _UPSTREAM + "store: redis://127.0.0.1:9/0\n"
_TRACES = _UPSTREAM + "traces: {endpoint: 'http://127.0.0.1:9'}\n"
_EMBEDDINGS = _UPSTREAM + "embeddings: {upstream: toy, model: m}\n"


def run(folder: Path, settings: str, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "gateway.yaml").write_text(settings)
    command = [sys.executable, "-c", _WITHOUT_EXTRAS, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=folder)


@pytest.mark.parametrize(
    ("settings", "extra"), [(_REDIS, "redis"), (_TRACES, "otel"), (_EMBEDDINGS, "embeddings")]
)
@pytest.mark.parametrize("command", ["check gateway.yaml", "serve --config gateway.yaml --port 0"])
def test_settings_that_need_an_extra_name_the_command_to_type(
    command: str, settings: str, extra: str, tmp_path: Path
) -> None:
    ended = run(tmp_path, settings, *command.split())
    assert ended.returncode in (1, 2)
    assert f"pip install 'refold[{extra}]'" in ended.stderr and "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("settings", "expected"), [(_UPSTREAM + "store: 'memory:'\n", "in memory"), (_REDIS, "'refold[redis]'")]
)
def test_the_doctor_works_without_extras(settings: str, expected: str, tmp_path: Path) -> None:
    ended = run(tmp_path, settings, "doctor", "--config", "gateway.yaml")
    assert expected in ended.stdout and "Traceback" not in ended.stderr
