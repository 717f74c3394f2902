"""The files under `deploy` fit the program's options and defaults, and the recipe of the container."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from gateway.command_line.options import load_chosen_settings, parse_arguments
from gateway.settings import load_settings

_ROOT = Path(__file__).resolve().parents[1]
_DEFAULTS = load_settings(None, {})
_MEMORY = "1536"


def _read(name: str) -> str:
    return (_ROOT / "deploy" / name).read_text("utf-8")


def _find(pattern: str, text: str) -> str:
    (found,) = re.findall(pattern, text, re.MULTILINE)
    assert isinstance(found, str)
    return found


def _longest_idle_seconds() -> float:
    return max(upstream.idle_seconds for upstream in _DEFAULTS.upstreams.values())


def test_the_unit_starts_and_ends_the_gateway() -> None:
    unit = _read("gateway.service")
    program, *words = shlex.split(_find(r"^ExecStart=(.*)$", unit))
    assert Path(program).name == "gateway"
    assert parse_arguments(words).command == "serve"
    assert float(_find(r"^TimeoutStopSec=(\d+)$", unit)) > _DEFAULTS.drain_seconds
    assert int(_find(r"^LimitNOFILE=(\d+)$", unit)) > 2 * _DEFAULTS.bounds.connections
    assert _find(r"^MemoryMax=(\d+)M$", unit) == _MEMORY


def test_the_compose_file_fits_the_container() -> None:
    service = yaml.safe_load(_read("compose.yaml"))["services"]["gateway"]
    dockerfile = (_ROOT / "Dockerfile").read_text("utf-8")
    program, *words = json.loads(_find(r"^ENTRYPOINT (.*)$", dockerfile))
    options = parse_arguments([*words, *service["command"]])
    mounts = [mount.split(":") for mount in service["volumes"]]
    assert program == "gateway"
    assert options.config in [place for _, place, *_ in mounts]
    assert _find(r"^VOLUME (.*)$", dockerfile) in [place for _, place, *_ in mounts]
    ports = [port.rpartition(":")[2] for port in service["ports"]]
    assert _find(r"^EXPOSE (.*)$", dockerfile).split() == ports
    assert float(service["stop_grace_period"].removesuffix("s")) > _DEFAULTS.drain_seconds
    assert service["mem_limit"] == f"{_MEMORY}m"


def test_the_compose_file_opens_the_admin_port_inside_its_container_only_with_a_token() -> None:
    environment = yaml.safe_load(_read("compose.yaml"))["services"]["gateway"]["environment"]
    assert "?" in environment["GATEWAY_ADMIN_TOKEN"]
    options = parse_arguments(["serve"])
    settings = load_chosen_settings(options, {**environment, "GATEWAY_ADMIN_TOKEN": "chosen"})
    assert settings.admin.host == "0.0.0.0"


@pytest.mark.parametrize(
    ("name", "size", "timeouts"),
    [
        ("nginx.conf", r"client_max_body_size (\d+)m;", r"_timeout (\d+)s;"),
        ("Caddyfile", r"max_size (\d+)MiB", r"_timeout (\d+)s"),
    ],
)
def test_a_proxy_lets_the_gateway_answer_first(name: str, size: str, timeouts: str) -> None:
    text = _read(name)
    assert int(_find(size, text)) << 20 == _DEFAULTS.listen.max_body_bytes
    found = re.findall(timeouts, text)
    assert found
    assert all(float(seconds) > _longest_idle_seconds() for seconds in found)
    assert f"127.0.0.1:{_DEFAULTS.listen.port}" in text
