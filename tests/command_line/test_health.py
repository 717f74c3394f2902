"""`refold health`, beside a server that listens where the options say."""

import argparse
import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from socket import create_server

import pytest

from gateway.command_line.health import choose_loopback, find_ill_health
from gateway.command_line.options import parse_arguments
from gateway.settings import SettingsError
from tests.hostile.process import linux_only


@contextmanager
def responding(status: int) -> Iterator[int]:
    """The port of a server that responds to everything."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/healthz" else 404)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def parse(*arguments: str) -> argparse.Namespace:
    return parse_arguments(["health", *arguments])


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_gateway_that_responds_is_well(tmp_path: Path, host: str) -> None:
    config = tmp_path / "gateway.yaml"
    with responding(200) as port:
        config.write_text(f"listen: {{host: {host}, port: {port}}}\n")
        assert find_ill_health(parse("--config", str(config)), {}) is None
        assert find_ill_health(parse("--port", str(port)), {}) is None


def test_every_other_case_says_why() -> None:
    with responding(503) as port:
        assert "status 503" in (find_ill_health(parse("--port", str(port)), {}) or "")
    with closing(create_server(("127.0.0.1", 0))) as unused:
        port = unused.getsockname()[1]
    assert f"no response from 127.0.0.1 port {port}" in (
        find_ill_health(parse("--port", str(port)), {}) or ""
    )
    assert "only its log names" in (find_ill_health(parse("--port", "0"), {}) or "")


@linux_only
def test_the_options_of_a_process_are_followed(tmp_path: Path) -> None:
    """As in a container, where the options of process 1 are unknown to the health check."""
    with responding(200) as port:
        (tmp_path / "gateway.yaml").write_text(f"listen: {{port: {port}}}\n")
        # An init with the gateway's command line behind its own, in a folder of its own.
        code = "print(flush=True); input()"
        words = ["-c", code, "--", "gateway", "serve", "--host", "0.0.0.0", "--config", "gateway.yaml"]
        pipe = subprocess.PIPE
        with subprocess.Popen([sys.executable, *words], cwd=tmp_path, stdin=pipe, stdout=pipe) as init:
            # Until its line has come, its command line may be empty.
            assert init.stdout is not None and init.stdout.readline()
            assert find_ill_health(parse("--of-process", str(init.pid)), {}) is None
            init.communicate(b"\n")
    assert "cannot be read" in (find_ill_health(parse("--of-process", str(init.pid)), {}) or "")
    with pytest.raises(SettingsError, match="is not a `refold serve`"):
        find_ill_health(parse("--of-process", str(os.getpid())), {})


def test_all_addresses_are_asked_at_loopback() -> None:
    hosts = ["0.0.0.0", "::", "10.0.0.1", "gw.lan"]
    assert [choose_loopback(host) for host in hosts] == ["127.0.0.1", "::1", "10.0.0.1", "gw.lan"]
