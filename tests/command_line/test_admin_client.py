"""Asking the admin port, and what is said where it does not answer."""

import asyncio
from pathlib import Path

import pytest

from gateway.activity.rows import ActivityEvent
from gateway.admin.answers import ConversationList
from gateway.command_line.admin_client import AdminClient, AdminError
from gateway.settings import load_settings
from tests.toy.admin_api import ToyAdminPort, serving_admin_port

TOKEN = "a-token-for-operators"


def ask(config: str) -> ConversationList:
    with AdminClient(load_settings(Path(config), {})) as client:
        return client.get("/conversations", ConversationList, {"limit": 2})


async def fail(toy: ToyAdminPort, folder: Path) -> AdminError:
    with pytest.raises(AdminError) as caught:
        await asyncio.to_thread(ask, toy.write_settings(folder, TOKEN))
    assert TOKEN not in str(caught.value)
    return caught.value


async def test_the_token_of_the_settings_is_sent(tmp_path: Path) -> None:
    async with serving_admin_port() as toy:
        toy.answer("GET", "/conversations", {"conversations": [], "next": None})
        await asyncio.to_thread(ask, toy.write_settings(tmp_path, TOKEN))
        await asyncio.to_thread(ask, toy.write_settings(tmp_path))
    path = "/api/v1/conversations?limit=2"
    assert toy.asked == [("GET", path, f"Bearer {TOKEN}"), ("GET", path, "")]


async def test_where_no_gateway_runs_the_options_are_named(tmp_path: Path) -> None:
    async with serving_admin_port() as toy:
        pass
    error = await fail(toy, tmp_path)
    assert "no gateway answers at the admin port" in str(error) and "--admin-port" in str(error)


async def test_a_missing_token_is_asked_for(tmp_path: Path) -> None:
    async with serving_admin_port() as toy:
        toy.answer("GET", "/conversations", {"detail": "token required"}, status=401)
        error = await fail(toy, tmp_path)
    assert "GATEWAY_ADMIN_TOKEN" in str(error) and error.status == 401


async def test_a_problem_is_told_in_its_own_words(tmp_path: Path) -> None:
    async with serving_admin_port() as toy:
        toy.answer("GET", "/conversations", {"title": "Conflict", "detail": "in progress\x1b"}, status=409)
        error = await fail(toy, tmp_path)
        toy.answer("GET", "/conversations", "no problem", status=500)
        other = await fail(toy, tmp_path)
    assert (str(error), error.status) == ("in progress�", 409)
    assert "refused (status 500)" in str(other)


async def test_another_program_at_the_port_is_recognized(tmp_path: Path) -> None:
    async with serving_admin_port() as toy:
        toy.answers["GET", "/conversations"] = (200, b"<html>")
        assert "is not the admin port of a gateway" in str(await fail(toy, tmp_path))


async def test_events_of_other_names_are_left_out(tmp_path: Path) -> None:
    async with serving_admin_port() as toy:
        stream = (
            b': listening\n\nevent: plan\ndata: {"x": 1}\n\nevent: activity\ndata: {"conversations": []}\n\n'
        )
        toy.answers["GET", "/events"] = (200, stream)
        settings = load_settings(Path(toy.write_settings(tmp_path)), {})

        def read() -> list[ActivityEvent | None]:
            with AdminClient(settings) as client:
                return list(client.read_events("activity", ActivityEvent))

        events = await asyncio.to_thread(read)
    assert [event for event in events if event is not None] == [ActivityEvent(conversations=[])]
    assert events[0] is None
