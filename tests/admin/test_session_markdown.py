"""A session as Markdown: every text of the conversation stays what it is, a text."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.admin.session_answers import (
    LastSummary,
    MessageTitle,
    SessionCommand,
    SessionFile,
    SessionPage,
    SessionTodo,
)
from gateway.admin.session_markdown import escape, quote, render_markdown

_EMPTY = SessionPage(
    id="c0ffee",
    title=None,
    title_from=None,
    updated=None,
    additions=0,
    deletions=0,
    files=[],
    left_files=0,
    commands=[],
    left_commands=0,
    todos=[],
    messages=[],
    summary=None,
)


def make_file(path: str, **more: Any) -> SessionFile:
    defaults: dict[str, Any] = {
        "kind": "changed",
        "changes": 1,
        "additions": 2,
        "deletions": 1,
        "unknown": 0,
        "moved_from": None,
    }
    return SessionFile(path=path, **(defaults | more))


def make_page(text: str = "x y") -> SessionPage:
    """With this text everywhere."""
    return replace(
        _EMPTY,
        title=text,
        title_from="message",
        updated="2026-11-23T05:00:00+00:00",
        additions=4,
        files=[make_file(text), make_file(text, kind="moved", moved_from=text)],
        commands=[SessionCommand(message=3, command=text, exit_code=1)],
        left_commands=4,
        todos=[SessionTodo(text=text, in_progress=True)],
        messages=[MessageTitle(message=0, title=text)],
        summary=LastSummary(key="aa", kind="summary", created="2026-11-23T05:00:00+00:00", text=text),
    )


def test_changes_that_cannot_be_counted_are_not_zero_lines() -> None:
    file = make_file("/a.py", additions=0, deletions=0, unknown=1)
    assert "- `/a.py`: 1 of 1 changes not counted\n" in render_markdown(replace(make_page(), files=[file]))


def test_a_session_is_a_document() -> None:
    page = replace(
        make_page("Fix the parser"), files=[make_file("/a.py", unknown=1, changes=2, kind="created")]
    )
    assert (
        render_markdown(page)
        == """# Fix the parser

Conversation `c0ffee`, noted 2026-11-23T05:00:00+00:00.

## Files: +4 -0

- `/a.py`: +2 -1, 1 of 2 changes not counted, created

## Open to-dos

- [ ] Fix the parser (in progress)

## Commands: the newest 1

- `Fix the parser` → 1

## Messages

- 0: Fix the parser

## Last summary, 2026-11-23T05:00:00+00:00

```text
Fix the parser
```
"""
    )


def test_nothing_kept_is_said() -> None:
    assert render_markdown(_EMPTY) == "# Session c0ffee\n\nConversation `c0ffee`: nothing is kept.\n"


@given(st.text(alphabet="a `#*[]()<>|\\\n\r\u2028\x1b_~-1.", max_size=30))
def test_no_text_adds_a_line_or_ends_its_quotation(text: str) -> None:
    page = make_page(text)
    lines = render_markdown(replace(page, summary=None)).split("\n")
    assert len(lines) == len(render_markdown(replace(make_page(), summary=None)).split("\n"))
    assert [line for line in lines if line.startswith("## ")] == [
        "## Files: +4 -0",
        "## Open to-dos",
        "## Commands: the newest 1",
        "## Messages",
    ]
    whole = render_markdown(page)
    fence = whole.rstrip("\n").rpartition("\n")[2]
    assert set(fence) == {"`"} and fence not in text


@given(st.text(alphabet="a `*<", max_size=12))
def test_quoted_text_is_inside_of_its_backticks(text: str) -> None:
    quoted = quote(text)
    fence = quoted[: len(quoted) - len(quoted.lstrip("`"))]
    assert quoted.endswith(fence) and fence not in quoted[len(fence) : -len(fence)]
    assert escape(text).replace("\\", "") == " ".join(text.split())
