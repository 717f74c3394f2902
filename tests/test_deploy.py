"""The files under `deploy` fit the program's options and defaults, and the recipe of the container."""

import argparse
import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from gateway.command_line.options import load_chosen_settings, parse_arguments
from gateway.settings import load_settings
from tests.builders.settings import load_with_secrets

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


def test_the_unit_starts_reloads_and_ends_the_gateway() -> None:
    unit = _read("gateway.service")
    workers = _find(r"^Environment=WORKERS=(\d+)$", unit)
    program, *words = shlex.split(_find(r"^ExecStart=(.*)$", unit).replace("${WORKERS}", workers))
    options = parse_arguments(words)
    assert (Path(program).name, options.command, options.workers) == ("refold", "serve", 1)
    assert _find(r"^ExecReload=(.*)$", unit) == "/bin/kill -HUP $MAINPID"
    assert float(_find(r"^TimeoutStopSec=(\d+)$", unit)) > _DEFAULTS.drain_seconds
    assert int(_find(r"^LimitNOFILE=(\d+)$", unit)) > 2 * _DEFAULTS.bounds.connections
    assert _find(r"^MemoryMax=(\d+)M$", unit) == _MEMORY


def _read_services(name: str) -> dict[str, Any]:
    services = yaml.safe_load(_read(name))["services"]
    assert isinstance(services, dict)
    return services


def _parse_container_options(command: Sequence[str]) -> argparse.Namespace:
    dockerfile = (_ROOT / "Dockerfile").read_text("utf-8")
    program, *words = json.loads(_find(r"^ENTRYPOINT (.*)$", dockerfile))
    assert program == "refold"
    return parse_arguments([*words, *command])


def test_the_compose_file_of_one_gateway_fits_the_container() -> None:
    service = _read_services("compose.single.yaml")["gateway"]
    dockerfile = (_ROOT / "Dockerfile").read_text("utf-8")
    mounts = [mount.split(":") for mount in service["volumes"]]
    assert _parse_container_options(service["command"]).config in [place for _, place, *_ in mounts]
    assert _find(r"^VOLUME (.*)$", dockerfile) in [place for _, place, *_ in mounts]
    ports = [port.rpartition(":")[2] for port in service["ports"]]
    assert _find(r"^EXPOSE (.*)$", dockerfile).split() == ports
    assert float(service["stop_grace_period"].removesuffix("s")) > _DEFAULTS.drain_seconds
    assert service["mem_limit"] == f"{_MEMORY}m"


def test_one_gateway_opens_the_admin_port_inside_its_container_only_with_a_token() -> None:
    environment = _read_services("compose.single.yaml")["gateway"]["environment"]
    assert "?" in environment["GATEWAY_ADMIN_TOKEN"]
    options = parse_arguments(["serve"])
    settings = load_chosen_settings(options, {**environment, "GATEWAY_ADMIN_TOKEN": "chosen"})
    assert settings.admin.host == "0.0.0.0"


def test_two_gateways_get_their_settings_secrets_and_time_to_end(tmp_path: Path) -> None:
    document = yaml.safe_load(_read("compose.yaml"))
    services = document["services"]
    gateways = [service for name, service in services.items() if name.startswith("gateway")]
    assert len(gateways) == 2 and gateways[0] == gateways[1]
    gateway = gateways[0]
    (mount,) = gateway["volumes"]
    source, place, access = mount.split(":")
    options = _parse_container_options(gateway["command"])
    assert (Path(options.config).parent, access) == (Path(place), "ro")
    file = _ROOT / "deploy" / source / Path(options.config).name
    settings, names = load_with_secrets(file, "/run/secrets", tmp_path)
    assert names == set(gateway["secrets"])
    assert urlsplit(settings.store).hostname == "valkey" and "valkey" in services
    assert urlsplit(settings.store).password == "secret-valkey_password"
    assert float(gateway["stop_grace_period"].removesuffix("s")) > settings.drain_seconds
    assert gateway["mem_limit"] == f"{_MEMORY}m"
    assert all(set(service.get("secrets", ())) <= document["secrets"].keys() for service in services.values())


def test_only_the_balancer_is_reachable_from_outside_and_valkey_has_no_way_out(tmp_path: Path) -> None:
    document = yaml.safe_load(_read("compose.yaml"))
    services = document["services"]
    published = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert published == {"nginx": ["127.0.0.1:8080:8080"]}
    assert services["valkey"]["networks"] == ["back"] and document["networks"]["back"]["internal"] is True
    settings, _ = load_with_secrets(_ROOT / "deploy/compose/settings/gateway.yaml", "/run/secrets", tmp_path)
    assert settings.admin.token is not None
    for service in services.values():
        assert (service["cap_drop"], service["read_only"]) == (["ALL"], True)
        assert "mem_limit" in service


def test_the_balancer_knows_the_gateways_and_sends_nothing_twice(tmp_path: Path) -> None:
    text = _read("compose/nginx.conf")
    settings, _ = load_with_secrets(_ROOT / "deploy/compose/settings/gateway.yaml", "/run/secrets", tmp_path)
    servers = re.findall(r"^\s+server (\S+):(\d+) ", text, re.MULTILINE)
    names = [name for name in _read_services("compose.yaml") if name.startswith("gateway")]
    assert servers == [(name, str(settings.listen.port)) for name in names]
    # Of a POST nginx sends nothing again unless `non_idempotent` is there.
    assert _find(r"proxy_next_upstream (.*);", text).split() == ["error", "timeout"]
    assert _find(r"proxy_buffering (\w+);", text) == "off"


@pytest.mark.parametrize(
    ("name", "size", "timeouts"),
    [
        ("nginx.conf", r"client_max_body_size (\d+)m;", r"_(?:read|send)_timeout (\d+)s;"),
        ("compose/nginx.conf", r"client_max_body_size (\d+)m;", r"_(?:read|send)_timeout (\d+)s;"),
        ("Caddyfile", r"max_size (\d+)MiB", r"_timeout (\d+)s"),
    ],
)
def test_a_proxy_lets_the_gateway_answer_first(name: str, size: str, timeouts: str) -> None:
    text = _read(name)
    assert int(_find(size, text)) << 20 == _DEFAULTS.listen.max_body_bytes
    found = re.findall(timeouts, text)
    assert found
    assert all(float(seconds) > _longest_idle_seconds() for seconds in found)


@pytest.mark.parametrize("name", ["nginx.conf", "Caddyfile"])
def test_a_proxy_on_the_same_machine_finds_the_gateway(name: str) -> None:
    assert f"127.0.0.1:{_DEFAULTS.listen.port}" in _read(name)
