"""The libraries are an extra: nothing needs them while traces are off, and a missing one is named."""

import subprocess
import sys
from pathlib import Path

_BLOCK = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
from gateway.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def run(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_gateway_without_traces_loads_none_of_them() -> None:
    ended = run("import gateway.app, sys; print([name for name in sys.modules if 'opentelemetry' in name])")
    assert (ended.returncode, ended.stdout) == (0, "[]\n"), ended.stderr


def test_settings_that_need_them_say_how_to_get_them(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("drain_seconds: 8\ntraces: {endpoint: 'http://127.0.0.1:4318'}\n")
    ended = run(_BLOCK, "check", str(file))
    assert ended.returncode == 2
    assert f"{file}:2: traces.endpoint: needs the libraries of OpenTelemetry" in ended.stderr
    assert "pip install 'refold[otel]'" in ended.stderr
    file.write_text("drain_seconds: 8\n")
    assert run(_BLOCK, "check", str(file)).returncode == 0
