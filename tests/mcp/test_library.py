"""The package comes with the first request, once, and its absence is told."""

import asyncio
import json
import sys
import threading
from pathlib import Path

import pytest

from gateway.core.errors import RequestRefused
from gateway.mcp.library import PROTOCOL, McpLibrary

_WITHOUT = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == "mcp" or name.startswith(("mcp.", "mcp_types")):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
import asyncio, json
import gateway.app
assert "starlette" not in sys.modules and "{PROTOCOL}" not in sys.modules
from gateway.core.errors import RequestRefused
from gateway.mcp.library import McpLibrary
async def load():
    library = McpLibrary()
    for _ in range(2):
        try:
            await library.load()
        except RequestRefused as error:
            print(json.dumps([error.status, str(error), error.code]))
asyncio.run(load())
"""


_ROOT = Path(__file__).resolve().parents[2]


async def run_python(program: str) -> tuple[str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        program,
        cwd=_ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return output.decode(), errors.decode()


async def test_without_the_extra_every_request_is_told_its_name_and_the_log_once() -> None:
    output, errors = await run_python(_WITHOUT)
    (first, second) = map(json.loads, output.splitlines())
    assert first == second
    status, text, code = first
    assert (status, code) == (501, "mcp_not_installed")
    assert "pip install 'refold[mcp]'" in text and "mcp: false" in text
    assert errors.count("requests to /mcp get 501: mcp is missing") == 1


async def test_requests_that_come_together_wait_for_one_import() -> None:
    library = McpLibrary()
    first = asyncio.create_task(library.load())
    others = [asyncio.create_task(library.load()) for _ in range(50)]
    await asyncio.sleep(0)
    first.cancel()
    loaded = await asyncio.gather(*others)
    assert first.cancelled()
    assert len(set(map(id, loaded))) == 1
    assert sys.modules[PROTOCOL].respond is loaded[0]


async def test_a_module_that_is_not_there_is_refused() -> None:
    with pytest.raises(RequestRefused) as caught:
        await McpLibrary("gateway.mcp.missing").load()
    assert caught.value.status == 501


async def test_the_import_runs_in_another_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ("import threading", "THREAD = threading.get_ident()", "quiet = list", "respond = print")
    (tmp_path / "toy_protocol.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    await McpLibrary("toy_protocol").load()
    assert threading.get_ident() != sys.modules.pop("toy_protocol").THREAD
