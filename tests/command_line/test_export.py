"""`refold export`."""

import asyncio
import stat
from pathlib import Path

import msgspec
import pytest

from gateway.command_line.export import run_export
from gateway.command_line.options import parse_arguments
from tests.builders.rows import row as make
from tests.toy.admin_api import ToyAdminPort, serving_admin_port

_LINES = {"type": "gateway.export", "version": 1}
_ID = "3f2a91c05d7e4b68"


def _know(toy: ToyAdminPort) -> None:
    toy.answer("GET", "/conversations", {"conversations": [msgspec.to_builtins(make(_ID, 0))], "next": None})
    toy.answer("GET", f"/conversations/{_ID}/export", _LINES)


async def _run(folder: Path, config: str, *arguments: str) -> int:
    options = parse_arguments(["export", "3f2a", "--config", config, *arguments])
    return await asyncio.to_thread(run_export, options, {})


async def test_of_an_id_with_this_beginning_a_file_is_written_for_its_owner_and_never_replaced(
    tmp_path: Path,
) -> None:
    async with serving_admin_port() as toy:
        _know(toy)
        path, config = tmp_path / "session.ndjson", toy.write_settings(tmp_path)
        assert await _run(tmp_path, config, "--output", str(path)) == 0
        assert b"gateway.export" in path.read_bytes()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with pytest.raises(FileExistsError):
            await _run(tmp_path, config, "--output", str(path))


async def test_without_a_file_it_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with serving_admin_port() as toy:
        _know(toy)
        assert await _run(tmp_path, toy.write_settings(tmp_path)) == 0
    assert "gateway.export" in capsys.readouterr().out


async def test_what_the_gateway_refuses_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with serving_admin_port() as toy:
        assert await _run(tmp_path, toy.write_settings(tmp_path)) == 1
    assert "gateway: " in capsys.readouterr().err
