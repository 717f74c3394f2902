"""A changed settings file is noticed by a process that watches it, and by one that gets SIGHUP."""

import signal
from pathlib import Path

import pytest

from tests.toy.product import serve_process
from tests.toy.running import wait_until

_SECRET = "upstreams: {a: {base_url: 'http://127.0.0.1:1/v1', discover: false, api_key: '${file:secret}'}}\n"


def _swap_link(folder: Path, text: str) -> None:
    """As Kubernetes does with a mounted config map."""
    newest = folder / f"..{len(list(folder.iterdir()))}"
    newest.mkdir()
    (newest / "gateway.yaml").write_text(text)
    (folder / "..tmp").symlink_to(newest.name)
    (folder / "..tmp").rename(folder / "..data")


@pytest.mark.timeout(200)
async def test_a_process_notices_a_file_however_it_is_replaced(tmp_path: Path) -> None:
    """Written in place, renamed over, with an error, of a secret beside it, and gone for a while."""
    text = 'store: "memory:"\nadmin: {port: 0}\n' + _SECRET
    (tmp_path / "secret").write_text("sk-1")
    path = tmp_path / "gateway.yaml"
    async with serve_process(text, tmp_path, "--watch") as process:

        def count(words: str) -> int:
            return process.log.count(words)

        path.write_text(text + "drain_seconds: 1\n")
        await wait_until(lambda: count("settings reloaded: drain_seconds") == 1)
        (tmp_path / "new").write_text(text + "drain_seconds: 2\n")
        (tmp_path / "new").rename(path)
        await wait_until(lambda: count("settings reloaded: drain_seconds") == 2)
        path.write_text(text + "drain_seconds: 2\ndrain_secondz: 3\n")
        await wait_until(lambda: count("gateway.yaml:5: unknown key 'drain_secondz'") == 1)
        assert count("the earlier ones stay") == 1
        path.unlink()
        await wait_until(lambda: count("the earlier ones stay") == 2)
        path.write_text(text + "drain_seconds: 2\n")
        await wait_until(lambda: count("settings reloaded: nothing has changed") == 1)
        (tmp_path / "secret").write_text("sk-2")
        await wait_until(lambda: count("settings reloaded: upstreams") == 1)
        assert "sk-2" not in process.log


@pytest.mark.timeout(200)
async def test_a_process_notices_a_mounted_config_map(tmp_path: Path) -> None:
    text = 'store: "memory:"\nadmin: {port: 0}\n'
    _swap_link(tmp_path, text)
    (tmp_path / "gateway.yaml").symlink_to("..data/gateway.yaml")
    async with serve_process(None, tmp_path, "--config", "gateway.yaml", "--watch") as process:
        _swap_link(tmp_path, text + "drain_seconds: 1\n")
        await wait_until(lambda: "settings reloaded: drain_seconds" in process.log)
        process.send(signal.SIGHUP)
        await wait_until(lambda: "settings reloaded: nothing has changed" in process.log)
