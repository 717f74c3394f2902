"""The table of clients names the installed versions."""

import json
from pathlib import Path

import pytest

from tests.agents.client import Client
from tests.agents.clients import CLIENTS

_HERE = Path(__file__).parent


def _locked(client: Client) -> str:
    """The version in npm's lock, or the line of the venv's lock."""
    if client.needs_npm:
        packages = json.loads((_HERE / "npm" / "package-lock.json").read_text("utf-8"))["packages"]
        return str(packages[f"node_modules/{client.package}"]["version"])
    venv = client.program.parents[1].name
    lines = (_HERE / "requirements" / f"{venv}.lock").read_text("utf-8").splitlines()
    found = (line.split("==")[1] for line in lines if line.startswith(f"{client.package}=="))
    return next(found).removesuffix(" \\")


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_the_version_in_the_table_is_the_locked_one(client: Client) -> None:
    assert client.version == _locked(client)


def test_each_client_has_a_name_of_its_own() -> None:
    assert len({client.name for client in CLIENTS}) == len(CLIENTS)
