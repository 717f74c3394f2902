"""What is new in a history is read, whatever it holds."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.bounds.lanes import take_all_steps
from gateway.core.session.reader import SessionReader
from gateway.core.session.work import SessionWork
from gateway.sessions.reading import Unread, count_bytes, has_calls, read_messages
from tests.builders.chat import bodies, read, render
from tests.builders.sessions import ask, call, edit
from tests.sessions.test_record import make_session

_SESSION = [ask("Fix the parser of dates"), *edit(1, "/a", "a\n", "b\n"), *edit(2, "/b", "a\n", "b\n")]


def make_unread(body: bytes, reader: SessionReader | None = None, start: int = 0, written: int = 0) -> Unread:
    return Unread(read(body), reader or SessionReader(), start, written, make_session(), SessionWork())


def unread(start: int, written: int, reader: SessionReader | None = None) -> Unread:
    return make_unread(render(_SESSION), reader or SessionReader(), start, written)


def test_only_what_is_new_is_read_and_packed() -> None:
    reader = SessionReader()
    first = take_all_steps(read_messages(unread(0, 3, reader)))
    assert (first.first, sorted(first.packed)) == ("Fix the parser of dates", [3])
    assert len(first.work.changes) == 2
    assert count_bytes(unread(1, 0)) < count_bytes(unread(0, 0))
    assert has_calls(unread(0, 0)) and not has_calls(unread(4, 0))
    assert take_all_steps(read_messages(unread(5, 5, reader))).first == ""


@given(bodies())
@settings(max_examples=50)
def test_any_conversation_can_be_read(body: bytes) -> None:
    take_all_steps(read_messages(make_unread(body)))


_json: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
_TOOLS = ("edit", "write", "bash", "apply_patch", "todowrite", "str_replace_editor", "multiedit")
_ARGUMENTS = (
    "filePath",
    "path",
    "file_path",
    "oldString",
    "old_str",
    "content",
    "command",
    "todos",
    "edits",
    "input",
)


@given(st.sampled_from(_TOOLS), st.dictionaries(st.sampled_from(_ARGUMENTS), _json, max_size=5), _json)
@settings(max_examples=200)
def test_hostile_calls_do_no_harm(tool: str, arguments: Any, result: Any) -> None:
    messages = [ask("Go on, please."), *call(1, tool, arguments, json.dumps(result)), ask("And then?")]
    take_all_steps(read_messages(make_unread(render(messages))))
