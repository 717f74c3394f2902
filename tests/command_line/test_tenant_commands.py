"""`refold tenants`: who may be purged, and what a person is asked first."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from gateway.command_line.options import parse_arguments
from gateway.command_line.tenant_commands import list_tenants, purge_tenant
from gateway.store.disk import DiskStore
from gateway.store.keys import make_key, make_tag

_TENANTS = "tenants: [{name: acme, keys: [k1]}, {name: bolt, keys: [k2]}]\n"
_UPSTREAM = "upstreams: {default: {base_url: 'https://x.example/v1'}}\n"


def write_settings(folder: Path, text: str = _TENANTS) -> str:
    path = folder / "gateway.yaml"
    path.write_text(f'{_UPSTREAM}store: "disk:{folder}/state"\n{text}')
    return str(path)


def purge(config: str, *arguments: str, answer: str = "") -> tuple[int, list[str]]:
    """The status, and what is said."""
    said: list[str] = []
    options = parse_arguments(["tenants", "purge", "--config", config, *arguments])
    return purge_tenant(options, {}, lambda _: answer, said.append), said


def store_record(folder: Path, owner: str) -> None:
    async def write() -> None:
        store = DiskStore(folder / "state")
        await store.open()
        await store.write_durably(make_key(make_tag(owner), "head", "00"), b"x", keep_seconds=60)
        await store.close()

    asyncio.run(write())


def test_the_tenants_of_the_settings_are_listed(tmp_path: Path) -> None:
    options = parse_arguments(["tenants", "list", "--config", write_settings(tmp_path)])
    assert list_tenants(options, {}) == "acme\nbolt"
    options = parse_arguments(["tenants", "list", "--config", write_settings(tmp_path, "")])
    assert "each caller key is a tenant" in list_tenants(options, {})


def test_an_unknown_tenant_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    status, said = purge(write_settings(tmp_path), "acmee", "--yes")
    assert status == 2
    assert "no tenant 'acmee'; the nearest is 'acme'" in said[0]
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("owner", "arguments"),
    [
        ("tenant:acme", ["acme"]),
        ("tenant:gone", ["gone", "--removed"]),
        ("key:" + "ab" * 32, ["key:" + "ab" * 32]),
    ],
)
def test_a_tenant_is_purged_by_its_name_or_by_the_hash_of_its_key(
    tmp_path: Path, owner: str, arguments: Sequence[str]
) -> None:
    store_record(tmp_path, owner)
    status, said = purge(write_settings(tmp_path), *arguments, "--yes")
    assert status == 0
    assert said == [f"deleted of {arguments[0]}: 1 records of state, 0 of originals, 0 of named responses"]


def test_a_person_types_the_name_again(tmp_path: Path) -> None:
    store_record(tmp_path, "tenant:acme")
    config = write_settings(tmp_path)
    assert purge(config, "acme", answer="yes") == (1, ["gateway: nothing was deleted"])
    status, said = purge(config, "acme", answer="acme\n")
    assert (status, said[0].partition(" records")[0]) == (0, "deleted of acme: 1")


def test_a_store_that_does_not_exist_is_not_made(tmp_path: Path) -> None:
    status, _ = purge(write_settings(tmp_path), "acme", "--yes")
    assert status == 0
    assert not (tmp_path / "state").exists()
