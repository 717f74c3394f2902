"""The files under `deploy` fit the program's options and defaults, and the recipe of the container."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.surface.written import ROOT as _ROOT
from tests.surface.written import load_secrets, read_file_facts
from tests.toy.product import command

_DEFAULTS: Final[Mapping[str, Any]] = yaml.safe_load((_ROOT / "config/reference.yaml").read_text("utf-8"))
_MEMORY = "1536"


def assert_options(words: Sequence[str]) -> None:
    """The program understands them. The health check takes each option of `serve`."""
    assert words[0] == "serve"
    result = command("health", *words[1:])
    assert result.status == 1 or "cannot be read" in result.err, result.err


def find_option(words: Sequence[str], name: str) -> str:
    return words[list(words).index(name) + 1]


def _read(name: str) -> str:
    return (_ROOT / "deploy" / name).read_text("utf-8")


def _find(pattern: str, text: str) -> str:
    (found,) = re.findall(pattern, text, re.MULTILINE)
    assert isinstance(found, str)
    return found


def _longest_idle_seconds() -> float:
    return float(max(upstream["idle_seconds"] for upstream in _DEFAULTS["upstreams"].values()))


def test_the_unit_starts_reloads_and_ends_the_gateway() -> None:
    unit = _read("gateway.service")
    workers = _find(r"^Environment=WORKERS=(\d+)$", unit)
    program, *words = shlex.split(_find(r"^ExecStart=(.*)$", unit).replace("${WORKERS}", workers))
    assert_options(words)
    assert (Path(program).name, words[0], find_option(words, "--workers")) == ("refold", "serve", "1")
    assert _find(r"^ExecReload=(.*)$", unit) == "/bin/kill -HUP $MAINPID"
    assert float(_find(r"^TimeoutStopSec=(\d+)$", unit)) > _DEFAULTS["drain_seconds"]
    assert int(_find(r"^LimitNOFILE=(\d+)$", unit)) > 2 * _DEFAULTS["bounds"]["connections"]
    assert _find(r"^MemoryMax=(\d+)M$", unit) == _MEMORY


def _read_services(name: str) -> dict[str, Any]:
    services = yaml.safe_load(_read(name))["services"]
    assert isinstance(services, dict)
    return services


def _find_config(more: Sequence[str]) -> str:
    """The settings file of a container with these further words."""
    dockerfile = (_ROOT / "Dockerfile").read_text("utf-8")
    program, *words = json.loads(_find(r"^ENTRYPOINT (.*)$", dockerfile))
    assert program == "refold"
    assert_options([*words, *more])
    return find_option(more, "--config")


def test_the_compose_file_of_one_gateway_fits_the_container() -> None:
    service = _read_services("compose.single.yaml")["gateway"]
    dockerfile = (_ROOT / "Dockerfile").read_text("utf-8")
    mounts = [mount.split(":") for mount in service["volumes"]]
    assert _find_config(service["command"]) in [place for _, place, *_ in mounts]
    assert _find(r"^VOLUME (.*)$", dockerfile) in [place for _, place, *_ in mounts]
    ports = [port.rpartition(":")[2] for port in service["ports"]]
    assert _find(r"^EXPOSE (.*)$", dockerfile).split() == ports
    assert float(service["stop_grace_period"].removesuffix("s")) > _DEFAULTS["drain_seconds"]
    assert service["mem_limit"] == f"{_MEMORY}m"


def test_one_gateway_opens_the_admin_port_inside_its_container_only_with_a_token(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("")
    environment = _read_services("compose.single.yaml")["gateway"]["environment"]
    assert "?" in environment["GATEWAY_ADMIN_TOKEN"]
    facts = read_file_facts(tmp_path / "empty.yaml", {**environment, "GATEWAY_ADMIN_TOKEN": "chosen"})
    assert facts["admin"] == {"host": "0.0.0.0", "port": 8081, "has_token": True}


def test_two_gateways_get_their_settings_secrets_and_time_to_end(tmp_path: Path) -> None:
    document = yaml.safe_load(_read("compose.yaml"))
    services = document["services"]
    gateways = [service for name, service in services.items() if name.startswith("gateway")]
    assert len(gateways) == 2 and gateways[0] == gateways[1]
    gateway = gateways[0]
    (mount,) = gateway["volumes"]
    source, place, access = mount.split(":")
    config = Path(_find_config(gateway["command"]))
    assert (config.parent, access) == (Path(place), "ro")
    file = _ROOT / "deploy" / source / config.name
    path, names = load_secrets(file, "/run/secrets", tmp_path)
    assert names == set(gateway["secrets"])
    assert read_file_facts(path)["store"].startswith("redis://valkey:") and "valkey" in services
    written = yaml.safe_load(file.read_text("utf-8"))
    assert "${file:/run/secrets/valkey_password}@valkey" in written["store"]
    drain_seconds = written.get("drain_seconds", _DEFAULTS["drain_seconds"])
    assert float(gateway["stop_grace_period"].removesuffix("s")) > drain_seconds
    assert gateway["mem_limit"] == f"{_MEMORY}m"
    assert all(set(service.get("secrets", ())) <= document["secrets"].keys() for service in services.values())


def test_only_the_balancer_is_reachable_from_outside_and_valkey_has_no_way_out(tmp_path: Path) -> None:
    document = yaml.safe_load(_read("compose.yaml"))
    services = document["services"]
    published = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert published == {"nginx": ["127.0.0.1:8080:8080"]}
    assert services["valkey"]["networks"] == ["back"] and document["networks"]["back"]["internal"] is True
    path, _ = load_secrets(_ROOT / "deploy/compose/settings/gateway.yaml", "/run/secrets", tmp_path)
    assert read_file_facts(path)["admin"]["has_token"]
    for service in services.values():
        assert (service["cap_drop"], service["read_only"]) == (["ALL"], True)
        assert "mem_limit" in service


def test_the_balancer_knows_the_gateways_and_sends_nothing_twice(tmp_path: Path) -> None:
    text = _read("compose/nginx.conf")
    path, _ = load_secrets(_ROOT / "deploy/compose/settings/gateway.yaml", "/run/secrets", tmp_path)
    servers = re.findall(r"^\s+server (\S+):(\d+) ", text, re.MULTILINE)
    names = [name for name in _read_services("compose.yaml") if name.startswith("gateway")]
    assert servers == [(name, str(read_file_facts(path)["listen"]["port"])) for name in names]
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
    assert int(_find(size, text)) << 20 == _DEFAULTS["listen"]["max_body_bytes"]
    found = re.findall(timeouts, text)
    assert found
    assert all(float(seconds) > _longest_idle_seconds() for seconds in found)


@pytest.mark.parametrize("name", ["nginx.conf", "Caddyfile"])
def test_a_proxy_on_the_same_machine_finds_the_gateway(name: str) -> None:
    assert f"127.0.0.1:{_DEFAULTS['listen']['port']}" in _read(name)


# The recipe of the container.


def _read_dockerfile() -> dict[str, list[str]]:
    """What stands behind each instruction, in the order of the file."""
    text = (_ROOT / "Dockerfile").read_text("utf-8")
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
    assert_options(words)
    assert (program, find_option(words, "--host")) == ("refold", "0.0.0.0")
    assert dockerfile["STOPSIGNAL"] == ["SIGTERM"]
    (user,) = dockerfile["USER"]
    assert all(part.isdigit() and int(part) > 0 for part in user.split(":"))
    # The volume belongs to that user, and the default store lies in it.
    owner, group = user.split(":")
    assert any(f"--owner={owner} --group={group}" in run for run in dockerfile["RUN"])
    assert dockerfile["VOLUME"] == [dockerfile["WORKDIR"][-1]]
    assert dockerfile["EXPOSE"] == [f"{_DEFAULTS['listen']['port']} {_DEFAULTS['admin']['port']}"]


def test_the_health_check_of_the_container_follows_the_options_of_process_1() -> None:
    (check,) = _read_dockerfile()["HEALTHCHECK"]
    assert json.loads(check.partition("CMD ")[2]) == ["refold", "health", "--of-process", "1"]
    result = command("health", "--of-process", "1")
    assert result.status in (1, 2) and "process 1" in result.err
