"""The manifests under `deploy/kubernetes` fit each other, the image, the settings and the program's paths."""

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
import yaml

from tests.surface.test_deploy import assert_options, find_option
from tests.surface.written import ROOT, load_secrets, read_file_facts
from tests.toy.house import make_settings
from tests.toy.product import serve
from tests.toy.upstream import ToyUpstream

Manifest = Mapping[str, Any]

_FOLDER = ROOT / "deploy" / "kubernetes"
_KUSTOMIZATION = "kustomization.yaml"
_SETTINGS = sorted(_FOLDER.rglob("gateway.yaml"))
_SECONDS_TO_WRITE = 10


def _read_all(path: Path) -> list[Manifest]:
    return list(yaml.safe_load_all(path.read_text("utf-8")))


def _list_manifests() -> Iterator[Manifest]:
    for path in sorted(_FOLDER.rglob("*.yaml")):
        if path.name != _KUSTOMIZATION and path not in _SETTINGS:
            yield from _read_all(path)


def _find(kind: str, name: str) -> Any:
    (found,) = [
        each for each in _list_manifests() if (each["kind"], each["metadata"]["name"]) == (kind, name)
    ]
    return found


def _name(path: Path) -> str:
    return path.relative_to(_FOLDER).as_posix()


def _pods(workload: Any) -> Any:
    return workload["spec"]["template"]


def _gateway() -> Any:
    (container,) = _pods(_find("Deployment", "gateway"))["spec"]["containers"]
    return container


@pytest.mark.parametrize("path", sorted(_FOLDER.rglob(_KUSTOMIZATION)), ids=_name)
def test_what_a_kustomization_names_exists(path: Path) -> None:
    (kustomization,) = _read_all(path)
    named = [*kustomization["resources"], *kustomization.get("components", ())]
    generated = [file for each in kustomization.get("configMapGenerator", ()) for file in each["files"]]
    assert named or generated
    assert [each for each in (*named, *generated) if not (path.parent / each).exists()] == []
    # Every manifest beside it is listed.
    beside = {each.name for each in path.parent.glob("*.yaml")} - {_KUSTOMIZATION}
    assert beside == {each for each in (*named, *generated) if each.endswith(".yaml")}


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl renders the overlay")
def test_the_overlay_renders_to_all_manifests_with_its_own_image_and_settings() -> None:
    overlay = _FOLDER / "overlays" / "example"
    done = subprocess.run(
        ["kubectl", "kustomize", str(overlay)], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stderr
    rendered = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(done.stdout)}
    written = {(each["kind"], each["metadata"]["name"]) for each in _list_manifests()}
    assert rendered.keys() == written | {("ConfigMap", "gateway-settings")}
    settings = rendered["ConfigMap", "gateway-settings"]["data"]["gateway.yaml"]
    assert settings == (overlay / "gateway.yaml").read_text("utf-8")
    (container,) = _pods(rendered["Deployment", "gateway"])["spec"]["containers"]
    assert container["image"] == "registry.example/context-window-gateway:1.0"
    assert {each["metadata"]["namespace"] for each in rendered.values()} == {"gateway"}


def test_selectors_find_exactly_the_pods_that_they_mean() -> None:
    gateway = _pods(_find("Deployment", "gateway"))["metadata"]["labels"]
    valkey = _pods(_find("StatefulSet", "gateway-valkey"))["metadata"]["labels"]
    assert gateway != valkey
    for name in ("gateway", "gateway-admin"):
        assert _find("Service", name)["spec"]["selector"] == gateway
    assert _find("Service", "gateway-valkey")["spec"]["selector"] == valkey
    for kind, name, labels in (
        ("Deployment", "gateway", gateway),
        ("StatefulSet", "gateway-valkey", valkey),
        ("PodDisruptionBudget", "gateway", gateway),
    ):
        assert _find(kind, name)["spec"]["selector"]["matchLabels"] == labels
    assert _find("NetworkPolicy", "gateway")["spec"]["podSelector"]["matchLabels"] == gateway
    policy = _find("NetworkPolicy", "gateway-valkey")["spec"]
    assert policy["podSelector"]["matchLabels"] == valkey
    (callers,) = policy["ingress"][0]["from"]
    assert callers["podSelector"]["matchLabels"] == gateway
    spread = _pods(_find("Deployment", "gateway"))["spec"]["topologySpreadConstraints"]
    assert all(each["labelSelector"]["matchLabels"] == gateway for each in spread)


def test_the_monitor_asks_the_admin_port_with_its_token() -> None:
    monitor = _find("ServiceMonitor", "gateway")["spec"]
    service = _find("Service", "gateway-admin")
    assert monitor["selector"]["matchLabels"] == service["metadata"]["labels"]
    (endpoint,) = monitor["endpoints"]
    assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    assert endpoint["authorization"]["credentials"] == {"name": "gateway-keys", "key": "admin_token"}


def test_ports_are_those_of_the_settings_and_the_admin_port_is_for_the_monitoring_only(
    tmp_path: Path,
) -> None:
    copy, _ = load_secrets(_FOLDER / "base" / "gateway.yaml", "/run/secrets/gateway", tmp_path)
    facts = read_file_facts(copy)
    ports = {port["name"]: port["containerPort"] for port in _gateway()["ports"]}
    assert ports == {"http": facts["listen"]["port"], "admin": facts["admin"]["port"]}
    assert [port["targetPort"] for port in _find("Service", "gateway")["spec"]["ports"]] == ["http"]
    rules = _find("NetworkPolicy", "gateway")["spec"]["ingress"]
    allowed = {port["port"]: rule.get("from") for rule in rules for port in rule["ports"]}
    assert allowed["http"] is None and allowed["admin"]


def test_the_gateway_understands_its_options_and_finds_its_settings() -> None:
    container, pod = _gateway(), _pods(_find("Deployment", "gateway"))["spec"]
    assert_options(["serve", "--host", "0.0.0.0", *container["args"]])
    assert "--watch" in container["args"]
    config = find_option(container["args"], "--config")
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    settings, keys = mounts[str(Path(config).parent)], mounts["/run/secrets/gateway"]
    # What is mounted with subPath never changes.
    assert "subPath" not in settings and "subPath" not in keys
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes[settings["name"]]["configMap"]["name"] == "gateway-settings"
    assert volumes[keys["name"]]["secret"]["secretName"] == "gateway-keys"
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes.keys()


@pytest.mark.parametrize("path", _SETTINGS, ids=_name)
def test_settings_load_with_the_secrets_that_the_documents_name(path: Path, tmp_path: Path) -> None:
    copy, names = load_secrets(path, "/run/secrets/gateway", tmp_path)
    document = (_FOLDER / "overlays" / "example" / _KUSTOMIZATION).read_text("utf-8")
    assert [name for name in sorted(names) if name not in document] == []
    facts = read_file_facts(copy)
    assert urlsplit(facts["store"]).hostname == _find("Service", "gateway-valkey")["metadata"]["name"]
    assert urlsplit(facts["store"]).port == _find("Service", "gateway-valkey")["spec"]["ports"][0]["port"]
    assert facts["admin"]["has_token"]


@pytest.mark.parametrize("path", _SETTINGS, ids=_name)
def test_a_pod_has_time_to_let_its_streams_end(path: Path) -> None:
    (written,) = _read_all(path)
    pod = _pods(_find("Deployment", "gateway"))["spec"]
    program, seconds = _gateway()["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "sleep"
    needed = float(seconds) + written.get("drain_seconds", 8) + _SECONDS_TO_WRITE
    assert pod["terminationGracePeriodSeconds"] > needed


async def test_probes_ask_for_paths_that_the_gateway_serves_without_a_key() -> None:
    container = _gateway()
    probes = [container[name]["httpGet"] for name in ("startupProbe", "readinessProbe", "livenessProbe")]
    assert {probe["port"] for probe in probes} == {"http"}
    async with ToyUpstream() as toy, serve(make_settings(toy)) as product, aiohttp.ClientSession() as client:
        for probe in probes:
            async with client.get(f"{product.root_url}{probe['path']}") as response:
                assert response.status == 200
        assert toy.requests == []


@pytest.mark.parametrize(("kind", "name"), [("Deployment", "gateway"), ("StatefulSet", "gateway-valkey")])
def test_nothing_runs_as_root_or_writes_outside_its_volumes(kind: str, name: str) -> None:
    pod = _pods(_find(kind, name))["spec"]
    (container,) = pod["containers"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True and pod["securityContext"]["runAsUser"] > 0
    security = container["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"]} and security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert "memory" in container["resources"]["limits"] and "cpu" in container["resources"]["requests"]


def test_the_user_is_that_of_the_image() -> None:
    dockerfile = (_FOLDER.parents[1] / "Dockerfile").read_text("utf-8")
    security = _pods(_find("Deployment", "gateway"))["spec"]["securityContext"]
    assert f"USER {security['runAsUser']}:{security['runAsGroup']}\n" in dockerfile
