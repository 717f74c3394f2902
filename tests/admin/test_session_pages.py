"""What a session worked on is shown to those who may read its texts, and to no others."""

import json
from typing import Any

import pytest

from gateway.admin.session_pages import choose_edits, make_session_page
from gateway.core.session.work import CommandRun, OpenTodo, TouchedFile
from tests.sessions.test_record import make_session
from tests.toy.admin_port import ADMIN, get, get_json
from tests.toy.gateway import make_settings, running_gateway
from tests.toy.sessions import SESSION, TASK, play
from tests.toy.upstream import ToyUpstream

_SHOWS = "policies: {default: {show_texts: true}}\n"
_HIDES = "policies: {default: {show_texts: false}}\n"
_NO_TOKEN = "admin: {port: 0}\n"


def test_a_page_has_everything_of_a_record() -> None:
    file = TouchedFile(path="/a", kind="created", changes=2, additions=3, deletions=1, unknown=1)
    session = make_session(
        title="Date parser",
        title_from="client",
        files=(file, file),
        left_files=2,
        commands=(CommandRun(position=3, command="make", exit_code=2),),
        left_commands=1,
        todos=(OpenTodo(text="test", is_in_progress=True),),
        titles=((0, "Fix it"),),
    )
    page = make_session_page("c", session, None)
    assert (page.title, page.title_from, page.additions, page.deletions) == ("Date parser", "client", 6, 2)
    assert (page.files[0].path, page.files[0].unknown, page.left_files) == ("/a", 1, 2)
    assert (page.commands[0].message, page.commands[0].exit_code, page.left_commands) == (3, 2, 1)
    assert page.todos[0].in_progress and page.messages[0].title == "Fix it"
    assert page.updated == "1970-01-01T00:00:01+00:00"
    assert make_session_page("c", None, None).updated is None


@pytest.mark.parametrize(
    ("message", "chosen"), [(None, [1, 3, 5, 9]), (0, [1, 3]), (4, [5, 9]), (3, [3]), (2, []), (99, [])]
)
def test_a_user_message_stands_for_all_that_was_done_for_it(message: int | None, chosen: list[int]) -> None:
    session = make_session(edits=(1, 3, 5, 9), titles=((0, "a"), (4, "b")))
    assert list(choose_edits(session, message)) == chosen


@pytest.mark.system(20)
async def test_a_session_is_shown_as_json_and_as_markdown_with_its_diffs() -> None:
    async with ToyUpstream(window=64_000) as toy, running_gateway(make_settings(toy, more=ADMIN)) as gateway:
        identity = await play(gateway, SESSION)
        page = await get_json(gateway, f"/conversations/{identity}/summary")
        status, markdown = await get(gateway, f"/conversations/{identity}/summary?format=markdown")
        diff = await get_json(gateway, f"/conversations/{identity}/diff")
        parts = [
            await get_json(gateway, f"/conversations/{identity}/diff?message={at}") for at in (0, 1, 3, 7)
        ]
        listed = await get_json(gateway, "/conversations")
        shown = await get_json(gateway, f"/conversations/{identity}")
    assert (page["title"], page["title_from"]) == (TASK, "message")
    files = {file["path"]: (file["additions"], file["deletions"]) for file in page["files"]}
    assert files == {"/a.py": (3, 2), "/b.py": (1, 1)}
    assert (page["additions"], page["deletions"]) == (4, 3)
    assert [command["command"] for command in page["commands"]] == ["make test"]
    assert status == 200 and markdown.decode().startswith("# Fix the parser of dates")
    assert [file["file"] for file in diff["files"]] == ["/a.py", "/b.py"]
    assert diff["files"][0]["messages"] == [1, 7]
    assert "-one\n+two\n+three\n" in diff["files"][0]["diff"]
    assert [[file["file"] for file in part["files"]] for part in parts] == [
        ["/a.py", "/b.py"],
        ["/a.py"],
        [],
        ["/a.py"],
    ]
    assert [row["title"] for row in listed["conversations"]] == [TASK] == [shown["title"]]


@pytest.mark.parametrize(
    ("more", "status"), [(_NO_TOKEN + _HIDES, 403), (_NO_TOKEN + _SHOWS, 200), (_NO_TOKEN, 200)]
)
async def test_texts_are_shown_where_the_policy_allows_it(more: str, status: int) -> None:
    async with ToyUpstream(window=64_000) as toy, running_gateway(make_settings(toy, more=more)) as gateway:
        identity = await play(gateway, SESSION)
        for path in ("summary", "summary?format=markdown", "diff"):
            answer = await get(gateway, f"/conversations/{identity}/{path}", token=None)
            assert answer[0] == status
            assert (b"parser" in answer[1] or b"a.py" in answer[1]) == (status == 200)
        listed: Any = json.loads((await get(gateway, "/conversations", token=None))[1])
    titles = [row["title"] for row in listed["conversations"]]
    assert titles == ([TASK] if status == 200 else [None])


async def test_a_session_of_which_nothing_is_kept_is_empty() -> None:
    more = ADMIN + "policies: {default: {session_summary: false}}\n"
    async with ToyUpstream(window=64_000) as toy, running_gateway(make_settings(toy, more=more)) as gateway:
        identity = await play(gateway, SESSION)
        page = await get_json(gateway, f"/conversations/{identity}/summary")
        diff = await get_json(gateway, f"/conversations/{identity}/diff")
        unknown = await get(gateway, "/conversations/0123456789abcdef/summary")
    assert (page["updated"], page["title"], page["files"]) == (None, None, [])
    assert diff["files"] == []
    assert unknown[0] == 404
