"""What names a session, and what it is said to have changed, in each format and however it goes on."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.toy.chat import CHAT
from tests.toy.delivery import RawAnswer
from tests.toy.dialect import Dialect
from tests.toy.dialects import DIALECTS
from tests.toy.house import House
from tests.toy.reply import Reply
from tests.toy.tool_calls import JSON, ask, call, describe_tools, edit, translate

pytestmark = pytest.mark.asyncio(loop_scope="module")

WINDOW = 64_000
# No task of a test is that of another one: a title call names the session that it quotes.
_TASK = "Fix the parser of dates"
# Its window is not known to the gateway.
_LARGE = "large-model"
_TITLING = "You are a title generator. You output ONLY a thread title."


WORK: Sequence[JSON] = (
    ask(_TASK),
    *edit(1, "/a.py", "one\n", "two\nthree\n"),
    *call(2, "bash", {"command": "make test"}, "Exit code 2\nno rule"),
    *edit(3, "/b.py", "x\n", "y\n"),
    *edit(4, "/a.py", "two\n", "2\n"),
    *call(5, "todowrite", {"todos": [{"content": "Test it", "status": "pending", "id": "1"}]}),
)


async def send(
    house: House, messages: Sequence[JSON], dialect: Dialect = CHAT, label: str = "", model: str = "toy-model"
) -> str:
    """The id of the conversation, once everything about it is written."""
    name = "input" if dialect.path == "/responses" else "messages"
    body = {
        "model": model,
        name: translate(messages, dialect),
        "tools": describe_tools(dialect, "edit", "write", "bash", "todowrite"),
        dialect.output_key: 900,
    }
    headers = dialect.headers(house.key) | ({"x-session-id": label} if label else {})
    answer = await house.post(dialect.path, body, **headers)
    assert answer.status == 200, answer.body
    await house.at_rest()
    return answer.header("x-gateway-conversation") or ""


async def name(
    house: House, title: str, asked: str, dialect: Dialect = CHAT, *, stream: bool = True, session: str = ""
) -> None:
    """As a client does beside its first request: a call that quotes it."""
    house.toy.reply = lambda _: Reply(text=title)
    key = {"/responses": "input"}.get(dialect.path, "messages")
    lead = {"/chat/completions": None, "/responses": "instructions", "/messages": "system"}[dialect.path]
    said = [
        ask("Generate a title for this conversation:\n"),
        {"role": "assistant", "content": "Yes?"},
        ask(asked),
    ]
    fields: JSON = {lead: _TITLING} if lead else {}
    if lead is None:
        said = [{"role": "system", "content": _TITLING}, *said]
    body = {"model": "toy-model", key: said, dialect.output_key: 5_000, "stream": stream, **fields}
    headers = dialect.headers(house.key) | ({"x-session-id": session} if session else {})
    await house.post(dialect.path, body, **headers)
    house.toy.reply = lambda _: Reply()
    await house.at_rest()


async def show(house: House, identity: str, page: str = "summary") -> Any:
    status, found = await house.admin(f"/v1/conversations/{identity}/{page}")
    assert status == 200, found
    return found


async def read_title(house: House, identity: str) -> tuple[str, str]:
    page = await show(house, identity)
    return page["title"], page["title_from"]


# Titles.


@pytest.mark.parametrize(
    ("reply", "title"),
    [
        ("Date parser", "Date parser"),
        ('"Date parser"\n', "Date parser"),
        ("<think>Hm.</think>\n\n# **Date parser**", "Date parser"),
        ('```json\n{"title": "Date parser"}\n```', "Date parser"),
        ("<title>Date parser</title>", "Date parser"),
        ("Date\x1b[31m\u202eparser\nand more", "Date [31m parser"),
        ('{"isNewTopic": false, "title": null}', None),
        ("<think>Not done", None),
        ("x" * 20_000, None),
    ],
)
async def test_what_the_clients_model_replies_to_a_title_call_is_the_title(
    house: House, reply: str, title: str | None
) -> None:
    identity = await send(house, [ask(_TASK)])
    assert await read_title(house, identity) == (_TASK, "message")
    await name(house, reply, _TASK)
    assert await read_title(house, identity) == ((title, "client") if title else (_TASK, "message"))
    (row,) = (await house.admin(f"/v1/conversations?q={identity}"))[1]["conversations"]
    assert row["title"] == (title or _TASK)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.path.strip("/"))
async def test_a_title_call_is_read_in_each_format(house: House, dialect: Dialect, stream: bool) -> None:
    identity = await send(house, [ask(_TASK)], dialect)
    await name(house, "Date parser", _TASK, dialect, stream=stream)
    assert await read_title(house, identity) == ("Date parser", "client")


async def test_a_title_call_that_fails_or_breaks_off_names_nothing(house: House) -> None:
    identity = await send(house, [ask(_TASK)])
    delta = b'data: {"choices":[{"index":0,"delta":{"content":"Date parser"}}]}\n\n'
    error = b'data: {"error":{"message":"overloaded"}}\n\n'
    for pieces in ((delta,), (delta, error)):
        house.toy.failures = [RawAnswer(headers=(("Content-Type", "text/event-stream"),), pieces=pieces)]
        await name(house, "unused", _TASK)
    assert house.toy.failures == [] and await read_title(house, identity) == (_TASK, "message")


@pytest.mark.parametrize("comes_first", [True, False])
@pytest.mark.parametrize(
    ("label", "title_label", "asked", "is_named"),
    [
        ("s1", "s1", "anything else", True),
        ("s1", "s2", _TASK, False),
        ("s1", "", _TASK, False),
        ("", "", _TASK, True),
        ("", "", _TASK + " Now.", False),
        ("", "s1", _TASK, False),
    ],
)
async def test_a_title_call_names_a_session_that_is_proven_to_be_its(
    house: House, comes_first: bool, label: str, title_label: str, asked: str, is_named: bool
) -> None:
    if comes_first:
        await name(house, "Date parser", asked, session=title_label)
    identity = await send(house, [ask(_TASK)], label=label)
    if not comes_first:
        await name(house, "Date parser", asked, session=title_label)
    assert (await read_title(house, identity))[0] == ("Date parser" if is_named else _TASK)


async def test_a_greeting_proves_nothing_and_another_tenant_names_nothing(house: House) -> None:
    hello = await send(house, [ask("Hello")])
    await name(house, "A greeting", "Hello")
    mine = await send(house, [ask(_TASK)])
    await name(House(house.toy, house.product, f"{house.key}-other"), "CANARY", _TASK)
    assert await read_title(house, hello) == ("Hello", "message")
    assert await read_title(house, mine) == (_TASK, "message")
    again = await send(house, [ask(_TASK), {"role": "assistant", "content": "Yes."}, ask("Go on.")])
    assert (again, await read_title(house, again)) == (mine, (_TASK, "message"))


async def test_the_first_summary_names_a_session_and_the_client_has_the_last_word(house: House) -> None:
    history = [ask(_TASK)]
    for at in range(12):
        history += [
            {"role": "assistant", "content": f"Step {at}. " + "word " * 400},
            ask(f"Go on with {at}."),
        ]
    titles = []
    for heading in ("# Parser of dates repaired", "# Something else happened"):
        house.toy.summary = lambda _, first=heading: Reply(text=f"{first}\n\n## Goal\n" + "We worked. " * 40)
        identity = await send(house, history)
        assert (await house.admin(f"/conversations/{identity}/compact", "POST"))[0] == 202
        await house.at_rest()
        titles.append(await read_title(house, identity))
        history += [{"role": "assistant", "content": "Further. " + "word " * 2_000}, ask("And then?")]
    assert len(house.toy.summaries) == 2
    assert titles == [("Parser of dates repaired", "summary")] * 2
    for title in ("Named by the client", "Named anew"):
        await name(house, title, _TASK)
        assert await read_title(house, identity) == (title, "client")


# Work.


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.path.strip("/"))
@pytest.mark.parametrize("ends", [(11,), (1, 3, 5, 7, 9, 11), (7, 3, 11, 5, 11)], ids=str)
async def test_the_work_is_the_same_in_each_format_and_order_of_requests(
    house: House, dialect: Dialect, ends: Sequence[int]
) -> None:
    """At once, step by step, and with requests that are repeated."""
    for end in ends:
        identity = await send(house, WORK[:end], dialect)
    page, diff = await show(house, identity), await show(house, identity, "diff")
    assert [
        (file["path"], file["changes"], file["additions"], file["deletions"]) for file in page["files"]
    ] == [
        ("/a.py", 2, 3, 2),
        ("/b.py", 1, 1, 1),
    ]
    assert [(each["command"], each["exit_code"]) for each in page["commands"]] == [("make test", 2)]
    assert [each["text"] for each in page["todos"]] == ["Test it"]
    first, second = diff["files"]
    assert (first["file"], first["messages"]) == ("/a.py", [1, 7])
    assert first["diff"].count("\n@@") == 2 and "-one\n+two\n+three\n" in first["diff"]
    assert second["diff"].endswith("-x\n+y\n") and (diff["left_off"], first["kind"]) == (0, "changed")


async def test_a_call_without_a_result_or_with_a_failed_one_changed_nothing(house: House) -> None:
    failed = call(
        1, "edit", {"filePath": "/a.py", "oldString": "x", "newString": "y"}, "Error: oldString not found"
    )
    made = call(
        2, "write", {"filePath": "/new.py", "content": "a\nb\n"}, "File created successfully at: /new.py"
    )
    identity = await send(house, [ask("Make the new file, please"), *failed, *made])
    page, diff = await show(house, identity), await show(house, identity, "diff")
    assert [file["path"] for file in page["files"]] == ["/new.py"]
    (file,) = diff["files"]
    assert (file["additions"], file["deletions"], file["diff"]) == (2, 0, file["diff"])
    assert file["diff"].endswith("+a\n+b\n")


async def test_a_branch_has_what_came_before_it_and_nothing_of_the_other(house: House) -> None:
    whole = await send(house, WORK)
    other = [*WORK[:3], ask("No, another way."), *edit(9, "/c.py", "a\n", "b\n")]
    branch = await send(house, other)
    assert branch != whole
    for identity, paths in ((branch, ["/a.py", "/c.py"]), (whole, ["/a.py", "/b.py"])):
        page = await show(house, identity)
        assert [file["path"] for file in page["files"]] == paths
    messages = [(file["file"], file["messages"]) for file in (await show(house, branch, "diff"))["files"]]
    assert messages == [("/a.py", [1]), ("/c.py", [4])]


async def test_a_large_history_goes_on_with_what_was_noted(house: House) -> None:
    """Each of its requests brings more than is read again."""
    house.toy.windows = {_LARGE: 9_000_000}
    history = [*WORK[:5]]
    for at in range(3):
        history += call(20 + at, "bash", {"command": f"make {at}"}, "x" * 600_000)
        history += edit(30 + at, f"/new{at}.py", "a\n", "b\n")
        identity = await send(house, history, model=_LARGE)
    page, diff = await show(house, identity), await show(house, identity, "diff")
    assert {file["path"] for file in page["files"]} == {"/a.py", "/new0.py", "/new1.py", "/new2.py"}
    assert [each["command"] for each in page["commands"]] == ["make test", "make 0", "make 1", "make 2"]
    assert [file["messages"] for file in diff["files"]] == [[1], [7], [11], [15]]


async def test_an_answer_with_all_changes_is_bounded_and_says_what_is_left_off(house: House) -> None:
    house.toy.windows = {_LARGE: 9_000_000}
    history, lines = [ask("Write them all, please")], "".join(f"{at:09}\n" for at in range(4_000))
    for at in range(72):
        arguments = {"filePath": f"/{at}.txt", "content": f"{at}\n{lines}"}
        history += call(at, "write", arguments, f"File created successfully at: /{at}.txt")
        if at % 24 == 23:
            identity = await send(house, history, model=_LARGE)
    diff = await show(house, identity, "diff")
    assert 20 < len(diff["files"]) < 72 and diff["left_off"] == 72 - len(diff["files"])
    assert len((await show(house, identity))["files"]) == 72
    one = await show(house, identity, "diff?message=143")
    assert [file["file"] for file in one["files"]] == ["/71.txt"] and one["left_off"] == 0
